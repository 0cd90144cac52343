"""Wall clock: milliseconds since 1970, and how they are shown to people."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

LAST_MS = 250_000_000_000_000
"""In the year 9892, the last that is shown."""


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


def shown(time_ms: int) -> str:
    """In UTC, for people."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=max(0, min(time_ms, LAST_MS)))
    return moment.isoformat(sep=" ", timespec="milliseconds")


def advice(most_ms: int) -> str:
    """What is to be done about two clocks that were just named."""
    return f"they may differ by {most_ms / 1000:g} s: set them right (NTP), or raise max_clock_offset_s on all nodes"
