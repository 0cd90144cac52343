"""Clock check: whether a write can be ordered by the clocks of its participants. Does no I/O.

A node whose clock most others contradict coordinates no writes. If two nodes contradict each other and no third one can
decide, neither does. A wrong clock elsewhere blocks nobody: a node that is behind refuses the version itself, and the
clock of one that is ahead is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable

from ais_loader.errors import ClockOffset
from storage_node.cluster.replication.replica_set import ReplicaSelection
from storage_node.context.peer_clocks import PeerClocks, Verdict, judge


def check_clocks(clocks: PeerClocks, most_ms: int, writes: Iterable[ReplicaSelection]) -> list[ClockOffset | None]:
    """Return the clock error that blocks each of these writes, which this node coordinates; None where there is none.
    In order."""
    faults: list[ClockOffset | None] = []
    judged: tuple[object, dict[bytes, int], Verdict] | None = None
    for write in writes:
        view, position = write.replica_set.view, write.replica_set.position
        if judged is None or judged[0] is not view:
            offsets = clocks.offsets_ms({node.uuid for at, node in enumerate(view.nodes) if at != position})
            judged = view, offsets, judge(offsets, most_ms)
        _, offsets, verdict = judged
        asked = range(len(view.nodes)) if verdict.here else () if verdict.is_sure else write.taking
        odd = [at for at in asked if abs(offsets.get(view.nodes[at].uuid, 0)) > most_ms]
        if not odd:
            faults.append(None)
            continue
        node = view.nodes[odd[0]]
        why = clocks.describe(node.peer_endpoint, offsets[node.uuid], most_ms)
        faults.append(ClockOffset(f"{write.replica_set.bucket.name}/{write.name}: {why}; nothing was changed"))
    return faults
