"""Puts of an embedded store: staged and committed in the caller's thread, many small objects with few commits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ais_loader import errors
from ais_loader.transport.base import PutSpec, require_metadata
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.source import Source
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from storage_node.store.drive.preconditions import parse_condition
from storage_node.store.format import CatalogEntry
from storage_node.store.store import Store
from storage_node.store.write import Upload

_COMMIT_TOGETHER = 128
_COMMIT_TOGETHER_BYTES = 8 << 20


def header_of(spec: PutSpec) -> objects_pb.PutHeader:
    require_metadata(spec.metadata)
    header = objects_pb.PutHeader(bucket=spec.bucket, name=spec.name, metadata=spec.metadata)
    if spec.size_bytes is not None:
        header.size_bytes = spec.size_bytes
    if spec.checksum is not None:
        header.checksum = spec.checksum
    if spec.is_conditional:
        header.condition.if_absent = spec.if_absent
        header.condition.if_version = spec.if_version or ""
    return header


def staged(store: Store, spec: PutSpec, source: Source, *, grouped: bool = False) -> Upload:
    """Stage an object. `grouped`: see `Store.begin_put`. Raises LoaderError."""
    require_metadata(spec.metadata)
    bucket, name = spec.bucket, spec.name
    condition = parse_condition(spec.if_absent, spec.if_version or "")  # an answer cannot be lost in this process
    content = source.chunks(), spec.metadata, spec.size_bytes, spec.checksum
    return store.stage(bucket, name, *content, condition, grouped=grouped)


def put_groups(store: Store, objects: Iterable[tuple[PutSpec, Source]]) -> Iterator[ObjectInfo | errors.LoaderError]:
    """Put many objects with few commits. Yield, for each object in order, its info or its error. Lazy."""
    group: list[tuple[PutSpec, Upload | errors.LoaderError]] = []
    group_bytes = 0
    try:
        for spec, source in objects:
            try:
                upload = staged(store, spec, source, grouped=True)
                group_bytes += upload.size_bytes
                group.append((spec, upload))
            except errors.LoaderError as error:
                group.append((spec, error))
            if len(group) >= _COMMIT_TOGETHER or group_bytes >= _COMMIT_TOGETHER_BYTES:
                yield from _commit_group(store, group)
                group, group_bytes = [], 0
        yield from _commit_group(store, group)
        group = []
    finally:
        for _, left in group:
            if isinstance(left, Upload):
                left.abort()


def _commit_group(store: Store, group: list[Any]) -> Iterator[ObjectInfo | errors.LoaderError]:
    results = store.commit_many([upload for _, upload in group])
    for (spec, _), result in zip(group, results, strict=True):
        if isinstance(result, Exception):
            # Create a new error: the traceback of the old one would keep the object's bytes alive as long as the caller
            # keeps it.
            yield errors.from_kind(result.kind, str(result))
        else:
            yield stored_info(spec.bucket, spec.name, result)


def stored_info(bucket: str, name: str, entry: CatalogEntry) -> ObjectInfo:
    size_bytes, checksum, modified_ns = entry.size_bytes, entry.checksum, entry.modified_ns
    metadata = entry.metadata if entry.raw_metadata else {}
    return ObjectInfo(bucket, name, size_bytes, str(entry.version), checksum, modified_ns, metadata)
