"""Report of a store on this machine: GET against batches on one node and three, limits in the same rounds, and how
rates and latencies follow the number of workers.

    python -m benchmarks.report           # make bench: about 15 minutes; writes report.json, report.md and workers.png
    python -m benchmarks.report --quick   # make bench-quick: about 2 minutes; fails when a ratio has fallen
    python -m benchmarks.report --quick --record    # this run's ratios are the recorded ones from now on

Ratios of small rounds on a shared machine differ by themselves: a quick run that fails is worth a second one.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import click

import ais_loader
from ais_loader.bench.conductor import prepare, run
from ais_loader.bench.plan import Plan
from ais_loader.testing import NodeProcess
from ais_loader.testing.cluster import ClusterProcesses
from benchmarks import echo
from benchmarks.clients import Clients, object_names
from benchmarks.cluster import put_all
from benchmarks.getbatch import label, rate, read_files
from benchmarks.harness import load, machine, rates_table, run_rounds
from benchmarks.lane import plain_files
from benchmarks.plots import new_figure, save
from benchmarks.report.judging import fallen, knee, ratios
from benchmarks.report.limits import memcpy, unix_socket

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
CLIENTS = 4
IN_FLIGHT = 3
NODES = 3
FILES, MEMCPY, SOCKET, ECHO = "file loop", "memcpy", "Unix socket", "gRPC stream echo"
ONE, THREE = "1 node", f"{NODES} nodes"
COUNTS = {10 << 10: 12_000, 100 << 10: 6_000, 1 << 20: 1_500}
WORKERS = (1, 2, 4, 8, 16, 32, 64)


def batch_of(where: str, batch: int) -> str:
    return f"{where}, GetBatch ×{batch}"


def get(where: str) -> str:
    return f"{where}, GET"


def measure(size_bytes: int, count: int, rounds: int, batches: Sequence[int], folder: Path) -> dict[str, list[float]]:
    """Objects per second of each way, in each round: the paper's table 1, and the limits beside it."""
    names = object_names(count)
    shares = [names[part::CLIENTS] for part in range(CLIENTS)]
    few = [share[: max(100, min(500, len(share) // 4))] for share in shares]
    paths = plain_files(folder / "files", count, size_bytes)
    blocks = max(100, min(5_000, (256 << 20) // size_bytes))
    with ExitStack() as held:
        node = held.enter_context(NodeProcess(folder / "one"))
        cluster = held.enter_context(ClusterProcesses(folder / "three", NODES))
        server = held.enter_context(echo.EchoServer(size_bytes))
        contestants: dict[str, Callable[[], float]] = {
            FILES: lambda: rate(count, lambda: read_files(paths)),
            MEMCPY: lambda: memcpy(size_bytes, blocks),
            SOCKET: lambda: unix_socket(size_bytes, blocks),
            ECHO: lambda: echo.stream(server.port, min(blocks, 1_000), IN_FLIGHT),
        }

        def by_batches(clients: Clients, batch: int) -> float:
            return count / clients.seconds("batches", [(part, batch, IN_FLIGHT, batch) for part in shares])

        def by_gets(clients: Clients) -> float:
            return sum(map(len, few)) / clients.seconds("gets", [(part,) for part in few])

        for where, url in ((ONE, node.url), (THREE, cluster.url)):
            with ais_loader.connect(url) as client:
                put_all(client, count, size_bytes)
            clients = held.enter_context(Clients(url, CLIENTS))
            contestants[get(where)] = partial(by_gets, clients)
            for batch in batches:
                contestants[batch_of(where, batch)] = partial(by_batches, clients, batch)
        for work in contestants.values():  # connections, caches
            work()
        return run_rounds(contestants, rounds)


def sweep(size: str, objects: int, duration_s: float, folder: Path) -> dict[int, dict[str, Any]]:
    """Results of `ais-loader bench get` by the number of workers, spread over up to four processes."""
    found = {}
    with NodeProcess(folder / "swept") as node, ais_loader.connect(node.url) as client:
        for workers in WORKERS:
            processes = min(CLIENTS, workers)
            plan = Plan(
                workload="get",
                url=node.url,
                size=size,
                objects=objects,
                processes=processes,
                threads=workers // processes,
                duration_s=duration_s,
            )
            prepare(client, plan)
            found[workers] = run(plan, described=client.describe())
    return found


def sweep_table(found: dict[int, dict[str, Any]]) -> str:
    lines = ["| workers | objects/s | MiB/s | P50 ms | P99 ms | errors |", "|---:|---:|---:|---:|---:|---:|"]
    for workers, one in found.items():
        latency = one["latency_ms"]
        lines.append(
            f"| {workers} | {one['objects_per_s']:,.0f} | {one['bytes_per_s'] / 2**20:,.0f} | {latency['p50']:.2f} "
            f"| {latency['p99']:.2f} | {sum(one['errors'].values())} |"
        )
    return "\n".join(lines)


def draw(found: dict[int, dict[str, Any]], size: str, path: Path) -> None:
    figure, axes = new_figure(2)
    rates, latencies = axes[0]
    workers = list(found)
    rates.plot(workers, [one["objects_per_s"] for one in found.values()], "o-")
    rates.axvline(knee({number: one["objects_per_s"] for number, one in found.items()}), color="#c0392b", linestyle=":")
    rates.set(xscale="log", xlabel="workers; dotted: the knee", ylabel=f"GETs of {size} a second", ylim=(0, None))
    for name in ("p50", "p99"):
        latencies.plot(workers, [one["latency_ms"][name] for one in found.values()], "o-", label=name.upper())
    latencies.set(xscale="log", yscale="log", xlabel="workers", ylabel="milliseconds")
    latencies.legend()
    save(figure, path)


def pairs(size_bytes: int, batches: Sequence[int]) -> dict[str, tuple[str, str]]:
    """Ratios by name: what is ours above a limit, above GET, and three nodes above one."""
    most, of = max(batches), label(size_bytes)
    return {
        f"{of}: {name}": pair
        for name, pair in {
            "batch ÷ GET": (batch_of(ONE, most), get(ONE)),
            "batch ÷ file loop": (batch_of(ONE, most), FILES),
            "batch ÷ gRPC echo": (batch_of(ONE, most), ECHO),
            "batch of 3 nodes ÷ 1": (batch_of(THREE, most), batch_of(ONE, most)),
        }.items()
    }


@click.command(help=__doc__)
@click.option("--quick", is_flag=True, help="Fewer objects and rounds, no sweep; compares with the recorded ratios.")
@click.option("--record", is_flag=True, help="With --quick: keep its ratios as the recorded ones.")
@click.option("--rounds", type=click.IntRange(min=1), help="[default: 7; with --quick, 3]")
@click.option("--seconds", type=click.FloatRange(1), default=15, show_default=True, help="Of each number of workers.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=HERE, help="Where the report goes.")
def main(quick: bool, record: bool, rounds: int | None, seconds: float, folder: Path) -> None:
    if record and not quick:
        raise click.UsageError("--record keeps the ratios of a --quick run")
    sizes = (10 << 10, 1 << 20) if quick else tuple(COUNTS)
    rounds = rounds or (3 if quick else 7)
    batches = (128,) if quick else (32, 64, 128)
    found: dict[str, float] = {}
    all_rates: dict[str, dict[str, list[float]]] = {}
    parts = [
        f"# Report\n\nMachine: {machine()}. One run, {rounds} rounds; {CLIENTS} clients, "
        f"{IN_FLIGHT} batches in flight each.\n"
    ]
    for size_bytes in sizes:
        count = COUNTS[size_bytes] // (4 if quick else 1)
        with tempfile.TemporaryDirectory() as here:
            rates = measure(size_bytes, count, rounds, batches, Path(here))
        all_rates[label(size_bytes)] = rates
        found |= ratios(rates, pairs(size_bytes, batches))
        table = rates_table(rates, "objects/s", size_bytes)
        parts.append(f"## {count:,} objects of {label(size_bytes)}\n\n{table}\n\nAfter this: {load()}.\n")
        click.echo(parts[-1])
    lines = ["| ratio | median |", "|---|---:|", *(f"| {name} | {value:.2f} |" for name, value in found.items())]
    parts.append("## Ratios\n\n" + "\n".join(lines) + "\n")
    click.echo(parts[-1])
    if quick:
        _judge(found, record=record)
        return
    with tempfile.TemporaryDirectory() as here:
        swept = sweep("100KiB", 2_000, seconds, Path(here))
    best = knee({workers: one["objects_per_s"] for workers, one in swept.items()})
    parts.append(
        f"## Workers\n\nSingle GETs of 100 KiB from one node. The knee is at **{best} workers**: the fewest with 90 % "
        f"of the best rate.\n\n{sweep_table(swept)}\n\n![Rates and latencies by workers](workers.png)\n"
    )
    click.echo(parts[-1])
    folder.mkdir(parents=True, exist_ok=True)
    draw(swept, "100 KiB", folder / "workers.png")
    everything = {"machine": machine(), "rates": all_rates, "ratios": found, "workers": swept, "knee": best}
    (folder / "report.json").write_text(json.dumps(everything, indent=1) + "\n")
    (folder / "report.md").write_text("\n".join(parts))


def _judge(found: dict[str, float], *, record: bool) -> None:
    if record:
        RECORDED.write_text(json.dumps({"machine": machine(), "load": load(), "ratios": found}, indent=1) + "\n")
        click.echo(f"recorded in {RECORDED}")
        return
    if lines := fallen(found, json.loads(RECORDED.read_text())["ratios"]):
        raise click.ClickException("ratios have fallen\n" + "\n".join(lines))
    click.echo("no ratio is under 80 % of the recorded one")


if __name__ == "__main__":
    main()
