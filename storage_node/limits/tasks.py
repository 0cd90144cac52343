"""Tasks of a node's event loop: work that is begun again when it fails, and waits that are not torn away.

A task of an event loop that ends with an exception nobody expected ends in silence, and the node would serve on without
its work: copies that are never made equal, a map that is never asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ais_loader.wire.backoff import Backoff

T = TypeVar("T")

BACKOFF = Backoff(1.0, 60.0, jitter=0)
log = logging.getLogger(__name__)


async def keep_going(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work`, which is meant to go on until it is cancelled, and begin it again when it fails."""
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began_s = loop.time()
        try:
            await work()
            return
        except Exception:
            if loop.time() - began_s > BACKOFF.longest_s:
                failures = 0
            pause_s = BACKOFF.pause_s(failures)
            log.exception("%s failed and is restarted in %g s", name, pause_s)
        await asyncio.sleep(pause_s)
        failures += 1


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
