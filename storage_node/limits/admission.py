"""Credit of a batch: the payload bytes that its client is ready to hold. Used only from the node's event loop."""

from __future__ import annotations

import asyncio


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
