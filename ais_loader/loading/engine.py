"""Engine: one iteration. A thread draws batches and submits them to workers, and the trainer gets them in order.

    plan or sampler  ->  draw (a thread)  ->  fetch, decode, collate (workers)  ->  trainer, in order

At most `in_flight` batches are drawn and not delivered. A failure in any place is raised in the place of its batch.
If no batch comes, a stall watch says where the loader waits.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, Literal, NamedTuple, TypeAlias

from ais_loader.errors import SilenceTimeout
from ais_loader.loading.places import SamplerRun
from ais_loader.loading.workers import FetchedBatch, Workers
from ais_loader.training.plan_position import PlanRun


class Ticket(NamedTuple):
    """A batch that was drawn."""

    number: int
    step: int
    named: str
    place: Any
    """The position after this batch."""
    work: Any
    draw_s: float
    future: Future[FetchedBatch]


class Engine:
    """Hands out the batches of one iteration until it is closed. `take` is for one thread at a time.

    Closing does not hide the end: if all batches that were drawn have been delivered, the drawer looks for one more.
    """

    def __init__(
        self,
        run: PlanRun | SamplerRun,
        workers: Workers,
        in_flight: int,
        name_of: Callable[[Any], str],
        watch: StallWatch,
    ) -> None:
        self._run, self._workers, self._name_of, self._watch = run, workers, name_of, watch
        self._free = threading.Semaphore(in_flight)
        self._tickets: SimpleQueue[Ticket | BaseException | None] = SimpleQueue()
        """The batches, in order. An error or None is the last element."""
        self._closed = self._has_released = False
        self._total: int | None = None
        """The number of batches, once the drawer has come to the end."""
        self._drawing_since_s = time.time()
        self._drawer = threading.Thread(target=self._draw, name="ais-loader-draw", daemon=True)
        self._drawer.start()

    def take(self) -> tuple[Ticket, FetchedBatch] | None:
        """Return the next batch, or None at the end or when closed. Raises an error in its place."""
        if self._closed:
            return None
        watch = self._watch.begin()
        ticket = self._next(watch)
        if isinstance(ticket, BaseException):
            raise ticket
        if ticket is None:
            return None
        watch.place = ticket.named
        fetched: FetchedBatch | None = None
        while fetched is None:
            try:
                fetched = ticket.future.result(watch.left_s)
            except Exception as error:
                if not isinstance(error, TimeoutError) or (ticket.future.done() and ticket.future.exception() is error):
                    error.add_note(f"raised for {ticket.named}, of {self._name_of(ticket.work)}")
                    raise
                if watch.tell(f"{self._workers.progress(ticket.number)}, for {self._name_of(ticket.work)}"):
                    self._workers.restart(ticket.number)
        self._free.release()
        return ticket, fetched

    @property
    def has_delivered_all(self) -> bool:
        """Whether the trainer has received all batches of the iteration. Known at the end, and after `close`."""
        return self._run.delivered == self._total

    def _next(self, watch: StallWatch) -> Ticket | BaseException | None:
        while True:
            with contextlib.suppress(Empty):
                return self._tickets.get(timeout=watch.left_s)
            since = time.strftime("%X", time.localtime(self._drawing_since_s))
            watch.tell(f"{self._drawer.name} is in stage 'draw' since {since}")

    def _draw(self) -> None:
        end: BaseException | None = None
        number = 0
        drawn = iter(self._run.batches())
        try:
            while self._free.acquire() and (not self._closed or 0 < number == self._run.delivered):
                self._drawing_since_s, began_s = time.time(), time.perf_counter()
                one = next(drawn, None)
                if one is None:
                    self._total = number
                if one is None or self._closed:
                    break
                step, work, place = one
                draw_s = time.perf_counter() - began_s
                named = self._run.named(step)
                future = self._workers.submit(number, work, named, self._run.seed(step, work))
                self._tickets.put(Ticket(number, step, named, place, work, draw_s, future))
                number += 1
        except BaseException as error:  # noqa: BLE001 - raised where the batch is consumed
            end = error
        self._tickets.put(end)

    def release(self) -> Workers:
        """Return the workers, of which all batches were delivered. `close` does not end them."""
        self._has_released = True
        return self._workers

    def close(self) -> None:
        """Stop, and wait until all threads have ended, unless one of them has stalled. May be called again."""
        self._closed = True
        self._free.release()
        wait = not self._watch.has_raised
        if wait and self._drawer is not threading.current_thread():
            self._drawer.join()
        if not self._has_released:
            self._workers.close(wait=wait)
        self._tickets.put(None)  # for a thread that waits in `take`


OnStall: TypeAlias = Literal["wait", "raise", "restart"]
ON_STALL = ("wait", "raise", "restart")
log = logging.getLogger(__name__)


class StallWatch:
    """The trainer's wait for one batch at a time."""

    def __init__(self, stall_s: float | None, on_stall: OnStall, rank: int) -> None:
        self._stall_s, self._on_stall, self._rank = stall_s, on_stall, rank
        self.place = "the beginning"
        """Where the wait is, in words."""
        self.has_raised = False
        self._told = False
        self._due_s = 0.0

    def begin(self) -> StallWatch:
        """Note that a wait begins."""
        self.place = f"after {self.place.removeprefix('after ')}"
        self._told = self._stall_s is None
        self._due_s = time.monotonic() + (self._stall_s or 0)
        return self

    @property
    def left_s(self) -> float | None:
        """Time to wait before it is a stall, in seconds; None to wait without an end."""
        return None if self._told else max(0.0, self._due_s - time.monotonic())

    def tell(self, where: str) -> bool:
        """Warn of a stall, with the stacks of all threads. Returns whether to restart the worker.

        Raises SilenceTimeout with on_stall="raise".
        """
        text = f"rank {self._rank}, {self.place}: no batch for {self._stall_s:g} s; {where}"
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            log.warning("%s\n%s", text, file.read().decode(errors="replace"))
        if self._on_stall == "raise":
            self.has_raised = True
            raise SilenceTimeout(text)
        if self._on_stall == "restart":
            self._due_s = time.monotonic() + (self._stall_s or 0)
            return True
        self._told = True
        return False
