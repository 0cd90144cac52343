"""Rate and latency of single GETs by the number of workers, and the knee: from there on more add to latency alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ais_loader
from ais_loader.bench.crew import prepare, run
from ais_loader.bench.plan import BenchPlan
from ais_loader.testing import NodeProcess
from benchmarks.kit.plots import new_figure, save
from benchmarks.report.judging import knee

WORKERS = (1, 2, 4, 8, 16, 32, 64)
PROCESSES = 4


def sweep(size: str, objects: int, duration_s: float, folder: Path) -> dict[int, dict[str, Any]]:
    """Results of `ais-loader bench get` by the number of workers, spread over up to four processes."""
    found = {}
    with NodeProcess(folder / "swept") as node, ais_loader.connect(node.url) as client:
        for workers in WORKERS:
            processes = min(PROCESSES, workers)
            plan = BenchPlan(
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


def knee_of(found: dict[int, dict[str, Any]]) -> int:
    return knee({workers: one["objects_per_s"] for workers, one in found.items()})


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
    rates.axvline(knee_of(found), color="#c0392b", linestyle=":")
    rates.set(xscale="log", xlabel="workers; dotted: the knee", ylabel=f"GETs of {size} a second", ylim=(0, None))
    for name in ("p50", "p99"):
        latencies.plot(workers, [one["latency_ms"][name] for one in found.values()], "o-", label=name.upper())
    latencies.set(xscale="log", yscale="log", xlabel="workers", ylabel="milliseconds")
    latencies.legend()
    for panel in (rates, latencies):
        panel.set_xticks(workers, [str(number) for number in workers])
        panel.minorticks_off()
    save(figure, path)
