"""Heads: the current objects of many names, looked up together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from ais_loader.errors import LoaderError, ObjectNotFound, from_node
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.object_info import Stored, stored_of
from storage_node.store.read.batch import StoreBatch
from storage_node.store.store import Store


def local_heads(store: Store, bucket: str, names: Sequence[str]) -> list[Stored | LoaderError]:
    """Look up names in this store. Raises BucketNotFound, Closed."""
    store.bucket(bucket)
    with closing(StoreBatch(store, batch_pb.BatchRequest(bucket=[bucket], name=names))) as batch:
        return [_local_head(store, bucket, name, batch, position) for position, name in enumerate(names)]


def _local_head(store: Store, bucket: str, name: str, batch: StoreBatch, position: int) -> Stored | LoaderError:
    status, entry = batch.status[position], batch.record(position)
    if status == batch_pb.OK and entry is not None:
        return stored_of(entry)
    if status == batch_pb.NOT_FOUND and (fault := batch.fault(position)) is not None:
        return from_node(fault.kind or ObjectNotFound.kind, fault.message)
    try:
        return stored_of(store.head(bucket, name))
    except LoaderError as error:
        return error
