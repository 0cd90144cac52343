"""Puts into the embedded store, one by one and in groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ais_loader import errors
from ais_loader.content import Source
from ais_loader.entry import ObjectInfo
from ais_loader.transport.base import PutSpec
from ais_loader.transport.validation import require_metadata

if TYPE_CHECKING:
    from storage_node.store.format import Record
    from storage_node.store.store import Store
    from storage_node.store.upload import Upload

_COMMIT_TOGETHER = 128
_COMMIT_TOGETHER_BYTES = 8 << 20


def staged(store: Store, spec: PutSpec, source: Source, *, grouped: bool = False) -> Upload:
    """`grouped`: see `Store.begin_put`. Raises LoaderError."""
    from storage_node.store.drive.preconditions import parse_condition
    from storage_node.store.reframe_on_put import content_of
    from storage_node.store.writes import stage_object

    require_metadata(spec.metadata)
    with content_of(
        store, spec.bucket, spec.name, source.chunks(), spec.metadata, spec.size_bytes, spec.checksum
    ) as content:
        return stage_object(
            store,
            spec.bucket,
            spec.name,
            content.chunks,
            content.metadata,
            content.size_bytes,
            content.checksum,
            parse_condition(spec.if_absent, spec.if_version or "", spec.write_id),
            grouped=grouped,
        )


def put_groups(store: Store, objects: Iterable[tuple[PutSpec, Source]]) -> Iterator[ObjectInfo | errors.LoaderError]:
    """Put many objects, with few commits; of each, in order, its info or its error. Lazy."""
    from storage_node.store.upload import Upload

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
            # Made anew: the frames of its traceback would hold the object's bytes for as long as the caller keeps it.
            yield errors.from_kind(result.kind, str(result))
        else:
            yield object_info(spec.bucket, spec.name, result)


def object_info(bucket: str, name: str, record: Record) -> ObjectInfo:
    return ObjectInfo(
        bucket, name, record.size_bytes, str(record.version), record.checksum, record.modified_ns, record.metadata
    )
