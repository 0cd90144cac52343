"""Pace of the other side of a connection: whether it sends, or takes, as much as the limits ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PaceLimits:
    """The slowest that the other side may be."""

    idle_s: float = 30.0
    """How long it may send or take nothing."""
    rate_bytes_per_s: float = 1024.0
    """The lowest rate of a body that it sends or takes."""
    rate_window_s: float = 60.0
    """The time over which that rate is measured."""


class Pace:
    """Judges one direction of a connection while the other side is waited for. Look at it several times within
    `idle_s`."""

    __slots__ = ("_limits", "_moved_at_s", "_moved_bytes", "_window_bytes", "_window_from_s")

    def __init__(self, limits: PaceLimits) -> None:
        self._limits = limits
        self._moved_at_s: float | None = None
        self._moved_bytes = 0
        self._window_from_s = 0.0
        self._window_bytes = 0

    def rest(self) -> None:
        """Note that the other side is not waited for."""
        self._moved_at_s = None

    def is_slow(self, now_s: float, moved_bytes: int) -> bool:
        """Return whether the other side is too slow, having sent or taken `moved_bytes` in all."""
        if self._moved_at_s is None:
            self._moved_at_s = self._window_from_s = now_s
            self._moved_bytes = self._window_bytes = moved_bytes
            return False
        if moved_bytes != self._moved_bytes:
            self._moved_at_s, self._moved_bytes = now_s, moved_bytes
        elif now_s - self._moved_at_s >= self._limits.idle_s:
            return True
        took_s = now_s - self._window_from_s
        if took_s < self._limits.rate_window_s:
            return False
        if moved_bytes - self._window_bytes < took_s * self._limits.rate_bytes_per_s:
            return True
        self._window_from_s, self._window_bytes = now_s, moved_bytes
        return False
