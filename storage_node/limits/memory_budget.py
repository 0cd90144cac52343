"""Memory budgets: bytes that calls hold together on the node, and bytes that a batch's client is ready to hold."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class MemoryBudget:
    """Counts held bytes, on the node's event loop. A call that would exceed the limit waits, in order of arrival.

    A single request larger than the whole budget is granted when nothing else is held; otherwise it never could be. A
    request that holds a part of its bytes precedes those that hold nothing: they may be waiting for that part.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()
        """Requested bytes, bytes that the same request holds already, and the grant."""

    def _fits(self, size_bytes: int, own_bytes: int = 0) -> bool:
        return self.held_bytes <= own_bytes or self.held_bytes + size_bytes <= self.limit_bytes

    @property
    def is_half_full(self) -> bool:
        """Whether at least half of it is held."""
        return 2 * self.held_bytes >= self.limit_bytes

    def is_full(self, size_bytes: int) -> bool:
        """Whether this many bytes would have to wait."""
        return bool(self._waiting) or (size_bytes > 0 and not self._fits(size_bytes))

    def acquire_now(self, size_bytes: int, own_bytes: int = 0) -> bool:
        """Acquire without waiting. Returns False if there is no room, or other calls are waiting.

        Args:
            own_bytes: bytes that the same request holds already, if it acquires them as they arrive.
        """
        if (self._waiting and not own_bytes) or not self._fits(size_bytes, own_bytes):
            return False
        self.held_bytes += size_bytes
        return True

    def acquire_anyway(self, size_bytes: int) -> None:
        """Acquire even beyond the limit: the memory is already in use, or nothing could proceed without it."""
        self.held_bytes += size_bytes

    async def acquire(self, size_bytes: int, own_bytes: int = 0) -> None:
        """Wait for room. If cancelled, no further bytes are held. `own_bytes`: see acquire_now."""
        if self.acquire_now(size_bytes, own_bytes):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        request = size_bytes, own_bytes, granted
        (self._waiting.appendleft if own_bytes else self._waiting.append)(request)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size_bytes)  # granted at the moment of the cancellation
            else:
                with contextlib.suppress(ValueError):  # a release may have skipped it already
                    self._waiting.remove(request)
                self._grant()
            raise

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(*self._waiting[0][:2]):
            size_bytes, _, granted = self._waiting.popleft()
            if not granted.done():
                self.held_bytes += size_bytes
                granted.set_result(None)


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
