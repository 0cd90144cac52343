"""Plan of a measurement: workload, sizes, number of clients, duration. Pure; an invalid plan cannot be created.

Sizes of objects depend only on their numbers, so every process, and the next run, knows them without a request.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from dataclasses import dataclass
from typing import Any, Literal

from ais_loader.errors import InvalidRequest
from ais_loader.values.size_of_text import size_of_text
from ais_loader.values.urls import is_remote

READING = ("get", "get-batch", "members", "ranges", "list", "sessions")
WRITING = ("put", "put-many", "mixed")
WORKLOADS = (*READING, *WRITING)
MARKED = "ais-loader-bench"
"""Default bucket."""
_LARGEST = 1 << 40
_WIDEST = 16
"""A lognormal size is limited to this multiple of its median: one object must not dominate the measurement."""


def size_bytes(text: str) -> int:
    """Parse a size such as `10KiB`. Raises InvalidRequest."""
    size = size_of_text(text)
    if size > _LARGEST:
        raise InvalidRequest(f"{text!r} is more than 1024 GiB")
    return size


@dataclass(frozen=True, slots=True)
class Sizes:
    """Distribution of object sizes: all `low`; uniform in `low`..`high`; or lognormal with median `low` and `sigma`."""

    low: int
    high: int
    sigma: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """Parse `10KiB`, `4KiB..1MiB`, or `lognormal:100KiB` with `:SIGMA`, 1 by default. Raises InvalidRequest."""
        if text.startswith("lognormal:"):
            median, _, sigma = text.removeprefix("lognormal:").partition(":")
            try:
                spread = float(sigma or 1)
            except ValueError:
                spread = math.nan
            if not 0 < spread <= 4:
                raise InvalidRequest(f"{text!r}: the spread after the median is a number in 0..4, such as 0.8")
            low = size_bytes(median)
            if not low:
                raise InvalidRequest(f"{text!r}: the median of a lognormal distribution is at least one byte")
            return cls(low, low * _WIDEST, spread)
        first, dots, last = text.partition("..")
        low = size_bytes(first)
        high = size_bytes(last) if dots else low
        if high < low:
            raise InvalidRequest(f"{text!r}: the largest size comes last, as in 4KiB..1MiB")
        return cls(low, high)

    def of(self, number: int) -> int:
        """Return the size of the object with this number, always the same."""
        if self.low == self.high:
            return self.low
        drawn = random.Random(number)
        if not self.sigma:
            return drawn.randint(self.low, self.high)
        return max(1, min(self.high, round(self.low * math.exp(drawn.gauss(0, self.sigma)))))


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """One measurement; its fields are the options of `ais-loader bench`."""

    workload: str
    url: str
    """Address of the store."""
    bucket: str = MARKED
    size: str = "10KiB"
    objects: int = 10_000
    members: int = 64
    """Members of each archive."""
    range_bytes: int = 4096
    batch: int = 128
    in_flight: int = 3
    threads: int = 1
    processes: int = 1
    duration_s: float = 10.0
    epochs: int = 0
    """How often every object is requested; 0: until `duration_s` is over."""
    warm_up_s: float = 1.0
    puts_percent: int = 20
    """Share of puts among the calls of "mixed"."""
    cold: bool = False
    verify: bool = False
    retry_s: float = 10.0
    copies: int = 1
    lane: Literal["auto", "grpc"] = "auto"

    def __post_init__(self) -> None:
        if self.workload not in WORKLOADS:
            raise InvalidRequest(f"{self.workload!r} is no workload: need one of {', '.join(WORKLOADS)}")
        for name in (
            "objects",
            "members",
            "batch",
            "in_flight",
            "threads",
            "processes",
            "range_bytes",
            "copies",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name}={getattr(self, name)}: need at least 1")
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise InvalidRequest(f"duration_s={self.duration_s}: need a time above 0")
        if not (math.isfinite(self.warm_up_s) and self.warm_up_s >= 0):
            raise InvalidRequest(f"warm_up_s={self.warm_up_s}: need 0 or more")
        if self.epochs < 0 or not 0 <= self.puts_percent <= 100:
            raise InvalidRequest("epochs need 0 or more, puts 0 to 100 percent")
        if self.cold and self.writes:
            raise InvalidRequest(f"cold is about reads: {self.workload} has no such thing as a cold cache")
        if self.cold and self.warm_up_s:
            raise InvalidRequest("a warm-up would read what cold has taken out of the cache: leave one of them out")
        if self.embedded and self.writes and self.processes > 1:
            raise InvalidRequest(
                f"an embedded store has one writer, so {self.workload} cannot have {self.processes} processes: take "
                "threads, or serve the store (`ais-loader serve`) and give its address"
            )
        if self.workload == "ranges" and self.range_bytes > self.sizes.low and not self.sizes.sigma:
            raise InvalidRequest(f"ranges of {self.range_bytes} bytes do not fit in objects of {self.size}")

    @property
    def writes(self) -> bool:
        return self.workload in WRITING

    @property
    def embedded(self) -> bool:
        return not is_remote(self.url)

    @property
    def sizes(self) -> Sizes:
        return Sizes.parse(self.size)

    @property
    def workers(self) -> int:
        return self.processes * self.threads

    @property
    def fill(self) -> dict[str, Any]:
        """Required content of the bucket: equal fills have equal bytes."""
        kind = "archives" if self.workload == "members" else "objects"
        fill = {"kind": kind, "size": self.size, "objects": self.objects}
        return fill | ({"members": self.members} if kind == "archives" else {})

    @property
    def prefix(self) -> str:
        """Folder of the bucket for this fill alone."""
        digest = hashlib.sha256(json.dumps(self.fill, sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.fill['kind']}-{digest}/"

    def name(self, number: int) -> str:
        return f"{self.prefix}{number:09d}"

    def archive(self, number: int) -> tuple[str, str]:
        return f"{self.prefix}{number // self.members:09d}.tar", f"{number:09d}"
