"""Node waits: how long an answer waited on its nodes, and for what, so that a slow batch leads to its cause.

A node measures its own waits and sends them with END. Whoever merges the answers of several nodes waits for the node
whose entry is due. The merged answer has the waits of the node that was waited for the longest: other nodes were
faster, and their waits delayed nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal, TypeAlias

from ais_loader.wire.generated import ais_batch_pb2 as pb

Wait: TypeAlias = Literal["queue", "drive", "peer", "cloud", "throttle"]
_LEAST_S = 0.001
WAITS: tuple[Wait, ...] = ("queue", "drive", "peer", "cloud", "throttle")


@dataclass(slots=True)
class NodeWaits:
    """Waits of one answer, in seconds. Belongs to one thread at a time."""

    spent_s: dict[Wait, float] = field(default_factory=lambda: dict.fromkeys(WAITS, 0.0))
    """queue: for a turn, a thread, or while the node is overloaded. drive: look-ups and reads. peer: for other nodes.
    cloud: for remote storage. throttle: for remote storage that asks for fewer requests."""
    node: str = ""
    """Node that was waited for the longest; "" if only one was asked."""
    wait_us: int = 0
    """Expected wait of the next read; see `End` in ais_batch.proto."""

    def waiting(self, what: Wait) -> _Waiting:
        """Return a context whose time is attributed to `what`, but for what is attributed meanwhile."""
        return _Waiting(self.spent_s, what)

    def add(self, told: pb.NodeWaits) -> None:
        """Add what a node says."""
        for what in WAITS:
            self.spent_s[what] += getattr(told, f"{what}_us") * 1e-6
        self.node = told.node or self.node

    def add_all(self, other: NodeWaits) -> None:
        for what, spent_s in other.spent_s.items():
            self.spent_s[what] += spent_s
        self.node = other.node or self.node

    def message(self) -> pb.NodeWaits | None:
        """Return the waits for END; None if there was none worth telling."""
        if sum(self.spent_s.values()) < _LEAST_S:
            return None
        told = {f"{what}_us": min(int(spent_s * 1e6), 0xFFFF_FFFF) for what, spent_s in self.spent_s.items()}
        return pb.NodeWaits(node=self.node, **told)


class _Waiting:
    __slots__ = ("_before_s", "_began_s", "_spent_s", "_what")

    def __init__(self, spent_s: dict[Wait, float], what: Wait) -> None:
        self._spent_s, self._what = spent_s, what

    def __enter__(self) -> None:
        self._before_s, self._began_s = sum(self._spent_s.values()), perf_counter()

    def __exit__(self, *_: object) -> None:
        took_s = perf_counter() - self._began_s
        self._spent_s[self._what] += max(0.0, took_s - (sum(self._spent_s.values()) - self._before_s))


class MergedWaits:
    """Waits of an answer that several nodes give, by node. Belongs to one thread."""

    def __init__(self) -> None:
        self._waited_s: dict[str, float] = {}
        self._told: dict[str, NodeWaits] = {}

    def waited(self, node: str, waited_s: float) -> None:
        """Note a wait for an entry that this node owes, and that is due."""
        self._waited_s[node] = self._waited_s.get(node, 0.0) + waited_s

    def ended(self, node: str, end: pb.End) -> None:
        """Note what a node says of its own waits."""
        if end.HasField("waits"):
            self._told.setdefault(node, NodeWaits()).add(end.waits)

    def add_to(self, waits: NodeWaits) -> None:
        """Add the waits of the node that was waited for the longest. What it does not explain itself counts as
        "peer"."""
        if not self._waited_s:
            return
        node = max(self._waited_s, key=self._waited_s.__getitem__)
        left_s = self._waited_s[node]
        for what, spent_s in self._told.get(node, NodeWaits()).spent_s.items():
            part_s = min(spent_s, left_s)
            waits.spent_s[what] += part_s
            left_s -= part_s
        waits.spent_s["peer"] += left_s
        waits.node = node
