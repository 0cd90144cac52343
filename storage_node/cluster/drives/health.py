"""Drive health policy: when a drive has failed too often, and when it may be given up. Pure, without I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ais_loader.wire.cluster_map import ClusterView, sure_copies
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire

STUCK_S = 15.0
"""RocksDB looks for free space every five seconds; after this time it has long done so."""
ROOM_BYTES = 64 << 20
"""More than a catalog needs to open and to write its memtables."""


class ErrorWindow:
    """Recent I/O errors of one drive.

    Args:
        limit: number of errors within the window that is too many.
        window_s: how long an error counts.
    """

    def __init__(self, limit: int, window_s: float, *, total: int = 0) -> None:
        self._limit = limit
        self._window_s = window_s
        self._total = total
        self._recent: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, total: int) -> bool:
        """Update with the drive's total, which only grows; return whether it has failed too often."""
        if total > self._total:
            self._recent.append((now_s, total - self._total))
            self._total = total
        return self.recent(now_s) >= self._limit

    def recent(self, now_s: float) -> int:
        while self._recent and self._recent[0][0] <= now_s - self._window_s:
            self._recent.popleft()
        return sum(count for _, count in self._recent)


@dataclass(slots=True)
class RoomWatch:
    """Detects a catalog that still refuses writes for lack of space although there is some.

    RocksDB checks again after seconds of wall-clock time; if the clock was set back, that can take hours.
    """

    since_s: float | None = None
    """Since when there is space again."""

    def is_stuck(self, refused_s: float | None, *, has_room: bool) -> bool:
        """Return whether the catalog is stuck. `refused_s` is when it last refused a write with none accepted since;
        None if it accepts writes."""
        if refused_s is None or not has_room:
            self.since_s = None
            return False
        self.since_s = refused_s if self.since_s is None else self.since_s
        return refused_s - self.since_s >= STUCK_S


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The reports of another node of the map; None for those it did not answer."""

    endpoint: str
    drives: pb.ListDrivesResponse | None
    progress: wire.ProgressResponse | None


def why_groups_need(
    view: ClusterView, node_uuid: bytes, away_s: float, found: Mapping[str, wire.CodingProgress]
) -> str:
    """Return why a drive of this node that has been away for so long must not be given up for the groups of coded
    objects that it may have fragments of; empty if it may be.

    It may be if all nodes have looked at their groups since, each can be read without it, and none lacks fragments of
    another node: those are written again first.

    Args:
        found: by endpoint, from each node of the map that answers.
    """
    for node in view.nodes if any(bucket.coded_of for bucket in view.buckets.values()) else ():
        coding = found.get(node.peer_endpoint)
        if coding is None or not coding.HasField("looked_s_ago") or coding.looked_s_ago >= away_s:
            return (
                f"{node.peer_endpoint} has not looked at its groups of coded objects since; it does so every "
                "repair_interval_s"
            )
        if coding.unsafe_groups:
            return (
                f"{coding.unsafe_groups} groups of {node.peer_endpoint} have fewer fragments on other drives than it "
                "takes to read them"
            )
        if short := sum(count for uuid, count in coding.lacking.items() if uuid != node_uuid.hex()):
            return f"{short} groups of {node.peer_endpoint} still lack fragments of other nodes"
    return ""


_USED = (pb.DriveCondition.ACTIVE, pb.DriveCondition.RETIRING, pb.DriveCondition.FAILING)


def why_kept(view: ClusterView | None, neighbours: Sequence[Neighbour], own_buckets: Collection[str]) -> str:
    """Return why a broken drive of this node must not be given up; empty if it may be.

    It may be if another replica of everything that can have been on it is known to be on a working node.

    Args:
        view: the map; None if the node is in none.
        neighbours: all other nodes of the map.
        own_buckets: buckets that the node has outside the map, and so nowhere else.
    """
    if view is None or len(view.nodes) < 2:
        return "this node is in no cluster: what is on the drive is nowhere else"
    if own_buckets:
        return f"bucket {min(own_buckets)!r} is this node's alone: what is on the drive of it is nowhere else"
    hosts = len({node.host for node in view.nodes})
    single = sorted(
        bucket.name
        for bucket in view.buckets.values()
        if min(sure_copies(bucket), hosts) < 2 and not bucket.coded_of  # a lost fragment is decoded from the others
    )
    if single:
        return f"bucket {single[0]!r} keeps one copy of each object: what is on the drive of it is nowhere else"
    for node in neighbours:
        if node.drives is None or node.progress is None:
            return f"{node.endpoint} does not answer: it may have the only other copies"
        broken = [drive.path or drive.uuid for drive in node.drives.drive if drive.state not in _USED]
        if broken:
            return f"{node.endpoint} does without its drive {broken[0]}, which may have the only other copies"
        if node.drives.refilling or node.progress.doubtful_bucket or node.progress.doubtful_names:
            return f"{node.endpoint} is still bringing its own copies up to date"
    return ""
