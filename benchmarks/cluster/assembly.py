"""Crossover of direct assembly and designated target, by object size and entries per owner, in throughput and latency.

Part of `benchmarks.cluster.several_nodes`. Both ways run in every round, one after the other, on the same three nodes;
ratios are taken within a round.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from ais_loader.bench.worker import Threads
from benchmarks.kit.harness import run_rounds
from benchmarks.kit.load import Clients, Load, run

MODES = ("direct", "target")
PER_OWNER = (1, 2, 4, 8, 16, 32, 64)
TURN_S = 0.5
"""Duration of each way's turn in a round."""


def latencies(ways: Mapping[str, Load], rounds: int) -> dict[str, tuple[float, float]]:
    """P50 and P99 in milliseconds of one call at a time, of ways that take turns in this process."""
    alone = {
        name: replace(load, processes=1, in_flight=1, epochs=0, duration_s=TURN_S, warm_up_s=TURN_S)
        for name, load in ways.items()
    }
    with ExitStack() as held:
        threads = {name: Threads(load, 0) for name, load in alone.items()}
        for one in threads.values():
            held.callback(one.close)
            one.warm_up()
        run_rounds({name: partial(run, one) for name, one in threads.items()}, rounds)
        found = {name: one.tallies[0].latency for name, one in threads.items()}
    return {
        name: (one.get_value_at_percentile(50) / 1e3, one.get_value_at_percentile(99) / 1e3)
        for name, one in found.items()
    }


def grid_table(load: Load, clients: Clients, nodes: int, rounds: int) -> str:
    """Direct against target for each number of entries per owner, as Markdown; `load` is that of the processes."""
    lines = [
        "| entries per owner | direct, objects/s | target | direct ÷ target | direct alone, P50 / P99 ms | target | "
        "direct ÷ target, P50 |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for per_owner in PER_OWNER:
        ways = {
            mode: replace(load, assembly=mode, batch=per_owner * nodes, epochs=0, duration_s=TURN_S) for mode in MODES
        }
        contestants = {mode: partial(clients.rate, way) for mode, way in ways.items()}
        for work in contestants.values():
            work()
        rates = run_rounds(contestants, rounds)
        ratios = [a / b for a, b in zip(rates["direct"], rates["target"], strict=True)]
        (direct_p50, direct_p99), (target_p50, target_p99) = latencies(ways, rounds).values()
        lines.append(
            f"| {per_owner} | {statistics.median(rates['direct']):,.0f} | {statistics.median(rates['target']):,.0f} | "
            f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} – {max(ratios):.2f}) | "
            f"{direct_p50:.2f} / {direct_p99:.2f} | {target_p50:.2f} / {target_p99:.2f} | "
            f"{direct_p50 / target_p50:.2f} |"
        )
    return "\n".join(lines)
