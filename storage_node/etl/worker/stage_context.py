"""Stage context: what a transform's stage gets from its node, with its log and its counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ais_loader.errors import LoaderError, TransformFailed
from storage_node.etl.transform_http import TransformHttp
from storage_node.etl.values import Spool, escaped
from storage_node.etl.worker.environments import Environments
from storage_node.limits.counters import count
from storage_node.settings.config import ServerConfig

LOG_BYTES = 64 << 10
ERRORS_KEPT = 20
_MAX_TEXT = 500
"""Maximum length of an error, in characters, in the list of a transform's latest errors."""


@dataclass(slots=True)
class StageCounts:
    """Counters of one transform since the node started, over all its versions."""

    objects: int = 0
    failures: dict[str, int] = field(default_factory=lambda: dict.fromkeys((TransformFailed.kind,), 0))
    """Number of objects without a result, by the error's kind."""
    input_bytes: int = 0
    output_bytes: int = 0
    busy_s: float = 0.0
    running: int = 0
    """Number of busy workers, or of busy connections to its server."""
    cache_hits: int = 0
    cache_misses: int = 0
    """Number of requested results that had to be computed."""
    cache_hit_bytes: int = 0
    restarts: int = 0
    workers: int = 0
    errors: deque[str] = field(default_factory=lambda: deque(maxlen=ERRORS_KEPT))
    """Latest first."""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    def success(self, input_bytes: int, output_bytes: int) -> None:
        self.objects += 1
        self.input_bytes += input_bytes
        self.output_bytes += output_bytes

    def failure(self, error: BaseException) -> None:
        count(self.failures, error.kind if isinstance(error, LoaderError) else "internal")
        self.errors.appendleft(error_text(error))


def error_text(error: BaseException) -> str:
    """Return an error as one line, for the list of a transform's latest errors.

    A long text keeps both ends: the object it belongs to, and what a program wrote last.
    """
    with suppress(Exception):
        text = escaped(" ".join(str(error).split()))
        if len(text) > _MAX_TEXT:
            text = f"{text[: _MAX_TEXT // 4]} … {text[-3 * _MAX_TEXT // 4 :]}"
        return f"{error.kind}: {text}" if isinstance(error, LoaderError) else text
    return type(error).__name__


class StageLog:
    """The end of the output of a transform's processes. Thread-safe: one append, one read."""

    def __init__(self) -> None:
        self._data = b""

    def add(self, data: bytes) -> None:
        self._data = (self._data + data)[-LOG_BYTES:]

    def text(self) -> str:
        return self._data.decode(errors="replace")


@dataclass(slots=True)
class StageContext:
    """Context of a stage. Belongs to the event loop that stages run on.

    Args:
        on_thread: Runs a function that may wait for a drive.
        environments: Installs the packages that transforms require, where that is possible.
    """

    config: ServerConfig
    spool: Spool
    on_thread: Callable[..., Awaitable[Any]]
    transform_http: TransformHttp
    environments: Environments | None = None
    log: StageLog = field(default_factory=StageLog)
    counts: StageCounts = field(default_factory=StageCounts)
