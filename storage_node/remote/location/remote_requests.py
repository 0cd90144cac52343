"""RemoteRequests: requests to one remote location, with their turns, repetitions, hedges and counters.

Each request waits for its turn at the host (`HostLimiter`). One that fails in a way that may pass is repeated after a
pause. A GET that is slower than nearly all recent ones is sent a second time, within a budget.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ais_loader.errors import LoaderError, ObjectNotFound, RemoteDenied, RemoteUnavailable
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.gather.hedging import HedgeBudget, Silences
from storage_node.limits.tasks import settled
from storage_node.remote.drivers.driver import Driver, ReadAnswer, RequestFailure, begun
from storage_node.remote.drivers.failures import message
from storage_node.remote.location.host_limiter import HostLimiter, HostLimiters, HostTurn
from storage_node.remote.location.usage import RemoteBucketUsage, Request
from storage_node.settings.declarations import RemoteSettings

T = TypeVar("T")

RETRY = Backoff(0.1, 5.0, jitter=0.5)
"""Pauses before a failed request is repeated."""
HEDGE_AFTER_S = 0.5
"""No answer that comes earlier is slow: a second request costs money, and a first byte usually takes 20 to 200 ms."""
REOPEN_S = 10.0
"""Minimum time between two readings of credentials after the storage has refused some."""


class OpenedAnswer:
    """An answer to a GET, with its places among the requests in flight."""

    def __init__(self, answer: ReadAnswer, turns: list[HostTurn]) -> None:
        self.answer = answer
        self._turns = turns

    async def close(self) -> None:
        """End the request, and give up its places. May be called again."""
        try:
            await self.answer.close()
        finally:
            _end(self._turns)


class Retries:
    """Failures of one operation, and the time until which it is repeated."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._failures = 0
        self.last_error: LoaderError | None = None
        self.deadline_s: float | None = None
        """Time of the loop's clock; None before the first failure."""

    def failed(self, failure: RequestFailure) -> float | None:
        """Return the pause before the next attempt; None if there is none."""
        now_s = asyncio.get_running_loop().time()
        self.last_error = failure.error
        if self.deadline_s is None:
            self.deadline_s = now_s + self._retry_s
        pause_s = RETRY.pause_s(self._failures)
        self._failures += 1
        return pause_s if failure.retry and now_s + pause_s < self.deadline_s else None

    def progressed(self) -> None:
        """Note that bytes came."""
        self._failures, self.deadline_s = 0, None


