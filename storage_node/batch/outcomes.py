"""How the work on a batch ends without an answer, and how to wait for work that must not be torn away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Gone(Exception):
    """The client cannot be written to any more."""


class Busy(Exception):
    """The batch has to be asked for again, later. `reason` is what the node counts it under."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


async def settled(future: asyncio.Future[T], cancel: Callable[[], object] = bool) -> T:
    """The outcome of `future`. A cancellation is passed on to `cancel` at once, and to the caller when it is done."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancel()
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        retrieve(future)
        raise


def retrieve(finished: asyncio.Future[Any]) -> None:
    """Take note of an outcome that nobody waits for any more."""
    if finished.done() and not finished.cancelled():
        finished.exception()
