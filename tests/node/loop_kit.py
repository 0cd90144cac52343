"""Event loop for a test, and time for its tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await coroutine

    asyncio.run(bounded())


async def settle() -> None:
    """Let every task run as far as it gets."""
    for _ in range(10):
        await asyncio.sleep(0)
