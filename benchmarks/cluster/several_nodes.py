"""GetBatch over three nodes against one, on the same cores: direct assembly, designated target, and their latency.

Isolates what it costs to gather a batch from several nodes: the same objects, once on one node and once spread over
three, read by the same client processes. "direct" has the client merge the owners' answers, "target" has one node do
it. All of them share this machine's cores, so nothing is gained here by more nodes; on machines of their own, it is.

    python -m benchmarks.cluster.several_nodes  # 10 KiB, 100 KiB, 1 MiB; writes the table beside this file
    python -m benchmarks.cluster.several_nodes --sizes 10240 --rounds 3 --no-write
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

import ais_loader
from ais_loader.bench.crew import prepare
from ais_loader.testing import NodeProcess
from benchmarks.cluster.assembly import grid_table, latencies
from benchmarks.kit.harness import Claim, SizeReport, by_size, load, run_rounds
from benchmarks.kit.load import Clients, Load
from tests.cluster_processes import ClusterProcesses

BATCH = 128
CLIENTS = 4
IN_FLIGHT = 3
NODES = 3
TABLE = Path(__file__).with_suffix(".md")
COUNTS = {10 << 10: 12_000, 100 << 10: 6_000, 1 << 20: 1_500}

ONE = f"1 node, ×{BATCH}"
DIRECT = f"{NODES} nodes, direct, ×{BATCH}"
TARGET = f"{NODES} nodes, target, ×{BATCH}"


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> tuple[str, str, dict[str, list[float]]]:
    """The table of latencies, that of entries per owner, and objects per second of each way in each round."""
    with ExitStack() as held:
        node = held.enter_context(NodeProcess(folder / "one"))
        cluster = held.enter_context(ClusterProcesses(folder / "three", NODES))
        clients = held.enter_context(Clients(CLIENTS))
        one = Load(
            url=node.url, objects=count, size=str(size_bytes), batch=BATCH, in_flight=IN_FLIGHT, processes=CLIENTS
        )
        several = replace(one, url=cluster.url)
        for way in (one, several):
            with ais_loader.connect(way.url) as client:
                prepare(client, way)
        ways = {ONE: one} | {
            way: replace(several, assembly=mode) for way, mode in ((DIRECT, "direct"), (TARGET, "target"))
        }
        contestants = {way: partial(clients.rate, load) for way, load in ways.items()}
        for work in contestants.values():  # connections, caches
            work()
        rates = run_rounds(contestants, rounds)
        gets = {"1 node, single GET": one, f"{NODES} nodes, single GET": several}
        gets = {way: replace(load, workload="get") for way, load in gets.items()}
        return latency_table((ways, gets), rounds), grid_table(several, clients, NODES, rounds), rates


def latency_table(kinds: Sequence[Mapping[str, Load]], rounds: int) -> str:
    """One call at a time, over three nodes and over one, as Markdown."""
    lines = ["| one at a time | P50 ms | P99 ms | against 1 node, P50 | P99 |", "|---|---:|---:|---:|---:|"]
    for ways in kinds:
        found = latencies(ways, rounds)
        base_p50, base_p99 = next(iter(found.values()))
        for way, (p50, p99) in found.items():
            lines.append(f"| {way} | {p50:.2f} | {p99:.2f} | {p50 / base_p50:.2f}× | {p99 / base_p99:.2f}× |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400,1048576", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, write: bool) -> None:
    setting = f"{rounds} rounds; {CLIENTS} client processes, {IN_FLIGHT} batches in flight each."
    report = SizeReport("GetBatch over several nodes", __doc__ or "", setting)
    for size_bytes, count, folder in by_size(sizes, COUNTS, 2_000):
        latency, grid, rates = measure(size_bytes, count, rounds, folder)
        claims = [Claim(DIRECT, ONE, 0.6), Claim(TARGET, ONE, 0.4)] if size_bytes == 10 << 10 else []
        claims = claims or [Claim(DIRECT, ONE, 0.0), Claim(TARGET, ONE, 0.0)]
        report.add_size(size_bytes, count, rates, claims, latency, grid, f"Afterwards: {load()}.")
    report.conclude(TABLE if write else None)


if __name__ == "__main__":
    main()
