"""Eviction: removal of stored copies of remote objects, which leaves no tombstones: they can be fetched again."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from ais_loader.errors import LoaderError
from ais_loader.name_matching import matcher
from storage_node.remote.archives.kept_indexes import KeptIndexes
from storage_node.remote.copies.object_metadata import is_copy
from storage_node.store.store import Store

_TOGETHER = 1000


def evict(
    store: Store, bucket: str, names: Sequence[str] | None, prefix: str, patterns: Sequence[str], kept: KeptIndexes
) -> tuple[int, int]:
    """Remove the copies of these names; if `names` is None, of all names with this prefix that match one of the shell
    patterns, if there are any. The indexes of archives are kept.

    Objects that are no copies, because they were put before the bucket was a remote one, stay. Returns the number of
    copies removed, and of their bytes. Waits for drives. Raises BucketNotFound, StoreReadOnly, DriveFailed.
    """
    bucket_uuid = store.bucket(bucket).uuid_bytes
    left: Iterable[str] = names if names is not None else (name for name, _ in store.objects(bucket, prefix))
    if patterns and names is None:
        left = filter(matcher(patterns), left)
    left, copies, freed_bytes = iter(left), 0, 0
    while group := list(itertools.islice(left, _TOGETHER)):
        sizes: dict[str, int] = {}
        for name in group:
            try:
                entry = store.head(bucket, name)
            except LoaderError:
                continue  # cold already, or unreadable
            if is_copy(entry.metadata):
                sizes[name] = entry.size_bytes
                kept.keep_stored(bucket_uuid, name, entry)
        for size_bytes, error in zip(
            sizes.values(), store.delete_many(bucket, list(sizes), copies_only=True), strict=True
        ):
            if error is None:
                copies += 1
                freed_bytes += size_bytes
    return copies, freed_bytes
