"""Memory budgets: bytes that calls hold together on the node, and bytes that a batch's client is ready to hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import NamedTuple


class _WaitingRequest(NamedTuple):
    size_bytes: int
    own_bytes: int
    """Bytes that the same request holds already."""
    granted: asyncio.Future[None]
    tenant: str | None


class MemoryBudget:
    """Counts held bytes, on the node's event loop. A call that would exceed the limit waits, in order of arrival.

    A single request larger than the whole budget is granted when nothing else is held; otherwise it never could be. A
    request that holds a part of its bytes precedes those that hold nothing: they may be waiting for that part.

    Of a tenant's requests, those that would exceed its part wait, and others pass them.

    Args:
        tenant_share: largest part that one tenant may hold, from 0 to 1. Requests without a tenant have no limit but
            the whole.
    """

    def __init__(self, limit_bytes: int, tenant_share: float = 1.0) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._tenant_bytes = limit_bytes * tenant_share if tenant_share < 1 else None
        self._held_by: dict[str, int] = {}
        """Bytes by tenant, if tenants have a limit."""
        self._waiting: deque[_WaitingRequest] = deque()

    def _fits(self, size_bytes: int, own_bytes: int = 0) -> bool:
        return self.held_bytes <= own_bytes or self.held_bytes + size_bytes <= self.limit_bytes

    def is_over(self, tenant: str | None, size_bytes: int, own_bytes: int = 0) -> bool:
        """Whether this many more bytes exceed a tenant's part."""
        if tenant is None or self._tenant_bytes is None:
            return False
        held_bytes = self._held_by.get(tenant, 0)
        return held_bytes > own_bytes and held_bytes + size_bytes > self._tenant_bytes

    def _hold(self, size_bytes: int, tenant: str | None) -> None:
        self.held_bytes += size_bytes
        if tenant is not None and self._tenant_bytes is not None:
            held_bytes = self._held_by.get(tenant, 0) + size_bytes
            if held_bytes:
                self._held_by[tenant] = held_bytes
            else:
                self._held_by.pop(tenant, None)

    @property
    def _has_due(self) -> bool:
        """Whether a request waits for others than its own tenant's."""
        return any(not self.is_over(one.tenant, one.size_bytes, one.own_bytes) for one in self._waiting)

    @property
    def is_half_full(self) -> bool:
        return 2 * self.held_bytes >= self.limit_bytes

    def is_full(self, size_bytes: int) -> bool:
        """Whether this many bytes would have to wait."""
        return bool(self._waiting) or (size_bytes > 0 and not self._fits(size_bytes))

    def acquire_now(self, size_bytes: int, own_bytes: int = 0, tenant: str | None = None) -> bool:
        """Acquire without waiting. Returns False if there is no room, or other calls are waiting.

        Args:
            own_bytes: bytes that the same request holds already, if it acquires them as they arrive.
        """
        if (self._waiting and not own_bytes and self._has_due) or not self._fits(size_bytes, own_bytes):
            return False
        if self.is_over(tenant, size_bytes, own_bytes):
            return False
        self._hold(size_bytes, tenant)
        return True

    def acquire_anyway(self, size_bytes: int) -> None:
        """Acquire even beyond the limit: the memory is already in use, or nothing could proceed without it."""
        self.held_bytes += size_bytes

    async def acquire(self, size_bytes: int, own_bytes: int = 0, tenant: str | None = None) -> None:
        """Wait for room. If cancelled, no further bytes are held. `own_bytes`: see acquire_now."""
        if self.acquire_now(size_bytes, own_bytes, tenant):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = _WaitingRequest(size_bytes, own_bytes, granted, tenant)
        (self._waiting.appendleft if own_bytes else self._waiting.append)(request)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size_bytes, tenant)  # granted at the moment of the cancellation
            else:
                with contextlib.suppress(ValueError):  # a release may have skipped it already
                    self._waiting.remove(request)
                self._grant()
            raise

    def release(self, size_bytes: int, tenant: str | None = None) -> None:
        self._hold(-size_bytes, tenant)
        self._grant()

    def _grant(self) -> None:
        if not self._waiting:
            return
        passed: list[_WaitingRequest] = []
        while self._waiting:
            one = self._waiting[0]
            if not one.granted.done():
                if self.is_over(one.tenant, one.size_bytes, one.own_bytes):
                    passed.append(self._waiting.popleft())
                    continue
                if not self._fits(one.size_bytes, one.own_bytes):
                    break
                self._hold(one.size_bytes, one.tenant)
                one.granted.set_result(None)
            self._waiting.popleft()
        self._waiting.extendleft(reversed(passed))


class Credit:
    """Bytes that one batch's client is ready to hold. A frame may be sent while any credit is left, so the credit can
    be overdrawn by one frame: otherwise an entry larger than the window could never be sent."""

    def __init__(self, initial_bytes: int) -> None:
        self._available = initial_bytes
        self._topped_up = asyncio.Event()

    def add(self, size_bytes: int) -> None:
        self._available += size_bytes
        if self._available > 0:
            self._topped_up.set()

    async def spend(self, size_bytes: int) -> None:
        while self._available <= 0:
            self._topped_up.clear()
            await self._topped_up.wait()
        self._available -= size_bytes
