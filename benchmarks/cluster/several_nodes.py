"""GetBatch over three nodes against one, on the same cores: direct assembly, designated target, and their latency.

Isolates what it costs to gather a batch from several nodes: the same objects, once on one node and once spread over
three, read by the same client processes. "direct" has the client merge the owners' answers, "target" has one node do
it. All of them share this machine's cores, so nothing is gained here by more nodes; on machines of their own, it is.

    python -m benchmarks.cluster.several_nodes  # 10 KiB, 100 KiB, 1 MiB; writes the table beside this file
    python -m benchmarks.cluster.several_nodes --sizes 10240 --rounds 3 --no-write
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

import ais_loader
from ais_loader.testing import NodeProcess
from ais_loader.testing.cluster import ClusterProcesses
from benchmarks.cluster.assembly import IN_FLIGHT, Latency, batch_latencies, get_latencies, grid_table
from benchmarks.kit.clients import BUCKET, Clients, object_names
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, load, machine, rates_table, run_rounds
from benchmarks.reads.getbatch import label

BATCH = 128
CLIENTS = 4
NODES = 3
TABLE = Path(__file__).with_suffix(".md")
COUNTS = {10 << 10: 12_000, 100 << 10: 6_000, 1 << 20: 1_500}

ONE = f"1 node, ×{BATCH}"
DIRECT = f"{NODES} nodes, direct, ×{BATCH}"
TARGET = f"{NODES} nodes, target, ×{BATCH}"


def put_all(client: ais_loader.Client, count: int, size_bytes: int) -> None:
    bucket = client.create_bucket(BUCKET, exist_ok=True)
    data = bytes(range(256)) * (size_bytes // 256)
    bucket.put_many((name, data) for name in object_names(count))


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> tuple[str, str, dict[str, list[float]]]:
    """The table of latencies, that of entries per owner, and objects per second of each way in each round."""
    names = object_names(count)
    shares = [names[part::CLIENTS] for part in range(CLIENTS)]
    with ExitStack() as held:
        node = held.enter_context(NodeProcess(folder / "one"))
        cluster = held.enter_context(ClusterProcesses(folder / "three", NODES))
        single = held.enter_context(ais_loader.connect(node.url))
        several = held.enter_context(ais_loader.connect(cluster.url))
        for client in (single, several):
            put_all(client, count, size_bytes)
        many = {ONE: held.enter_context(Clients(node.url, CLIENTS))}
        many[DIRECT] = many[TARGET] = held.enter_context(Clients(cluster.url, CLIENTS))
        seeds = iter(range(10**6))

        def by_batches(way: str, options: dict[str, object]) -> Callable[[], float]:
            def run() -> float:
                seed = next(seeds)
                work = [(part, BATCH, IN_FLIGHT, seed, options) for part in shares]
                return count / many[way].seconds("batches", work)

            return run

        contestants = {
            ONE: by_batches(ONE, {}),
            DIRECT: by_batches(DIRECT, {"assembly": "direct"}),
            TARGET: by_batches(TARGET, {"assembly": "target"}),
        }
        for work in contestants.values():  # connections, caches
            work()
        rates = run_rounds(contestants, rounds)
        latencies = latency_table(single, several, names, size_bytes, rounds)
        return latencies, grid_table(several, many[DIRECT], shares, size_bytes, NODES, rounds), rates


def latency_table(
    single: ais_loader.Client, several: ais_loader.Client, names: Sequence[str], size_bytes: int, rounds: int
) -> str:
    """One call at a time, over three nodes and over one, as Markdown."""
    most = max(10, min(100, (1 << 30) // (BATCH * size_bytes * rounds)))
    batch = Latency(
        {
            ONE: batch_latencies(single, names, BATCH, most),
            DIRECT: batch_latencies(several, names, BATCH, most, assembly="direct"),
            TARGET: batch_latencies(several, names, BATCH, most, assembly="target"),
        }
    )
    get = Latency(
        {
            "1 node, single GET": get_latencies(single, names, 300),
            f"{NODES} nodes, single GET": get_latencies(several, names, 300),
        }
    )
    lines = ["| one at a time | P50 ms | P99 ms | against 1 node, P50 | P99 |", "|---|---:|---:|---:|---:|"]
    for latency in (batch, get):
        latency.run(rounds)
        base = next(iter(latency.ways))
        for way in latency.ways:
            p50, p99 = latency.milliseconds(way, 0.5), latency.milliseconds(way, 0.99)
            lines.append(
                f"| {way} | {p50:.2f} | {p99:.2f} | {p50 / latency.milliseconds(base, 0.5):.2f}× | "
                f"{p99 / latency.milliseconds(base, 0.99):.2f}× |"
            )
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400,1048576", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, write: bool) -> None:
    parts = [
        f"# GetBatch over several nodes\n\n{(__doc__ or '').strip().splitlines()[0]}\n\nMachine: {machine()}. "
        f"{rounds} rounds; {CLIENTS} client processes, {IN_FLIGHT} batches in flight each.\n"
    ]
    missed = 0
    for size_bytes in map(int, sizes.split(",")):
        count = COUNTS.get(size_bytes, 2_000)
        with tempfile.TemporaryDirectory() as here:
            latency, grid, rates = measure(size_bytes, count, rounds, Path(here))
        claims = [Claim(DIRECT, ONE, 0.6), Claim(TARGET, ONE, 0.4)] if size_bytes == 10 << 10 else []
        outcomes = judge(rates, claims or [Claim(DIRECT, ONE, 0.0), Claim(TARGET, ONE, 0.0)])
        missed += sum(not outcome.reached for outcome in outcomes)
        section = f"## {count:,} objects of {label(size_bytes)}\n\n{rates_table(rates, 'objects/s', size_bytes)}\n"
        section += f"\n{claims_table(outcomes)}\n\n{latency}\n\n{grid}\n\nAfterwards: {load()}.\n"
        click.echo(section)
        parts.append(section)
    conclude("\n".join(parts), TABLE if write else None, reached=not missed)


if __name__ == "__main__":
    main()