class RemoteRequests:
    """Requests to one location. Belongs to one event loop, and is opened by its first request.

    Args:
        url: URL of the location, for messages.
        open_driver: opens the location. Runs in a thread. Raises LoaderError.
        limiters: limiters of the process.
        usage: counters of the bucket.
        budget: budget of second requests.
        pace: limiter of the bucket's requests per second, if it has a limit.
    """

    def __init__(
        self,
        url: str,
        open_driver: Callable[[], Driver],
        settings: RemoteSettings,
        limiters: HostLimiters,
        usage: RemoteBucketUsage,
        budget: HedgeBudget,
        pace: HostLimiter | None = None,
    ) -> None:
        self._url = url
        self._open_driver = open_driver
        self._settings = settings
        self._limiters = limiters
        self._usage = usage
        self._budget = budget
        self._pace = pace
        self._silences = Silences(floor_s=HEDGE_AFTER_S, first_s=2.0)
        self._opened: tuple[Driver, HostLimiter] | None = None
        self._opened_s = 0.0
        self._opening = asyncio.Lock()

    def close(self) -> None:
        """Forget connections and credentials. The next request opens the location again."""
        self._opened = None

    async def driver(self) -> tuple[Driver, HostLimiter]:
        if self._opened is not None:
            return self._opened
        async with self._opening:
            if self._opened is None:
                driver = await asyncio.to_thread(self._open_driver)
                self._opened = driver, self._limiters.of(driver.host)
                self._opened_s = time.monotonic()
            return self._opened

    async def get(
        self,
        name: str,
        start: int,
        end: int,
        *,
        if_match: str = "",
        if_none_match: str = "",
        retries: Retries | None = None,
    ) -> OpenedAnswer:
        """Begin a GET. Raises NotModified, PreconditionFailed."""

        async def begin(sent: Callable[[], None]) -> OpenedAnswer:
            driver, limiter = await self.driver()

            def send() -> Awaitable[ReadAnswer]:
                return begun(driver, name, start, end, if_match=if_match, if_none_match=if_none_match)

            return OpenedAnswer(*await self._answered("get", name, send, limiter, sent))

        return await self.retry(name, lambda: self._hedged(begin), retries)

    async def _hedged(self, begin: Callable[[Callable[[], None]], Coroutine[Any, Any, OpenedAnswer]]) -> OpenedAnswer:
        """Return the first answer: of one request, or of two if the first is slow."""
        if not self._budget.share:
            return await begin(lambda: None)
        _, limiter = await self.driver()
        loop, sent_s, timers = asyncio.get_running_loop(), list[float](), list[asyncio.TimerHandle]()
        seconds: list[asyncio.Task[OpenedAnswer]] = []
        first_ends = asyncio.timeout(None)
        """Ends the first request when the second one has an answer."""

        def answered(second: asyncio.Task[OpenedAnswer]) -> None:
            if is_first_open and not second.cancelled() and not isinstance(second.exception(), RequestFailure):
                first_ends.reschedule(loop.time())

        def hedge() -> None:
            is_busy = limiter.is_busy or (self._pace is not None and self._pace.is_busy)
            if not is_busy and self._budget.take(1):
                seconds.append(asyncio.create_task(begin(lambda: sent_s.append(loop.time()))))
                seconds[0].add_done_callback(answered)

        def sent() -> None:
            sent_s.append(loop.time())
            timers.append(loop.call_later(self._silences.limit_s(last=False), hedge))

        self._budget.requested(1)
        is_first_open, is_cancelled = True, False
        first: OpenedAnswer | None = None
        try:
            # An answer that is not a success, such as "not found", is one; a failure waits for the other request.
            try:
                async with first_ends:
                    first = await begin(sent)
                    return first
            except (RequestFailure, TimeoutError):
                is_first_open = False
                if not seconds:
                    raise
                answer = await seconds[0]
                seconds.clear()
                return answer
        except asyncio.CancelledError:
            is_cancelled = True
            raise
        finally:
            is_first_open = False
            if not is_cancelled:
                self._silences.note(loop.time() - min(sent_s, default=loop.time()))
            for timer in timers:
                timer.cancel()
            if seconds:
                await _abandon(seconds, first)
            if len(sent_s) > 1:  # while it waits for its turn, it is no request yet
                self._usage.note("hedged")

    async def _answered(
        self,
        request: Request,
        name: str,
        send: Callable[[], Awaitable[T]],
        limiter: HostLimiter,
        sent: Callable[[], None] = lambda: None,
    ) -> tuple[T, list[HostTurn]]:
        """Send one request in its turn. Returns the answer, and the places that it has until it is complete.

        Raises RequestFailure.
        """
        turns: list[HostTurn] = []
        try:
            if self._pace is not None:
                turns.append(await self._pace.turn().begin())
            turns.append(turn := await limiter.turn().begin())
            self._usage.note(request)
            sent()
            try:
                async with asyncio.timeout(self._settings.timeout_s if request != "put" else None):
                    result = await send()
            except RequestFailure as failure:
                if failure.throttled:
                    self._usage.note("throttled")
                    limiter.throttled(turn)
                raise
            except TimeoutError:
                silence = f"no answer for {self._settings.timeout_s:g} s (remote_timeout_s)"
                raise RequestFailure(self.unavailable(name, silence), retry=True) from None
            limiter.answered(turn)
            return result, turns
        except BaseException:
            _end(turns)
            raise

    async def answered(self, request: Request, name: str, send: Callable[[Driver], Awaitable[T]]) -> T:
        """Send one request whose answer is complete at once. Raises RequestFailure."""
        driver, limiter = await self.driver()
        result, turns = await self._answered(request, name, lambda: send(driver), limiter)
        _end(turns)
        return result

    async def send(self, request: Request, name: str, send: Callable[[Driver], Awaitable[T]]) -> T:
        """Call `answered`, and again after failures."""
        return await self.retry(name, lambda: self.answered(request, name, send))

    async def retry(self, name: str, once: Callable[[], Awaitable[T]], retries: Retries | None = None) -> T:
        retries = retries or Retries(self._settings.retry_s)
        while True:
            opened_s = 0.0
            try:
                async with asyncio.timeout_at(at_s) if (at_s := retries.deadline_s) else contextlib.nullcontext():
                    await self.driver()
                    opened_s = self._opened_s
                    return await once()
            except RequestFailure as failure:
                if not self._reopens(failure, opened_s):
                    await self.pause(failure, retries)
                self._usage.note("retried")
            except LoaderError:
                raise
            except TimeoutError:
                self._usage.note("errors")
                raise retries.last_error or self.unavailable(name, "no answer") from None

    async def pause(self, failure: RequestFailure, retries: Retries) -> None:
        """Wait before the next attempt. Raises the failure's error if there is none."""
        pause_s = retries.failed(failure)
        if pause_s is None:
            if not isinstance(failure.error, ObjectNotFound):
                self._usage.note("errors")
            raise failure.error from None
        await asyncio.sleep(pause_s)

    def _reopens(self, failure: RequestFailure, opened_s: float) -> bool:
        """Have credentials read again after a refusal, because they may have been replaced. Returns whether the request
        is to be repeated with them.

        `opened_s`: when those of the request were read.
        """
        if not isinstance(failure.error, RemoteDenied):
            return False
        if opened_s == self._opened_s:
            if time.monotonic() < opened_s + REOPEN_S:
                return False
            self._opened = None
        return True

    def unavailable(self, name: str, reason: str) -> RemoteUnavailable:
        return RemoteUnavailable(message((f"{self._url}/{name}" if name else self._url), reason, ()))


def _end(turns: list[HostTurn]) -> None:
    while turns:
        turns.pop().end()


async def _abandon(tasks: Sequence[asyncio.Task[OpenedAnswer]], used: OpenedAnswer | None) -> None:
    """End requests whose answers are not used; if cancelled, then also the one that was to be used."""

    async def end(answer: Awaitable[OpenedAnswer]) -> None:
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await (await answer).close()

    for task in tasks:
        task.cancel()
    try:
        await settled(asyncio.gather(*map(end, tasks)))
    except asyncio.CancelledError:
        if used is not None:
            await used.close()
        raise
