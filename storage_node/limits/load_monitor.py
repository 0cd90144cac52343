"""Load monitor: a node's memory, CPU and drives, measured while it serves.

While memory exceeds the critical limit, new batches are rejected, with a delay that grows with the excess. While the
CPU or the drives cannot keep up, batches pause before their next frame: never for long, so that all of them make
progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import resource
import time
from collections.abc import Callable

from storage_node.settings.declarations import LimitSettings
from storage_node.store.machine_memory import machine_memory_bytes

RSS_INTERVAL_S = 0.25
"""Reading it takes about 20 microseconds, so it is not read for every batch."""
TICK_S = 0.1
MAX_RETRY_S = 10.0
_DELAYS_PER_EXCESS = 100
"""One per cent above the limit doubles the delay, two per cent triple it."""
_SHARE_OF_MACHINE = 0.8
_SMOOTHING = 0.2
_NOTHING_S = 0.05
_MAX_SAMPLE_S = 1.0
"""A process that was stopped for a minute must not compensate for it for as long."""
_LANES_LEAVE = 4
"""Lanes leave one in this many descriptors to everything else."""
log = logging.getLogger(__name__)


def resident_bytes() -> int:
    """Return the resident memory of this process without pages of mapped files, which the kernel can drop at any time;
    0 if it is unknown."""
    try:
        with open("/proc/self/status", "rb") as file:
            rows = dict(line.split(b":", 1) for line in file if line.startswith((b"RssAnon", b"VmRSS")))
        return int(rows.get(b"RssAnon", rows[b"VmRSS"]).split()[0]) << 10  # some systems know no RssAnon
    except (OSError, KeyError):
        return 0


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard limit, which needs no privileges."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):  # a system with a further limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """Number of descriptors that this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def is_reserved(descriptor: int) -> bool:
    """Whether a lane's new descriptor is in the range that lanes leave to everything else.

    The kernel assigns the lowest free number, so a high one means that all lower ones are in use.
    """
    return descriptor >= descriptor_limit() * (_LANES_LEAVE - 1) // _LANES_LEAVE


def give_memory_back() -> None:
    """Return memory cached by malloc to the system. Takes some milliseconds. No effect without glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def retry_after_ms(base_ms: int, resident: int, critical: int) -> int:
    """Return the retry delay of a rejected batch: `base_ms` at the limit, growing with the excess up to MAX_RETRY_S."""
    excess = max(0.0, resident / critical - 1)
    return min(int(base_ms * (1 + _DELAYS_PER_EXCESS * excess)), max(base_ms, int(MAX_RETRY_S * 1000)))


def pause_s(lag_s: float, wait_s: float, limits: LimitSettings) -> tuple[float, str]:
    """Return the pause of a batch before its next frame, and its cause: "cpu" or "drives".

    The pause is the excess of the worse delay over its threshold, capped at `max_throttle_s`.
    """
    cpu_s, drives_s = lag_s - limits.throttle_cpu_lag_s, wait_s - limits.throttle_drive_wait_s
    longest_s = max(cpu_s, drives_s)
    if longest_s <= 0:
        return 0.0, ""
    return min(longest_s, limits.max_throttle_s), "cpu" if cpu_s >= drives_s else "drives"


class LoadMonitor:
    """Load monitor of one node. Belongs to its event loop, except `reader_waited`.

    Args:
        relieve: called from time to time while memory exceeds its limit.
    """

    def __init__(self, limits: LimitSettings, relieve: Callable[[], object]) -> None:
        self._limits = limits
        self._relieve = relieve
        self.critical_bytes = limits.critical_memory_bytes or int(machine_memory_bytes() * _SHARE_OF_MACHINE)
        self.measure: Callable[[], int] = resident_bytes
        self.resident_bytes = 0
        self._measured_at_s = -RSS_INTERVAL_S
        self._over = False
        self.lag_s = 0.0
        """Delay with which the event loop runs due callbacks; indicates the load of the CPU. It is measured while
        batches run, and until it is negligible."""
        self._is_measured = self._is_asked = False
        self.reader_wait_s = 0.0
        """Time that a read waits for a reader thread; indicates the load of the drives."""

    def memory_is_critical(self) -> bool:
        """Whether memory exceeds its limit, by a measurement no older than RSS_INTERVAL_S."""
        now = time.monotonic()
        if now - self._measured_at_s >= RSS_INTERVAL_S:
            self._measured_at_s = now
            self.resident_bytes = self.measure()
            over = self.resident_bytes > self.critical_bytes
            if over:
                self._relieve()
            if over != self._over:
                log.warning(
                    "memory: %s bytes, critical mark %s: new batches are %s",
                    f"{self.resident_bytes:,}",
                    f"{self.critical_bytes:,}",
                    "rejected" if over else "served again",
                )
            self._over = over
        return self._over

    def retry_after_ms(self) -> int:
        """Return the retry delay of a batch that is rejected because of memory."""
        return retry_after_ms(self._limits.reject_retry_after_ms, self.resident_bytes, self.critical_bytes)

    def reader_waited(self, wait_s: float) -> None:
        """Note a wait, on a reader thread. Of two simultaneous calls, one measurement may be lost."""
        self.reader_wait_s += _SMOOTHING * (min(wait_s, _MAX_SAMPLE_S) - self.reader_wait_s)

    def pause(self) -> tuple[float, str]:
        """Return the current pause; see `pause_s`."""
        self._measure_lag()
        return pause_s(self.lag_s, self.reader_wait_s, self._limits)

    def wait_us(self) -> int:
        """Return how long a read waits here before it begins, for replica choice by clients; 0 if it is negligible."""
        self._measure_lag()
        wait_s = self.lag_s + self.reader_wait_s
        return int(wait_s * 1e6) if wait_s >= _NOTHING_S else 0

    def _measure_lag(self) -> None:
        self._is_asked = True
        if not self._is_measured:
            self._is_measured = True
            self._sample()

    def _sample(self, due_s: float | None = None) -> None:
        loop = asyncio.get_running_loop()
        if due_s is not None:
            self.lag_s += _SMOOTHING * (min(max(0.0, loop.time() - due_s), _MAX_SAMPLE_S) - self.lag_s)
            self._is_measured, self._is_asked = self._is_asked or self.lag_s >= _NOTHING_S, False
        if self._is_measured:
            next_s = loop.time() + TICK_S
            loop.call_at(next_s, self._sample, next_s)
