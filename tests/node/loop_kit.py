"""Event loop for a test, and time for its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

WAIT_S = 180.0


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(WAIT_S):
            await coroutine

    asyncio.run(bounded())


async def settle() -> None:
    """Let every task run as far as it gets."""
    for _ in range(10):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], interval_s: float = 0.0) -> None:
    """Let other tasks run until the condition holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(interval_s)
