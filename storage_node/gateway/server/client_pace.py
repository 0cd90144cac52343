"""Pace of a client: whether it sends, or takes, as much as the limits ask for."""

from __future__ import annotations

from storage_node.gateway.server.limits import Limits


class ClientPace:
    """Judges one direction of a connection while the gateway waits for the client. Look at it several times within
    `idle_s`."""

    __slots__ = ("_limits", "_moved_at_s", "_moved_bytes", "_window_bytes", "_window_from_s")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._moved_at_s: float | None = None
        self._moved_bytes = 0
        self._window_from_s = 0.0
        self._window_bytes = 0

    def rest(self) -> None:
        """Note that the gateway does not wait for the client."""
        self._moved_at_s = None

    def is_slow(self, now_s: float, moved_bytes: int) -> bool:
        """Return whether the client is too slow, having sent or taken `moved_bytes` in all."""
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
