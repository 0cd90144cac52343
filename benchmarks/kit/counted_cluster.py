"""Cluster whose costs are counted: processor time, bytes that nodes write to files, and bytes and packets they send.

Each node is a process on a machine of its own, made of this kernel's namespaces, so that its network card counts what
this node sends, to nodes and clients and with all headers. That needs Linux, root and the `ip` command.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import psutil

from ais_loader.errors import NodeUnavailable, OutcomeUnknown, SilenceTimeout
from tests.cluster_processes import ClusterProcesses
from tests.machines_kit import Machines


class Cost(NamedTuple):
    """Sums over all nodes, except for the client's processor time."""

    nodes_s: float
    client_s: float
    written_bytes: float
    sent_bytes: float
    packets: float
    wall_s: float


class CountedCluster(ClusterProcesses):
    """A context manager for a cluster of running nodes below `root`."""

    def __init__(self, root: Path, nodes: int, *, metrics: bool = False) -> None:
        if not Machines.possible():
            raise click.ClickException("a counted cluster needs Linux, root and the `ip` command")
        self._machines = Machines(nodes).__enter__()
        try:
            super().__init__(root, nodes, places=self._machines.places, metrics=metrics)
        except BaseException:
            self._machines.__exit__(None, None, None)
            raise

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._machines.__exit__(None, None, None)

    def count(self) -> Cost:
        """Count from the start of the nodes."""
        running = [node.pid for node in self.nodes if node.alive]
        times = [psutil.Process(pid).cpu_times() for pid in running]
        cards = [_card(pid) for pid in running]
        return Cost(
            sum(one.user + one.system for one in times),
            time.process_time(),
            sum(written_bytes(pid) for pid in running),
            sum(card[8] for card in cards),
            sum(card[9] for card in cards),
            time.monotonic(),
        )

    def cost(self, action: Callable[[], object], times: int = 1) -> Cost:
        """Return the mean cost of an action that is repeated so many times."""
        before = self.count()
        for _ in range(times):
            action()
        return Cost(*((now - then) / times for then, now in zip(before, self.count(), strict=True)))


def patiently(action: Callable[[], object]) -> None:
    """Run an action, again while nodes are out of touch: all of them share this machine, and others may use it too."""
    while True:
        try:
            action()
            return
        except (NodeUnavailable, OutcomeUnknown, SilenceTimeout):
            time.sleep(1.0)


def written_bytes(pid: int) -> int:
    """Return how many bytes a process has passed to write calls, without those to sockets."""
    rows = dict(row.split(": ") for row in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(rows["wchar"])


def _card(pid: int) -> Sequence[int]:
    """Return the counters of the network card of a process's machine, in the order of `/proc/net/dev`."""
    rows = Path(f"/proc/{pid}/net/dev").read_text().splitlines()
    (row,) = (row for row in rows if row.strip().startswith("eth0:"))
    return [int(number) for number in row.partition(":")[2].split()]
