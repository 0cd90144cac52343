"""Small puts: objects that are in memory, stored with few commits."""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.object_info import info_of
from storage_node.store.drive.preconditions import condition_of
from storage_node.store.store import Store
from storage_node.store.write import Upload


def put_small(store: Store, objects: Sequence[pb.SmallObject]) -> list[pb.ObjectInfo | LoaderError]:
    """Store objects together. Waits for drives. Returns the info or the error of each, in order."""
    uploads: list[Upload | LoaderError] = []
    for small in objects:
        checksum = small.checksum if small.HasField("checksum") else None
        content = [small.data], dict(small.metadata)
        try:
            condition = condition_of(small)
            uploads.append(
                store.stage(small.bucket, small.name, *content, checksum=checksum, condition=condition, grouped=True)
            )
        except LoaderError as error:
            uploads.append(error)
    return [
        stored if isinstance(stored, LoaderError) else info_of(small.bucket, small.name, stored)
        for small, stored in zip(objects, store.commit_many(uploads), strict=True)
    ]
