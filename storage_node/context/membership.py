"""Membership of one node: the newest committed map that it knows, its place in it, and the leases on map versions.

A node reports the oldest map version under which it still has operations running (`MapLease`).

Operations that began under an older map may still run when a node knows a newer one: the removal of replicas that
others own, and writes about to be committed to the former owners. Until they end, the old version is reported to other
nodes. Two properties depend on it.

**No replica is removed on the word of a node that may lose its own.** A node removes a replica that it does not own
once all owners have reported that they have the object. Under two maps, two nodes could each rely on the other's
replica and both remove theirs. Therefore an answer about replicas carries this version, noted before the node looks,
and counts only if it equals the version under which the removal is decided. This is sufficient. Say that X removes a
replica under map v and relies on Y, an owner under v. Y answered under v, so it no longer removes anything under an
older map, and under v it keeps what it owns. It can lose its replica only under a later map w, after all owners under w
have answered under w. If X is one of them, it answered after its removal under v had ended, and so without the replica
that it removed. Hence after every removal, the owners under its map have the object, until a later removal for which
the same holds.

**No change of the map finishes before every object is in its place.** A repair pass counts as clean only if all nodes
acted under the map when it began. Whatever reaches a leaving node arrives before that, and is found.
Thread-safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb

RECENT_MAPS = 8


class Membership:
    """The map of one node; `view` is None while the node belongs to no cluster."""

    def __init__(self, node_uuid: bytes, view: ClusterView | None = None) -> None:
        self.node_uuid = node_uuid
        self.view = view
        """Replaced, never modified: read it once and use that value throughout."""
        self.recent: tuple[pb.ClusterMap, ...] = ()
        """The latest maps before it, from which changes are sent."""
        self.lease = MapLease(self)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[ClusterView], None]] = []
        self._followers: list[Callable[[], object]] = []

    @property
    def position(self) -> int | None:
        """This node's index in the map; None if it is not in the map."""
        view = self.view
        return None if view is None else view.position.get(self.node_uuid)

    @property
    def map_version(self) -> int:
        """Version of the newest map known here; 0 without one."""
        view = self.view
        return view.version if view is not None else 0

    def placed(self, bucket: str) -> tuple[ClusterView, pb.MapBucket] | None:
        """Return the map, and the bucket in it; None without a cluster that has the bucket."""
        view = self.view
        found = view.buckets.get(bucket) if view is not None else None
        return None if view is None or found is None else (view, found)

    def is_owner(self, bucket_uuid: bytes, name: str) -> bool:
        """Whether this node surely knows the newest version, by the newest map. A former owner may not have been told
        of later writes, nor a new owner of earlier ones."""
        view, position = self.view, self.position
        bucket = view.bucket_with_uuid(bucket_uuid) if view is not None else None
        return view is None or bucket is None or position in view.sure_owners(bucket, name)

    def is_holder(self, bucket_uuid: bytes, name: str) -> bool:
        """Whether this node is an owner, or was one before the last change of the map."""
        view, position = self.view, self.position
        bucket = view.bucket_with_uuid(bucket_uuid) if view is not None else None
        return view is None or bucket is None or position in view.holders(bucket, [name])[0]

    def learn(self, map_: pb.ClusterMap) -> int:
        """Use a committed map if it is newer; return the version that is known then. Raises ValueError."""
        view = ClusterView(map_, self.view)
        with self._lock:
            if self.view is not None and view.map.cluster_uuid != self.view.map.cluster_uuid:
                raise ValueError("the map of another cluster")
            if self.view is None or view.version > self.view.version:
                # Listeners run first, so that whoever sees the new map finds its buckets.
                for listener in self._listeners:
                    listener(view)
                if self.view is not None:
                    self.recent = (*self.recent[1 - RECENT_MAPS :], self.view.map)
                self.view = view
                for follower in self._followers:
                    follower()
            return self.view.version

    def on_change(self, listener: Callable[[ClusterView], None]) -> None:
        """Call `listener` with every new map, one at a time, before it is used. An error of a listener refuses the map.

        Listeners run in the order in which they were added, none after one that failed.
        """
        self._listeners.append(listener)

    def on_use(self, follower: Callable[[], object]) -> None:
        """Call `follower` from now on when a new map has come into use. It must not raise."""
        self._followers.append(follower)


def reported_version(known: int, running: Iterable[int]) -> int:
    """Return the version to report for a node that knows map `known` and has operations under maps `running`."""
    return min([known, *running])


class MapLease:
    """Pins of map versions. Thread-safe: the map may change at any moment, and `begin` and `version` each see one state
    of it."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._lock = threading.Lock()
        self._pinned: Counter[int] = Counter()

    @property
    def version(self) -> int:
        """The version to note before looking at this node's replicas; 0 while it knows no map."""
        with self._lock:
            view = self._membership.view
            return reported_version(view.version if view is not None else 0, self._pinned)

    def begin(self, view: ClusterView) -> bool:
        """Pin this map if it is the newest one; return whether it is pinned. Call `end` if it is."""
        with self._lock:
            if self._membership.view is not view:
                return False
            self._pinned[view.version] += 1
            return True

    def hold(self, version: int) -> None:
        """Pin a map version, older or not, before checking whether an operation of that map may go on. Call `end`
        afterwards."""
        with self._lock:
            self._pinned[version] += 1

    def end(self, version: int) -> None:
        with self._lock:
            self._pinned[version] -= 1
            if not self._pinned[version]:
                del self._pinned[version]
