"""Several processes of one gateway, which share the socket that listens: one that dies is replaced."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from ais_loader.errors import LoaderError, StoreError
from ais_loader.wire.backoff import Backoff

from .counters import GatewayCounters
from .plan import GatewayPlan
from .worker import READY, run_worker

log = logging.getLogger(__name__)
START_TIMEOUT_S = 60.0
_BACKOFF = Backoff(0.1, 10.0, jitter=0)
_SHORT_LIFE_S = 10.0
_COUNTERS_TIMEOUT_S = 2.0
_END_TIMEOUT_S = 5.0
"""How long a process may take to end beyond the time for running requests."""


class _GatewayWorker:
    """One process and its control pipe."""

    def __init__(self, plan: GatewayPlan, listener: socket.socket, number: int) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would inherit threads and locks of this process
        self.control, theirs = spawn.Pipe()
        self.process: SpawnProcess = spawn.Process(
            target=run_worker, args=(plan, listener, theirs), name=f"gateway-{number}", daemon=True
        )
        self.process.start()
        theirs.close()
        self.began_s = time.monotonic()
        self.is_ready = False
        self._asked = 0
        self._lock = threading.Lock()

    def wait_until_ready(self) -> None:
        """Raises LoaderError if it cannot serve."""
        try:
            message = self.control.recv() if self.control.poll(START_TIMEOUT_S) else None
        except (EOFError, OSError):
            message = None
        if isinstance(message, LoaderError):
            raise message
        if message != READY:
            raise StoreError("a process of the gateway did not start; its standard error says why")
        self.is_ready = True

    def counters(self) -> GatewayCounters | None:
        """Return its counters; None if it does not answer in time."""
        with self._lock, suppress(EOFError, OSError):
            if not self.is_ready:
                return None
            self._asked += 1
            self.control.send(self._asked)
            ends_s = time.monotonic() + _COUNTERS_TIMEOUT_S
            while self.control.poll(max(0.0, ends_s - time.monotonic())):
                number, counters = self.control.recv()
                if number == self._asked and isinstance(counters, GatewayCounters):
                    return counters
        return None


class GatewayWorkers:
    """The processes of a gateway. Belongs to the main thread; `counters` may be called from any."""

    def __init__(self, plan: GatewayPlan, listener: socket.socket, count: int) -> None:
        """Start them. Raises LoaderError if one of them cannot serve."""
        self._plan, self._listener = plan, listener
        self._failures = [0] * count
        self._workers: list[_GatewayWorker | None] = []
        try:
            for number in range(count):
                self._workers.append(_GatewayWorker(plan, listener, number))
            for worker in self._workers:
                assert worker is not None
                worker.wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def counters(self) -> dict[str, GatewayCounters]:
        """Return the counters of each process by its number."""
        found = {}
        for number, worker in enumerate(list(self._workers)):
            if worker is not None and (counters := worker.counters()) is not None:
                found[str(number)] = counters
        return found

    def run(self) -> None:
        """Replace processes that die, until SIGTERM or SIGINT."""
        stopping = threading.Event()
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, lambda *_: stopping.set())
        woken, waking = socket.socketpair()
        with woken, waking:
            waking.setblocking(False)
            woken.setblocking(False)
            before = signal.set_wakeup_fd(waking.fileno())
            try:
                due_s: dict[int, float] = {}
                while not stopping.is_set():
                    for number, worker in enumerate(self._workers):
                        if worker is not None and not worker.process.is_alive():
                            due_s[number] = time.monotonic() + self._bury(number, worker)
                    for number in [number for number, at_s in due_s.items() if at_s <= time.monotonic()]:
                        del due_s[number]
                        if not self._replace(number):
                            due_s[number] = time.monotonic() + _BACKOFF.longest_s
                    watched: list[int | Connection | socket.socket] = [woken]
                    watched += [one.process.sentinel for one in self._workers if one is not None]
                    watched += [one.control for one in self._workers if one is not None and not one.is_ready]
                    left_s = min(due_s.values()) - time.monotonic() if due_s else None
                    wait(watched, None if left_s is None else max(0.0, left_s))
                    with suppress(BlockingIOError):
                        woken.recv(64)
                    self._note_ready()
            finally:
                signal.set_wakeup_fd(before)
                self.stop()

    def _note_ready(self) -> None:
        for worker in self._workers:
            if worker is not None and not worker.is_ready and worker.control.poll():
                try:
                    worker.wait_until_ready()
                except LoaderError as error:
                    log.warning("a process of the gateway cannot serve: %s", error)
                    worker.process.join(_END_TIMEOUT_S)

    def _bury(self, number: int, worker: _GatewayWorker) -> float:
        """Note a process that has ended, and return after how many seconds to start another."""
        self._workers[number] = None
        worker.process.join()
        worker.control.close()
        lived_s = time.monotonic() - worker.began_s
        self._failures[number] = self._failures[number] + 1 if lived_s < _SHORT_LIFE_S else 0
        pause_s = _BACKOFF.pause_s(self._failures[number]) if self._failures[number] else 0.0
        log.warning(
            "process %s of the gateway ended with code %s; another one starts in %.1f s",
            worker.process.pid,
            worker.process.exitcode,
            pause_s,
        )
        return pause_s

    def _replace(self, number: int) -> bool:
        try:
            self._workers[number] = _GatewayWorker(self._plan, self._listener, number)
        except OSError as error:
            log.warning("a process of the gateway cannot start: %s", error)
            return False
        return True

    def stop(self) -> None:
        """End the processes; requests may finish within the limits' `grace_s`."""
        running = [worker for worker in self._workers if worker is not None]
        self._workers = []
        for worker in running:
            worker.process.terminate()
        ends_s = time.monotonic() + self._plan.options.limits.grace_s + _END_TIMEOUT_S
        for worker in running:
            worker.process.join(max(0.0, ends_s - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.control.close()
