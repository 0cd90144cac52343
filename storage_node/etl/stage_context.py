"""Stage context: what a transform's stage has of its node, its log and its counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from storage_node.config import ServerConfig
from storage_node.etl.http_side import HttpSide
from storage_node.etl.spool import Spool

LOG_BYTES = 64 << 10
ERRORS_KEPT = 20


@dataclass(slots=True)
class StageCounts:
    """Of one transform since the node began, all its versions together."""

    objects: int = 0
    failed: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    busy_s: float = 0.0
    cache_hits: int = 0
    restarts: int = 0
    workers: int = 0
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=ERRORS_KEPT))
    """Latest first."""


class StageLog:
    """The end of what a transform's processes have written. Thread-safe: one append, one read."""

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> None:
        self._data = (self._data + data)[-LOG_BYTES:]

    def text(self) -> str:
        return self._data.decode(errors="replace")


@dataclass(slots=True)
class StageContext:
    """Belongs to the event loop that stages run on.

    Args:
        on_thread: runs a function that may wait for a drive.
    """

    config: ServerConfig
    spool: Spool
    on_thread: Callable[..., Awaitable[Any]]
    http_side: HttpSide
    log: StageLog = field(default_factory=StageLog)
    counts: StageCounts = field(default_factory=StageCounts)
