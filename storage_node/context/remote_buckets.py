"""Remote buckets of a node: looked up by name, in the cluster's map or in the store's record.

A call looks its bucket up once, and enters `storage_node.remote` only if the bucket is a remote one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ais_loader.errors import InvalidRequest, Unsupported
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.remote import Remote
from storage_node.context.membership import Membership
from storage_node.store.store import Store


class RemoteBucket(NamedTuple):
    name: str
    uuid: bytes
    remote: Remote

    @property
    def validates(self) -> bool:
        """Whether copies may have to be validated before they are read."""
        return not math.isinf(self.remote.validate_after_s)

    def require_writable(self) -> None:
        """Raise Unsupported if nothing can be put to the remote storage."""
        if not self.remote.is_writable:
            raise Unsupported(f"bucket {self.name!r} is read-only: nothing can be written to {self.remote.url}")


class RemoteBuckets:
    """Looked up for every batch, so the remotes of a map are decoded once. Thread-safe."""

    def __init__(self, store: Store, membership: Membership) -> None:
        self._store = store
        self._membership = membership
        self._of_map: tuple[ClusterView | None, dict[str, RemoteBucket]] = None, {}

    def find(self, name: str) -> RemoteBucket | None:
        """Return the remote bucket of this name; None for any other bucket, and for a snapshot."""
        if (in_map := self._in_map()) is not None:
            return in_map.get(name)
        record = self._store.record.current.buckets.get(name)
        if record is None or record.remote is None:
            return None
        return RemoteBucket(name, record.uuid_bytes, record.remote)

    def of(self, names: Iterable[str]) -> Sequence[RemoteBucket | None]:
        """Call `find` for several names. Empty if none of them is a remote bucket."""
        found = list(map(self.find, names))
        return found if any(found) else ()

    def require(self, name: str) -> RemoteBucket:
        """Return the remote bucket of this name. Raises BucketNotFound, InvalidRequest for any other bucket."""
        bucket = self.find(name)
        if bucket is None:
            self._store.bucket(name)
            raise InvalidRequest(f"bucket {name!r} has no remote storage; `Bucket.set(remote=...)` gives it one")
        return bucket

    def all(self) -> list[RemoteBucket]:
        if (in_map := self._in_map()) is not None:
            return list(in_map.values())
        found = map(self.find, list(self._store.record.current.buckets))
        return [bucket for bucket in found if bucket is not None]

    def _in_map(self) -> dict[str, RemoteBucket] | None:
        """Return the remote buckets of a cluster; None if there is none."""
        view = self._membership.view
        if view is None:
            return None
        known, found = self._of_map
        if known is not view:
            found = _of(view)
            self._of_map = view, found
        return found


def _of(view: ClusterView) -> dict[str, RemoteBucket]:
    found = {}
    for bucket in view.special:
        if bucket.HasField("remote"):
            try:
                found[bucket.name] = RemoteBucket(bucket.name, bucket.uuid, Remote.from_wire(bucket.remote))
            except InvalidRequest:  # of a later version of this package: without it, stored objects can be read
                continue
    return found
