"""Tally of a worker: calls, objects, bytes, errors by kind, and an HDR histogram of the latencies of calls.

Latencies are kept in microseconds with three digits, from 1 µs to an hour; histograms of many workers add up exactly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ais_loader.extras import needs

_LONGEST_US = 3600 * 10**6
PERCENTILES = (50.0, 90.0, 99.0, 99.9)


def new_histogram() -> Any:
    """Create an empty histogram. Raises MissingExtra."""
    with needs("hdrh", "ais-loader bench"):
        from hdrh.histogram import HdrHistogram

    return HdrHistogram(1, _LONGEST_US, 3)


@dataclass(slots=True)
class BenchTally:
    """Counters of one thread while it runs; `add` adds those of others."""

    calls: int = 0
    objects: int = 0
    size_bytes: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latency: Any = field(default_factory=new_histogram)

    def record(self, elapsed_ns: int, objects: int, size_bytes: int) -> None:
        self.calls += 1
        self.objects += objects
        self.size_bytes += size_bytes
        self.latency.record_value(min(_LONGEST_US, max(1, elapsed_ns // 1000)))

    def add(self, other: BenchTally) -> None:
        self.calls += other.calls
        self.objects += other.objects
        self.size_bytes += other.size_bytes
        self.errors.update(other.errors)
        self.latency.add(other.latency)

    def packed(self) -> dict[str, Any]:
        """Serialize for another process or machine."""
        return {
            "calls": self.calls,
            "objects": self.objects,
            "bytes": self.size_bytes,
            "errors": dict(self.errors),
            "latency": self.latency.encode() if self.calls else b"",
        }

    @classmethod
    def unpacked(cls, packed: dict[str, Any]) -> BenchTally:
        tally = cls(packed["calls"], packed["objects"], packed["bytes"], Counter(packed["errors"]))
        if packed["latency"]:
            tally.latency.decode_and_add(packed["latency"])
        return tally

    def latency_ms(self) -> dict[str, float]:
        """Return mean, percentiles and maximum, in milliseconds; empty if no call succeeded."""
        if not self.calls:
            return {}
        found = {"mean": self.latency.get_mean_value()}
        found |= {f"p{percent:g}": self.latency.get_value_at_percentile(percent) for percent in PERCENTILES}
        found["max"] = self.latency.get_max_value()
        return {name: round(value / 1000, 3) for name, value in found.items()}
