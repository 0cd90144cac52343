"""Worker process of a measurement: threads that call the store, and a pipe that reports progress.

The process sends "ready" when it is connected, warms up on a message of the conductor, sends "warm", and measures on
the next message, so that all begin together. It reports its counters every half second, and everything at the end.
Ctrl-C is handled by the conductor: the process continues until it is stopped.
"""

from __future__ import annotations

import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from ais_loader.bench.calls import Calls, Done, connected, numbers
from ais_loader.bench.plan import BenchPlan
from ais_loader.bench.tally import BenchTally
from ais_loader.errors import LoaderError
from ais_loader.testing.memory import peak_rss_bytes

Run: TypeAlias = Callable[[Iterator[Any]], Iterator[Done]]
REPORT_EVERY_S = 0.5
_AFTER_ERROR_S = 0.05
_WARM_UP = 1
"""Salt of the order of objects in a warm-up, which differs from that of the measurement."""


def measure(
    run: Run, wanted: Iterator[Any], stop: threading.Event, tally: BenchTally, until: float | None = None
) -> None:
    """Have `run` make calls until `wanted` ends, `until` (of time.monotonic), or `stop`; count them in `tally`.

    A failed call counts as an error of its kind, and the thread goes on with the next object.
    """
    while True:
        try:
            for done in run(wanted):
                tally.record(done.elapsed_ns, done.objects, done.size_bytes)
                tally.errors.update(done.errors)
                if stop.is_set() or (until is not None and time.monotonic() >= until):
                    return
            return
        except (LoaderError, OSError) as error:
            tally.errors[getattr(error, "kind", type(error).__name__)] += 1
            if stop.wait(_AFTER_ERROR_S) or (until is not None and time.monotonic() >= until):
                return


class Threads:
    """Threads of one process. `tallies` may be read while they run."""

    def __init__(self, plan: BenchPlan, process: int) -> None:
        self.stop = threading.Event()
        self.failed: list[BaseException] = []
        self.tallies = [BenchTally() for _ in range(plan.threads)]
        self._plan = plan
        self._first = process * plan.threads
        self._client = connected(plan)
        self._client.describe()  # connects
        self._threads: list[threading.Thread] = []

    def warm_up(self) -> None:
        if self._plan.warm_up_s:
            self._start([BenchTally() for _ in self.tallies], self._plan.warm_up_s, epochs=0, salt=_WARM_UP)
            self.join()

    def start(self) -> None:
        self._start(self.tallies, self._plan.duration_s, epochs=self._plan.epochs)

    def _start(self, tallies: list[BenchTally], seconds: float, epochs: int, salt: int = 0) -> None:
        until = None if epochs else time.monotonic() + seconds
        self._threads = [
            threading.Thread(target=self._run, args=(worker, epochs, salt, tally, until), daemon=True)
            for worker, tally in enumerate(tallies, self._first)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, worker: int, epochs: int, salt: int, tally: BenchTally, until: float | None) -> None:
        plan = self._plan
        try:
            run = Calls(plan, self._client, worker).run
            measure(run, numbers(plan, worker, epochs, salt), self.stop, tally, until)
        except BaseException as error:  # noqa: BLE001  # the conductor gets it
            self.failed.append(error)
            self.stop.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Join the threads. Return whether all have ended."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        self._client.close()


def work(plan: BenchPlan, process: int, pipe: Connection) -> None:
    """Main function of a measuring process. Messages are (kind, value). The first two messages from the conductor mean
    "go", and later ones "stop", as does the end of the conductor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        threads = Threads(plan, process)
    except (LoaderError, OSError, ImportError) as error:
        pipe.send(("failed", error))
        return
    try:
        pipe.send(("ready", None))
        pipe.recv()
        threads.warm_up()
        pipe.send(("warm", None))
        pipe.recv()
        start, used = time.monotonic(), _cpu_s()
        threads.start()
        while not threads.join(REPORT_EVERY_S):
            pipe.send(("so far", _so_far(threads.tallies)))
            if pipe.poll():
                threads.stop.set()
        report = {"elapsed_s": time.monotonic() - start, "cpu_s": _cpu_s() - used, "peak_bytes": peak_rss_bytes()}
        if threads.failed:
            pipe.send(("failed", threads.failed[0]))
        else:
            pipe.send(("done", report | {"tallies": [tally.packed() for tally in threads.tallies]}))
    except (EOFError, ConnectionError):
        threads.stop.set()  # the conductor is gone
    finally:
        threads.close()


def _so_far(tallies: list[BenchTally]) -> dict[str, Any]:
    return {
        "objects": sum(tally.objects for tally in tallies),
        "bytes": sum(tally.size_bytes for tally in tallies),
        "errors": sum(sum(tally.errors.copy().values()) for tally in tallies),
    }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
