"""Admission control: the node's budget of frame memory, each batch's credit. Used from the node's event loop only."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class MemoryBudget:
    """Bytes of frames that have been read and not yet handed to the network; whoever would exceed it waits, in order.

    A single request larger than the whole budget is granted when nothing else is held: it could never be otherwise.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def _fits(self, size_bytes: int) -> bool:
        return self.held_bytes == 0 or self.held_bytes + size_bytes <= self.limit_bytes

    def is_full(self, size_bytes: int) -> bool:
        """Whether this much has to wait."""
        return bool(self._waiting) or (size_bytes > 0 and not self._fits(size_bytes))

    def acquire_now(self, size_bytes: int) -> bool:
        """Whether there was room, with nobody waiting for it; then it is held."""
        if self._waiting or not self._fits(size_bytes):
            return False
        self.held_bytes += size_bytes
        return True

    def acquire_anyway(self, size_bytes: int) -> None:
        """Held whether it fits or not: it has happened already, or nothing could go on without it."""
        self.held_bytes += size_bytes

    async def acquire(self, size_bytes: int) -> None:
        """Cancelled while waiting, it holds nothing."""
        if self.acquire_now(size_bytes):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(size_bytes)  # granted in the very moment of the cancellation
            else:
                with contextlib.suppress(ValueError):  # a release may have passed over it already
                    self._waiting.remove((size_bytes, granted))
                self._grant()
            raise

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        self._grant()

    def _grant(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size_bytes, granted = self._waiting.popleft()
            if not granted.done():
                self.held_bytes += size_bytes
                granted.set_result(None)


class Credit:
    """Bytes that one batch's client is ready to hold. A frame may go while any credit is left, so it can overdraw by
    one frame: otherwise an entry larger than the window could never be sent."""

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
