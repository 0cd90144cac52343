"""Composed objects: built from parts of other objects of one store.

Every byte of a source object, even in a range, is compared with its stored checksum before it is written: damage is
reported, and never gets a new checksum. This requires reading everything, so that sharing extents between files
(reflinks, copy_file_range) would save almost nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from ais_loader.errors import InvalidRequest
from ais_loader.wire.generated import ais_compose_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects
from ais_loader.wire.reserved import of_client, of_store
from storage_node.store.drive.preconditions import condition_of, done_before
from storage_node.store.format import CatalogEntry, encode_metadata
from storage_node.store.read.object_reader import StoredObjectReader, open_object
from storage_node.store.store import Store

MAX_PARTS = 10_000


def check_parts(request: pb.ComposeRequest) -> None:
    """Check the parts of a request. Raises InvalidRequest."""
    if len(request.part) > MAX_PARTS:
        raise InvalidRequest(f"{len(request.part):,} parts; an object is made of {MAX_PARTS:,} at most")
    if any(part.WhichOneof("content") is None for part in request.part):
        raise InvalidRequest("a part that is neither bytes nor a range of an object")
    if request.inherit_metadata and (not request.part or not request.part[0].HasField("range")):
        raise InvalidRequest("metadata is that of the first part, which must be a range of an object then")


def composed_metadata(request: pb.ComposeRequest, source: Mapping[str, str], source_bytes: int) -> dict[str, str]:
    """Return metadata of the new object. `source` is that of the first part's object, which has `source_bytes` bytes.

    Metadata that the store itself has set is only kept if the bytes are exactly the same.
    """
    of_source = request.part[0].range
    is_copy = len(request.part) == 1 and not of_source.start
    is_copy &= not of_source.HasField("length") or of_source.length >= source_bytes
    metadata = of_client(source) if request.inherit_metadata else dict(request.object.metadata)
    return metadata | of_store(source) if is_copy else metadata


def compose_object(
    store: Store, request: pb.ComposeRequest, moved: Callable[[int], None] = lambda moved_bytes: None
) -> CatalogEntry:
    """Store the object that the request describes. `moved` is called with the number of bytes written so far.

    Raises InvalidRequest, CorruptObject for a source, and what `open_object`, `Store.stage` and `Upload.commit` raise;
    nothing is left behind then.
    """
    check_parts(request)
    header = request.object
    if (entry := done_earlier(store, header)) is not None:
        return entry
    metadata = dict(header.metadata)
    if request.part and request.part[0].HasField("range"):
        with contextlib.closing(_opened(store, request.part[0].range)) as first:
            metadata = composed_metadata(request, first.record.metadata, first.record.size_bytes)
            request.part[0].range.version = str(first.record.version)
    upload = store.stage(
        header.bucket,
        header.name,
        _chunks(store, request, moved),
        metadata,
        header.size_bytes if header.HasField("size_bytes") else None,
        header.checksum if header.HasField("checksum") else None,
        condition_of(header),
    )
    return upload.commit()


def done_earlier(store: Store, header: objects.PutHeader) -> CatalogEntry | None:
    """Return what an earlier try of this write, found by its id, has stored. Raises what `begin_put` and
    `Upload.settled` raise.

    Checked first: if an object is built from its own previous version, a second try could not even read its sources.
    """
    condition = condition_of(header)
    if condition is None or not condition.write_id:
        return None
    bucket_uuid = store.bucket(header.bucket).uuid_bytes
    entry = done_before(condition, store.replicas.newest_entry(bucket_uuid, header.name))
    return (
        entry
        if entry is None or entry.raw_metadata
        else entry._replace(raw_metadata=encode_metadata(dict(header.metadata)))
    )


def _chunks(store: Store, request: pb.ComposeRequest, moved: Callable[[int], None]) -> Iterator[bytes]:
    moved_bytes = 0
    for part in request.part:
        if part.HasField("range"):
            with contextlib.closing(_opened(store, part.range)) as reader:
                for chunk in reader:
                    yield chunk
                    moved_bytes += len(chunk)
                    moved(moved_bytes)
        else:
            yield part.data
            moved_bytes += len(part.data)
            moved(moved_bytes)


def _opened(store: Store, wanted: pb.ComposeRange) -> StoredObjectReader:
    return open_object(
        store,
        wanted.bucket,
        wanted.name,
        start=wanted.start,
        length=wanted.length if wanted.HasField("length") else None,
        version=wanted.version,
        verify=True,
    )
