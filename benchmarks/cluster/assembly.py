"""Crossover of direct assembly and designated target, by object size and entries per owner, in throughput and latency.

Part of `benchmarks.cluster.several_nodes`. Both ways run in every round, one after the other, on the same three nodes;
ratios are taken within a round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ais_loader
from benchmarks.kit.clients import BUCKET, Clients, batches
from benchmarks.kit.harness import run_rounds

MODES = ("direct", "target")
PER_OWNER = (1, 2, 4, 8, 16, 32, 64)
IN_FLIGHT = 3
_BATCHES_PER_CLIENT = 40
_BYTES_PER_CLIENT = 128 << 20
_ALONE_BATCHES, _ALONE_BYTES = 40, 256 << 20
"""One at a time, in each round."""


def percentile(values: Sequence[float], share: float) -> float:
    return statistics.quantiles(values, n=1000, method="inclusive")[round(share * 1000) - 1]


@dataclass(slots=True)
class Latency:
    """Seconds from asking to the last byte, one call at a time, of several ways that take turns."""

    ways: dict[str, Callable[[int], list[float]]]
    """From a seed to the seconds of some calls."""
    found_s: dict[str, list[float]] = field(default_factory=dict)

    def run(self, rounds: int) -> None:
        names = list(self.ways)
        self.found_s = {name: [] for name in names}
        for number in range(rounds):
            for name in names[number % len(names) :] + names[: number % len(names)]:
                self.found_s[name] += self.ways[name](number)

    def milliseconds(self, way: str, share: float) -> float:
        return percentile(self.found_s[way], share) * 1e3


def batch_latencies(
    client: ais_loader.Client, names: Sequence[str], size: int, most: int, **options: Any
) -> Callable[[int], list[float]]:
    """At most `most` batches of `size` entries, drawn anew for each seed."""

    def run(seed: int) -> list[float]:
        found = []
        for number, batch in enumerate(batches(names, size, seed)):
            if number == most:
                break
            start = time.perf_counter()
            for _ in client.get_batch(batch, **options):
                pass
            found.append(time.perf_counter() - start)
        return found

    return run


def get_latencies(client: ais_loader.Client, names: Sequence[str], most: int) -> Callable[[int], list[float]]:
    """`most` single GETs, spread over the names."""
    bucket = client.bucket(BUCKET)

    def run(seed: int) -> list[float]:
        found = []
        for at in range(most):
            name = names[(seed * 7919 + at * 104_729) % len(names)]
            start = time.perf_counter()
            bucket.get(name)
            found.append(time.perf_counter() - start)
        return found

    return run


def grid_table(
    client: ais_loader.Client,
    clients: Clients,
    shares: Sequence[Sequence[str]],
    size_bytes: int,
    nodes: int,
    rounds: int,
) -> str:
    """Direct against target for each number of entries per owner, as Markdown.

    `shares`: the names that each of the client processes fetches.
    """
    seeds = iter(range(10**6))

    def rate_of(mode: str, size: int) -> Callable[[], float]:
        each = size * max(2, min(_BATCHES_PER_CLIENT, _BYTES_PER_CLIENT // (size * size_bytes)))
        parts = [share[:each] for share in shares]

        def run() -> float:
            work = [(part, size, IN_FLIGHT, next(seeds), {"assembly": mode}) for part in parts]
            return sum(map(len, parts)) / clients.seconds("batches", work)

        return run

    lines = [
        "| entries per owner | direct, objects/s | target | direct ÷ target | direct alone, P50 / P99 ms | target | "
        "direct ÷ target, P50 |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    everything = [name for share in shares for name in share]
    for per_owner in PER_OWNER:
        size = per_owner * nodes
        contestants = {mode: rate_of(mode, size) for mode in MODES}
        for work in contestants.values():
            work()
        rates = run_rounds(contestants, rounds)
        ratios = [a / b for a, b in zip(rates["direct"], rates["target"], strict=True)]
        most = max(4, min(_ALONE_BATCHES, _ALONE_BYTES // (size * size_bytes * rounds)))
        alone = Latency({mode: batch_latencies(client, everything, size, most, assembly=mode) for mode in MODES})
        alone.run(rounds)
        p50 = {mode: alone.milliseconds(mode, 0.5) for mode in MODES}
        p99 = {mode: alone.milliseconds(mode, 0.99) for mode in MODES}
        lines.append(
            f"| {per_owner} | {statistics.median(rates['direct']):,.0f} | {statistics.median(rates['target']):,.0f} | "
            f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} – {max(ratios):.2f}) | "
            f"{p50['direct']:.2f} / {p99['direct']:.2f} | {p50['target']:.2f} / {p99['target']:.2f} | "
            f"{p50['direct'] / p50['target']:.2f} |"
        )
    return "\n".join(lines)
