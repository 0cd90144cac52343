"""Ratios against those that were recorded, and the knee of a sweep. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

KEPT = 0.8
"""Part of a recorded ratio that must be reached."""
_NEAR_BEST = 0.9


def ratios(rates: Mapping[str, Sequence[float]], pairs: Mapping[str, tuple[str, str]]) -> dict[str, float]:
    """The median over the rounds of each pair, first ÷ second, within a round."""
    return {
        name: statistics.median(a / b for a, b in zip(rates[first], rates[second], strict=True))
        for name, (first, second) in pairs.items()
    }


def fallen(found: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """Return a line for each rate that is below 80 % of the recorded one, or is no longer measured."""
    lines = []
    for name, before in recorded.items():
        now = found.get(name)
        if now is None:
            lines.append(f"{name}: recorded as {before:.2f}, and not measured now")
        elif now < KEPT * before:
            lines.append(f"{name}: {now:.2f}, under {KEPT:.0%} of the recorded {before:.2f}")
    return lines


def knee(rate_by_workers: Mapping[int, float]) -> int:
    """The fewest workers that reach 90 % of the best rate: more add to latency, and hardly to the rate."""
    best = max(rate_by_workers.values())
    return min(workers for workers, rate in rate_by_workers.items() if rate >= _NEAR_BEST * best)
