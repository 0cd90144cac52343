"""Tasks of a node's event loop: work that restarts after a failure, and waits that a cancellation does not interrupt.

A task that ends with an unexpected exception ends silently, and the node would continue without its work: replicas that
are never repaired, a map that is never updated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

from ais_loader.errors import LoaderError
from ais_loader.wire.backoff import Backoff

T = TypeVar("T")

BACKOFF = Backoff(1.0, 60.0, jitter=0)
_uninterrupted: weakref.WeakSet[asyncio.Future[Any]] = weakref.WeakSet()
log = logging.getLogger(__name__)


class OffLoop(Protocol):
    """Runs a function that waits for drives, off the event loop."""

    def __call__(self, function: Callable[..., T], /, *arguments: Any) -> Awaitable[T]: ...


async def keep_going(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, which normally runs until it is cancelled, and restart it when it fails."""
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


def uninterrupted(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Begin work that `cancel_others` waits for without cancelling it, as it does for what is `settled`."""
    task = asyncio.ensure_future(work)
    _uninterrupted.add(task)
    return task


async def settled(future: asyncio.Future[T], cancel: Callable[[], object] = bool) -> T:
    """Return the result of `future`. A cancellation calls `cancel` at once, and is raised when the future is done."""
    _uninterrupted.add(future)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        cancel()
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        retrieve(future)
        raise


def end_now(wait: asyncio.Timeout) -> None:
    """End a wait, unless it is ending already."""
    if not wait.expired():
        wait.reschedule(asyncio.get_running_loop().time())


async def results_of(works: Iterable[Awaitable[T]]) -> list[T | LoaderError]:
    """Await all of these at once. Returns results and LoaderErrors, in order; raises an exception of another kind."""
    found: list[T | LoaderError] = []
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException) and not isinstance(result, LoaderError):
            raise result
        found.append(result)
    return found


async def cancel_others(timeout_s: float) -> None:
    """Cancel all other tasks of the event loop that may be interrupted, and wait for all, `timeout_s` at most."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        if task not in _uninterrupted:  # loops of other threads add to it meanwhile: it is not iterated over
            task.cancel()
    if left:
        await asyncio.wait(left, timeout=timeout_s)


def deliver(outcome: asyncio.Future[T], result: Any, error: BaseException | None = None) -> None:
    """Deliver a result or an error, unless no task waits for it any more."""
    if outcome.done():
        return
    if error is None:
        outcome.set_result(result)
    else:
        outcome.set_exception(error)


def retrieve(finished: asyncio.Future[Any]) -> None:
    """Retrieve a result for which no task waits any more, so that asyncio does not log it."""
    if finished.done() and not finished.cancelled():
        finished.exception()
