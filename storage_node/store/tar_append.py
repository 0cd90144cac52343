"""Append position of an object that is a plain tar."""

from __future__ import annotations

import os

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_compose_pb2 as pb
from storage_node.store.archives.source import FdSource
from storage_node.store.archives.tar_end import find_end
from storage_node.store.drive.drive import Drive
from storage_node.store.format import CatalogEntry
from storage_node.store.read.object_reader import note_suspicion, open_current
from storage_node.store.store import Store


def tar_end(store: Store, request: pb.TarEndRequest) -> pb.TarEndResponse:
    """Return the append position of a tar, and which members it has. Raises ArchiveError, and what `open_object`
    raises."""
    wanted = {member.encode() for member in request.member}

    def ended(drive: Drive, entry: CatalogEntry) -> pb.TarEndResponse:
        fd = drive.files.open(entry.path)
        try:
            end = find_end(FdSource(fd, entry.size_bytes, entry.offset), request.name, wanted)
        except LoaderError as error:
            note_suspicion(store, request.bucket, request.name, entry.version, error)
            raise
        finally:
            os.close(fd)
        return pb.TarEndResponse(
            version=str(entry.version),
            size_bytes=entry.size_bytes,
            end_bytes=end.at,
            member=[member.decode() for member in end.found],
        )

    return open_current(store, request.bucket, request.name, "", ended)
