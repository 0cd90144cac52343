"""Wall clock: milliseconds since 1970, and their presentation for people."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

LAST_MS = 250_000_000_000_000
"""The last time that is shown, in the year 9892."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def shown(time_ms: int) -> str:
    """Format a time in UTC, for people."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=max(0, min(time_ms, LAST_MS)))
    return moment.isoformat(sep=" ", timespec="milliseconds")


def advice(most_ms: int) -> str:
    """Return advice on two clocks that differ too much."""
    return f"they may differ by {most_ms / 1000:g} s: set them right (NTP), or raise max_clock_offset_s on all nodes"
