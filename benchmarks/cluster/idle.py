"""Processor time of nodes that do nothing: a node alone, and the nodes of clusters of two and of three.

This isolates what it costs to keep nodes running. They hold a thousand small objects, and no client is connected. What
is left are the renewals of read leases, the looks for drives that are gone, a pass of repair a minute, and the timers
of gRPC. The times to notice a lost peer, a drive and a revoked token are those of before, which tests check.

Prediction, written before the first run: where background work polled, a node alone takes 0.4 % of a core, and one of
three 1.3 %. Where it waits for events, a node alone takes a fifth of that (two wake-ups a second are left, to look for
its drives), and one of three a quarter (a third of the renewals, and no polls of the map). One of two has no leases and
polls the map: it takes 0.2 %.

    python -m benchmarks.cluster.idle  # a minute; writes the table beside this file
    python -m benchmarks.cluster.idle --seconds 10 --no-write
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
import psutil

import ais_loader
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import conclude, page
from tests.cluster_processes import ClusterProcesses

TABLE = Path(__file__).with_suffix(".md")
BUCKET, OBJECTS, SIZE_BYTES = "b", 1000, 1 << 10
SETTLE_S = 15.0
"""Time for the first passes of repair, and for what the nodes have to do because objects were put."""
ALONE, OF_TWO, OF_THREE = "a node alone", "one of a cluster of two", "one of a cluster of three"
LIMITS_PERCENT = {ALONE: 0.3, OF_TWO: 0.5, OF_THREE: 0.5}


class Cost(NamedTuple):
    percent: float
    """Processor time, as a part of one core."""
    wakeups: float
    """Times a second that a thread went on after a wait."""


BEFORE = {ALONE: Cost(0.50, 51), OF_TWO: Cost(0.70, 89), OF_THREE: Cost(1.57, 200)}
"""Mean over the nodes, by this benchmark, of the version in which background work polled."""


class Meter:
    """Processor time and wake-ups of a process since the meter was made."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._began_s = time.monotonic()
        self._cpu_s, self._waits = self._cpu(), self._voluntary_waits()

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def _voluntary_waits(self) -> dict[str, int]:
        """Number of waits by thread. Those that end meanwhile are not counted."""
        waits = {}
        for status in Path(f"/proc/{self._process.pid}/task").glob("*/status"):
            rows = dict(line.split(":", 1) for line in status.read_text().splitlines())
            waits[rows["Pid"]] = int(rows["voluntary_ctxt_switches"])
        return waits

    def read(self) -> Cost:
        for_s = time.monotonic() - self._began_s
        waits = sum(count - self._waits.get(thread, 0) for thread, count in self._voluntary_waits().items())
        return Cost(100 * (self._cpu() - self._cpu_s) / for_s, waits / for_s)


def measure(seconds: float) -> dict[str, list[Cost]]:
    """Cost of each node of each setting, all at the same time."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        root = Path(folder)
        alone = held.enter_context(NodeProcess(root / "one"))
        two = held.enter_context(ClusterProcesses(root / "two", 2, buckets={BUCKET: 2}))
        three = held.enter_context(ClusterProcesses(root / "three", 3, buckets={BUCKET: 2}))
        for url in (alone.url, two.url, three.url):
            with ais_loader.connect(url) as client:
                bucket = client.create_bucket(BUCKET, exist_ok=True)
                bucket.put_many((f"{number:04d}", bytes(SIZE_BYTES)) for number in range(OBJECTS))
        time.sleep(SETTLE_S)
        nodes = {ALONE: [alone], OF_TWO: two.nodes, OF_THREE: three.nodes}
        meters = {name: [Meter(node.pid) for node in some] for name, some in nodes.items()}
        time.sleep(seconds)
        return {name: [one.read() for one in some] for name, some in meters.items()}


def mean(costs: Sequence[Cost]) -> Cost:
    return Cost(*(sum(column) / len(costs) for column in zip(*costs, strict=True)))


def table(costs: Mapping[str, Sequence[Cost]]) -> str:
    """Mean and range over the nodes, as Markdown."""
    lines = [
        "| | processor time, % of a core | range | limit | before | wake-ups a second | before |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, some in costs.items():
        percent = [one.percent for one in some]
        now, before = mean(some), BEFORE.get(name)
        was_percent, was_wakeups = ("–", "–") if before is None else (f"{before.percent:.2f}", f"{before.wakeups:.0f}")
        lines.append(
            f"| {name} | **{now.percent:.2f}** | {min(percent):.2f} – {max(percent):.2f} | {LIMITS_PERCENT[name]:g} "
            f"| {was_percent} | {now.wakeups:.0f} | {was_wakeups} |"
        )
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--seconds", default=60.0, show_default=True, help="Time over which the nodes are measured.")
@click.option("--write/--no-write", default=True, show_default=True, help="Whether to write the table.")
def main(seconds: float, write: bool) -> None:
    costs = measure(seconds)
    setting = f"All nodes at once, {seconds:g} s; wake-ups are those of all threads of a node."
    text = page("Idle nodes", __doc__ or "", setting, table(costs)) + "\n"
    click.echo(text)
    conclude(
        text,
        TABLE if write else None,
        reached=all(mean(some).percent <= LIMITS_PERCENT[name] for name, some in costs.items()),
    )


if __name__ == "__main__":
    main()
