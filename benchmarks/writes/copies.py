"""PUT by number of copies: processor time of all nodes for an object of 1 KiB, on a node alone and on three nodes.

This isolates what replication costs: each PUT is one call by lane, one at a time, and its replicas are staged and
committed on the owners. The client's processor time is not counted, and neither is what the nodes take when idle.

Where replicas went over gRPC, a PUT with two copies took 6.2 ms of the three nodes, with one copy 2.0, and to a node
alone 0.5, with files on ext4. Each replica on another node was a stream of its own, with two messages each way. Threads
of nodes went on after a wait 83 times for a PUT with two copies, and 16 times with one. Prediction for replicas by
lane, written before it was measured: 3.7 ms with two copies, 1.6 times less, and nothing saved with one copy. The
nodes' files are in memory since: to make a file on ext4 took up to 1 ms more, depending on what else the machine did,
which says nothing of replicas.

"before" in the table is the tree that sent replicas over gRPC. With objects of 1 MiB, of which 40 were put in each of
four rounds, before ÷ now was 1.62 with two copies (1.45 – 1.77), and 1.00 for a node alone. What is left with one copy,
beside a node alone, are three visits to threads instead of one, and the steps of a commit in the event loop.

    python -m benchmarks.writes.copies  # writes the table beside this file
    python -m benchmarks.writes.copies --rounds 3 --no-write --before /tmp/tree  # with nodes of another tree's code
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import click

import ais_loader
from ais_loader import Bucket
from ais_loader.testing import NodeProcess, throwaway_folder
from benchmarks.kit.harness import page, run_rounds
from benchmarks.report.two_trees import processor_clock
from tests.cluster_processes import ClusterProcesses, ProcessPlace

TABLE = Path(__file__).with_suffix(".md")
NODES, PUTS, SIZE_BYTES, SETTLE_S, REST_S = 3, 250, 1 << 10, 5.0, 3.0
ALONE, COPIES = "a node alone", (1, 2, 3)


class Cost(NamedTuple):
    """Means of one PUT."""

    nodes_s: float
    waits: float
    """Number of times that a thread of a node went on after a wait."""


class Meter:
    """Processor time and waits of some processes together."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids, self._clocks = pids, [processor_clock(pid) for pid in pids]
        self._at_rest = Cost(0.0, 0.0)

    def _read(self) -> Cost:
        waits = 0
        for status in (status for pid in self._pids for status in Path(f"/proc/{pid}/task").glob("*/status")):
            rows = dict(line.split(":", 1) for line in status.read_text().splitlines())
            waits += int(rows["voluntary_ctxt_switches"])
        return Cost(sum(clock() for clock in self._clocks), waits)

    def _spent(self, work: Callable[[], object]) -> tuple[Cost, float]:
        before, began_s = self._read(), time.monotonic()
        work()
        after = self._read()
        return Cost(after.nodes_s - before.nodes_s, after.waits - before.waits), time.monotonic() - began_s

    def rest(self) -> None:
        spent, for_s = self._spent(lambda: time.sleep(REST_S))
        self._at_rest = Cost(*(one / for_s for one in spent))

    def of(self, work: Callable[[], object], times: int) -> Cost:
        """Cost of a part of `work`, without that of nodes at rest."""
        spent, for_s = self._spent(work)
        return Cost(*((one - rest * for_s) / times for one, rest in zip(spent, self._at_rest, strict=True)))


def put(bucket: Bucket, names: Iterator[int]) -> None:
    for _, name in zip(range(PUTS), names, strict=False):
        bucket.put(f"{name:08}", bytes(SIZE_BYTES))


def contestants(folder: Path, tree: Path | None, held: ExitStack) -> dict[str, Callable[[], Cost]]:
    """Return the kinds of PUTs to nodes of one tree, by name."""
    launcher = () if tree is None else ("env", "-C", str(tree), f"PYTHONPATH={tree}")
    alone = held.enter_context(NodeProcess(folder / "alone", launcher=launcher))
    places = [ProcessPlace(launcher=launcher)] * NODES
    buckets = {f"b{copies}": copies for copies in COPIES}
    cluster = held.enter_context(ClusterProcesses(folder / "cluster", NODES, buckets=buckets, places=places))
    first = held.enter_context(ais_loader.connect(alone.url)).create_bucket("b")
    client = held.enter_context(ais_loader.connect(cluster.url))
    of_one, of_all = Meter([alone.pid]), Meter([node.pid for node in cluster.nodes])
    kinds = {ALONE: (of_one, first)}
    kinds |= {f"{copies} of {NODES} nodes": (of_all, client.bucket(f"b{copies}")) for copies in COPIES}
    found = {}
    for name, (meter, bucket) in kinds.items():
        work = partial(put, bucket, count())
        work()  # connections and lanes are opened
        found[name] = partial(meter.of, work, PUTS)
    time.sleep(SETTLE_S)
    of_one.rest()
    of_all.rest()
    return found


def table(costs: dict[str, list[Cost]], with_before: bool) -> str:
    lines = ["| PUT of 1 KiB | nodes, µs | range | ÷ alone | waits |", "|---|---:|---:|---:|---:|"]
    if with_before:
        lines = [
            "| PUT of 1 KiB | nodes, µs | range | ÷ alone | waits | before ÷ now | range |",
            lines[1] + "---:|---:|",
        ]
    for name, rounds in costs.items():
        times = [one.nodes_s * 1e6 for one in rounds]
        to_alone = statistics.median(a.nodes_s / b.nodes_s for a, b in zip(rounds, costs[_alone(name)], strict=True))
        line = (
            f"| {name} | **{statistics.median(times):,.0f}** | {min(times):,.0f} – {max(times):,.0f} "
            f"| {to_alone:.2f} | {statistics.median(one.waits for one in rounds):.0f} |"
        )
        if with_before:
            ratios = [a.nodes_s / b.nodes_s for a, b in zip(costs.get(f"{name}{BEFORE}", []), rounds, strict=False)]
            line += (
                f" **{statistics.median(ratios):.2f}** | {min(ratios):.2f} – {max(ratios):.2f} |" if ratios else " | |"
            )
        lines.append(line)
    return "\n".join(lines)


BEFORE = ", before"


def _alone(name: str) -> str:
    return ALONE + (BEFORE if name.endswith(BEFORE) else "")


@click.command(help=__doc__)
@click.option("--rounds", default=7, show_default=True)
@click.option("--before", type=click.Path(path_type=Path, exists=True), help="A tree of earlier code to compare with.")
@click.option("--write/--no-write", default=True, show_default=True, help="Whether to write the table.")
def main(rounds: int, before: Path | None, write: bool) -> None:
    with throwaway_folder() as folder, ExitStack() as held:
        kinds = contestants(Path(folder) / "now", None, held)
        if before is not None:
            old = contestants(Path(folder) / "before", before.resolve(), held)
            pairs = [(name, name + BEFORE) for name in kinds]
            kinds |= {f"{name}{BEFORE}": work for name, work in old.items()}
            kinds = {name: kinds[name] for pair in pairs for name in pair}
        costs = run_rounds(kinds, rounds)
    setting = f"{rounds} rounds of {PUTS} PUTs, in which all take turns; medians, and each ratio within a round."
    text = page("PUT by copies", __doc__ or "", setting, table(costs, before is not None)) + "\n"
    click.echo(text)
    if write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
