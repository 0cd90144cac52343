"""Stale replicas: copies that may be old, because this node was away or was told of a write that it took no part in.

Reads of them are refused, so that whoever asks goes on to another copy; writes are not, since a newer version ends the
doubt. A name is in doubt until the store has at least the version that is said to exist, a whole bucket until somebody
has compared it with its other copies. After a drive was given up, what the store has is as good as ever, but that it
lacks a name means nothing until the bucket has been compared. Nothing of all this is kept on the drives: a node that
starts doubts whole buckets.

Thread-safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ais_loader.errors import NodeUnavailable
from storage_node.store.format import Version


class ReplicaStale(NodeUnavailable):
    """Another node may have a newer version; ask there, or again in a moment."""


class StaleName(NamedTuple):
    version: Version
    """That some node has, or is about to have."""
    since_s: float
    """On the monotonic clock."""


class StaleReplicas:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buckets: frozenset[bytes] = frozenset()
        self._gaps: frozenset[bytes] = frozenset()
        self._names: dict[bytes, dict[str, StaleName]] = {}
        self._guarded: frozenset[bytes] = frozenset()
        self._awake_until_s = float("inf")
        self._any = False

    @property
    def any(self) -> bool:
        """Whether there is anything to ask for."""
        return self._any or time.monotonic() > self._awake_until_s

    # -- asked by readers

    def whole(self, bucket_uuid: bytes) -> bool:
        return bucket_uuid in self._buckets or (time.monotonic() > self._awake_until_s and bucket_uuid in self._guarded)

    def gaps(self, bucket_uuid: bytes) -> bool:
        """Whether names that the store lacks may be on other nodes all the same."""
        return bucket_uuid in self._gaps

    def wanted(self, bucket_uuid: bytes, name: str) -> Version | None:
        """The version that has to be there for the name to be read; None when any may be."""
        names = self._names.get(bucket_uuid)
        doubt = names.get(name) if names else None
        return None if doubt is None else doubt.version

    # -- told by repair

    def mark_buckets(self, bucket_uuids: Iterable[bytes]) -> None:
        with self._lock:
            self._buckets |= frozenset(bucket_uuids)
            self._note()

    def trust_bucket(self, bucket_uuid: bytes) -> None:
        """But for the names in doubt."""
        with self._lock:
            self._buckets -= {bucket_uuid}
            self._note()

    def mark_gaps(self, bucket_uuids: Iterable[bytes]) -> None:
        with self._lock:
            self._gaps |= frozenset(bucket_uuids)
            self._note()

    def trust_gaps(self, bucket_uuid: bytes) -> None:
        with self._lock:
            self._gaps -= {bucket_uuid}
            self._note()

    def mark_names(self, bucket_uuid: bytes, names: Mapping[str, Version]) -> None:
        now = time.monotonic()
        with self._lock:
            known = self._names.setdefault(bucket_uuid, {})
            for name, version in names.items():
                before = known.get(name)
                if before is None or before.version < version:
                    known[name] = StaleName(version, now)
            self._note()

    def trust_name(self, bucket_uuid: bytes, name: str, version: Version) -> None:
        """The store has this version, or it never came to be; a doubt about a higher one stays."""
        with self._lock:
            names = self._names.get(bucket_uuid)
            if names is not None and (found := names.get(name)) is not None and found.version <= version:
                del names[name]
                if not names:
                    del self._names[bucket_uuid]
            self._note()

    def awake(self, for_s: float, guarded: Iterable[bytes]) -> bool:
        """Say that this process runs, and will say so again within `for_s`; whether it has kept the last promise.

        A process that was stopped for longer missed what others did in the meantime: until it says that it is awake,
        `guarded` buckets are in doubt.
        """
        now = time.monotonic()
        with self._lock:
            kept = now <= self._awake_until_s
            self._guarded = frozenset(guarded)
            if not kept:
                self._buckets |= self._guarded
                self._note()
            self._awake_until_s = now + for_s
        return kept

    def forget_bucket(self, bucket_uuid: bytes) -> None:
        """It has been deleted."""
        with self._lock:
            self._buckets -= {bucket_uuid}
            self._gaps -= {bucket_uuid}
            self._names.pop(bucket_uuid, None)
            self._note()

    def buckets(self) -> frozenset[bytes]:
        return self._buckets

    def buckets_with_gaps(self) -> frozenset[bytes]:
        return self._gaps

    def names(self, bucket_uuid: bytes) -> dict[str, StaleName]:
        with self._lock:
            return dict(self._names.get(bucket_uuid, {}))

    def count(self) -> int:
        with self._lock:
            return sum(map(len, self._names.values()))

    def bucket_uuids(self) -> set[bytes]:
        """Of all buckets of which anything is in doubt."""
        with self._lock:
            return {*self._buckets, *self._gaps, *self._names}

    def _note(self) -> None:
        self._any = bool(self._buckets or self._gaps or self._names)


def stale_message(name: str) -> str:
    return f"{name!r}: this copy may be old, and is not read before it has been compared with the others"
