"""Rates of tenants: requests and bytes per second, as token buckets that hold one second's worth.

Bytes are known only once they have been read, so they are charged afterwards: a tenant may exceed its rate by what is
under way, and waits longer for that. The clock is an argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BURST_S = 1.0
_REMEMBERED = 4096


class _Left:
    __slots__ = ("at_s", "bytes", "requests")

    def __init__(self, at_s: float, requests: float, size_bytes: float) -> None:
        self.at_s = at_s
        self.requests = requests
        self.bytes = size_bytes


class TenantRates:
    """Rates of all tenants at one node. Belongs to its event loop.

    Args:
        requests_per_s: of each tenant; 0 for no limit. So also `bytes_per_s`.
    """

    def __init__(self, requests_per_s: float, bytes_per_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._requests_per_s = requests_per_s
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._left: dict[str, _Left] = {}

    def _of(self, tenant: str) -> _Left:
        now_s, left = self._now_s(), self._left.get(tenant)
        if left is None:
            if len(self._left) >= _REMEMBERED:
                self._forget()
            left = self._left[tenant] = _Left(now_s, self._requests_per_s * BURST_S, self._bytes_per_s * BURST_S)
        passed_s, left.at_s = now_s - left.at_s, now_s
        left.requests = min(self._requests_per_s * BURST_S, left.requests + passed_s * self._requests_per_s)
        left.bytes = min(self._bytes_per_s * BURST_S, left.bytes + passed_s * self._bytes_per_s)
        return left

    def _forget(self) -> None:
        """Forget the tenants that have used nothing for a while, or else the one that was used the longest ago."""
        before_s = self._now_s() - BURST_S
        idle = [name for name, left in self._left.items() if left.at_s < before_s and left.bytes >= 0]
        for name in idle or [min(self._left, key=lambda name: self._left[name].at_s)]:
            del self._left[name]

    def refusal(self, tenant: str) -> str | None:
        """Return why a tenant may make no request now; None if it may."""
        left = self._of(tenant)
        if self._requests_per_s and left.requests < min(1.0, self._requests_per_s * BURST_S):
            return (
                f"tenant {tenant!r} makes more than tenant_requests_per_s={self._requests_per_s:g} requests in a second"
            )
        if self._bytes_per_s and left.bytes <= 0:
            return f"tenant {tenant!r} reads more than tenant_bytes_per_s={self._bytes_per_s:,} bytes in a second"
        return None

    def take(self, tenant: str) -> str | None:
        """Count a request. Return why it is refused; None if it is not."""
        why = self.refusal(tenant)
        if why is None:
            self._left[tenant].requests -= 1
        return why

    def spend(self, tenant: str, size_bytes: int) -> None:
        if self._bytes_per_s:
            self._of(tenant).bytes -= size_bytes
