"""GetBatch over three nodes against one, on the same cores: direct assembly, designated target, and their latency.

Isolates what it costs to gather a batch from several nodes: the same objects, once on one node and once spread over
three, read by the same client processes. "direct" has the client merge the owners' answers, "target" has one node do
it. All of them share this machine's cores, so nothing is gained here by more nodes; on machines of their own, it is.

    python -m benchmarks.cluster                      # 10 KiB, 100 KiB, 1 MiB; writes the table beside this file
    python -m benchmarks.cluster --sizes 10240 --rounds 3 --no-write
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import click

import ais_loader
from ais_loader.testing import NodeProcess
from ais_loader.testing.cluster import ClusterProcesses
from benchmarks.clients import BUCKET, Clients, batches, object_names
from benchmarks.getbatch import label
from benchmarks.harness import Claim, claims_table, judge, machine, rates_table, run_rounds

BATCH = 128
CLIENTS = 4
IN_FLIGHT = 3
NODES = 3
TABLE = Path(__file__).with_name("cluster.md")
COUNTS = {10 << 10: 12_000, 100 << 10: 6_000, 1 << 20: 1_500}

ONE = f"1 node, ×{BATCH}"
DIRECT = f"{NODES} nodes, direct, ×{BATCH}"
TARGET = f"{NODES} nodes, target, ×{BATCH}"
MODES = ("direct", "target")


def put_all(client: ais_loader.Client, count: int, size_bytes: int) -> None:
    bucket = client.create_bucket(BUCKET, exist_ok=True)
    data = bytes(range(256)) * (size_bytes // 256)
    for _ in bucket.put_many((name, data) for name in object_names(count)):
        pass


def latencies_s(client: ais_loader.Client, names: Sequence[str], size: int, **options: object) -> list[float]:
    """Seconds from asking to the last byte of each of a row of batches, one at a time."""
    found = []
    for batch in batches(names, size, seed=3):
        start = time.perf_counter()
        for _ in client.get_batch(batch, **options):
            pass
        found.append(time.perf_counter() - start)
    return found


def percentile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> tuple[str, list[Claim], dict[str, list[float]]]:
    """The table of latencies, the claims, and objects per second of each way in each round."""
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

        def by_batches(way: str, size: int, options: dict[str, object]) -> Callable[[], float]:
            def run() -> float:
                seed = next(seeds)
                return count / many[way].seconds("batches", [(part, size, IN_FLIGHT, seed, options) for part in shares])

            return run

        contestants = {
            ONE: by_batches(ONE, BATCH, {}),
            DIRECT: by_batches(DIRECT, BATCH, {"assembly": "direct"}),
            TARGET: by_batches(TARGET, BATCH, {"assembly": "target"}),
        }
        claims = [Claim(DIRECT, ONE, 0.6), Claim(TARGET, ONE, 0.4)] if size_bytes == 10 << 10 else []
        for size in (12, 48, 192, 768) if size_bytes == 10 << 10 else ():
            for mode, way in zip(MODES, (DIRECT, TARGET), strict=True):
                contestants[by_size(mode, size)] = by_batches(way, size, {"assembly": mode})
        for work in contestants.values():  # connections, caches
            work()
        rates = run_rounds(contestants, rounds)
        lines = ["| one batch at a time | P50 ms | P99 ms | against 1 node, P50 |", "|---|---:|---:|---:|"]
        base = 0.0
        for way, client, options in (
            (ONE, single, {}), (DIRECT, several, {"assembly": "direct"}), (TARGET, several, {"assembly": "target"}),
        ):  # fmt: skip
            found = latencies_s(client, names, BATCH, **options)
            p50, p99 = percentile(found, 0.5) * 1e3, percentile(found, 0.99) * 1e3
            base = base or p50
            lines.append(f"| {way} | {p50:.2f} | {p99:.2f} | {p50 / base:.2f}× |")
    return "\n".join(lines), claims, rates


def by_size(mode: str, size: int) -> str:
    return f"{NODES} nodes, {mode}, {size // NODES} entries per owner"


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
            latency, claims, rates = measure(size_bytes, count, rounds, Path(here))
        outcomes = judge(rates, claims or [Claim(TARGET, DIRECT, 0.0), Claim(DIRECT, ONE, 0.0)])
        missed += sum(not outcome.reached for outcome in outcomes)
        section = f"## {count:,} objects of {label(size_bytes)}\n\n{rates_table(rates, 'objects/s', size_bytes)}\n"
        section += f"\n{claims_table(outcomes)}\n\n{latency}\n"
        click.echo(section)
        parts.append(section)
    if write:
        TABLE.write_text("\n".join(parts))
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
