"""Crew of a measurement: starts, instructs, monitors and ends the measuring processes.

A crew always runs in processes of its own, even a single one: the conductor costs the measured processes nothing, and
their memory and CPU time are theirs alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from operator import sub
from typing import Any

from ais_loader.bench import filling, machine
from ais_loader.bench.calls import connected
from ais_loader.bench.plan import BenchPlan
from ais_loader.bench.result import Measured, result
from ais_loader.bench.tally import BenchTally, new_histogram
from ais_loader.bench.worker import work
from ais_loader.errors import LoaderError, NodeUnavailable
from ais_loader.objects.client import Client

START_S = 120.0
"""Time for processes to import and connect."""
END_S = 60.0
"""Longest duration of a call after the processes were stopped; a process that takes longer is ended."""
Live = Callable[[float, int, int, int], None]
"""Callback, called every half second with seconds, objects, bytes and errors."""
_FIGURES = ("objects", "bytes", "errors")
"""Figures reported while a measurement runs."""


class Crew:
    """The processes of a plan. `measured` has their results."""

    def __init__(self, plan: BenchPlan) -> None:
        context = multiprocessing.get_context("spawn")
        self._reports: list[dict[str, Any]] = []
        self._notes: list[str] = []
        self._running: dict[Connection, BaseProcess] = {}
        self._all: list[BaseProcess] = []
        self._plan = plan
        for number in range(plan.processes):
            parent_end, child_end = context.Pipe()
            process = context.Process(target=work, args=(plan, number, child_end), daemon=True)
            process.start()
            child_end.close()
            self._running[parent_end] = process
            self._all.append(process)

    def start(self) -> None:
        """Wait until all processes are connected."""
        self._until_all("ready", START_S)

    def warm_up(self) -> None:
        self._send_all("go")
        self._until_all("warm", self._plan.warm_up_s + END_S + self._plan.retry_s)

    def _send_all(self, command: str) -> None:
        for pipe in self._running:
            with contextlib.suppress(ConnectionError):  # it has ended, which its end of the pipe shows
                pipe.send(command)

    def _until_all(self, kind: str, timeout_s: float) -> None:
        """Wait until every process has sent this message, and no other."""
        end = time.monotonic() + timeout_s
        for pipe in self._running:
            if not pipe.poll(max(0.0, end - time.monotonic())):
                raise NodeUnavailable(f"a process of the measurement was not {kind} within {timeout_s:.0f} s")
            message, value = self._received(pipe)
            if message != kind:
                raise NodeUnavailable(f"a process of the measurement said {message} before it was {kind}: {value}")

    def follow(self, live: Live | None = None) -> bool:
        """Measure until all have reported. Returns False if they were stopped before."""
        self._send_all("go")
        start = time.monotonic()
        of_each: dict[Connection, dict[str, int]] = {}
        deadline = None if self._plan.epochs else start + self._plan.duration_s + END_S
        stop_sent = False
        while self._running:
            try:
                for pipe in wait(list(self._running), 1.0):
                    assert isinstance(pipe, Connection)
                    message, value = self._received(pipe)
                    if message == "done":
                        self._reports.append(value)
                        del self._running[pipe]
                    else:
                        of_each[pipe] = value
                if live is not None:
                    live(time.monotonic() - start, *(sum(one[name] for one in of_each.values()) for name in _FIGURES))
            except KeyboardInterrupt:
                if stop_sent:
                    raise  # a second interrupt ends it at once
                stop_sent = True
                self._send_all("stop")
                deadline = time.monotonic() + END_S
            if deadline is not None and time.monotonic() > deadline:
                self._notes.append(f"{len(self._running)} processes did not end in time, and are not counted")
                return False
        return not stop_sent

    @property
    def measured(self) -> Measured:
        """The result, after `follow`. Raises NodeUnavailable if nothing was measured."""
        if not self._reports:
            raise NodeUnavailable("no process of the measurement came to its end; nothing was measured")
        total = BenchTally()
        for report in self._reports:
            for packed in report["tallies"]:
                total.add(BenchTally.unpacked(packed))
        return Measured(
            total,
            elapsed_s=max(report["elapsed_s"] for report in self._reports),
            cpu_s=sum(report["cpu_s"] for report in self._reports),
            peak_bytes=sum(report["peak_bytes"] for report in self._reports),
            notes=self._notes,
        )

    def _received(self, pipe: Connection) -> tuple[str, Any]:
        try:
            message, value = pipe.recv()
        except (EOFError, ConnectionResetError):
            process = self._running[pipe]
            process.join(1.0)  # its end of the pipe closes a moment before it ends
            raise NodeUnavailable(f"a process of the measurement died (exit code {process.exitcode})") from None
        if message == "failed":
            if isinstance(value, (LoaderError, OSError, ImportError)):
                raise value
            raise RuntimeError(f"a process of the measurement failed: {value!r}") from value
        return message, value

    def end(self) -> None:
        for process in self._all:
            process.join(0.0 if process.pid is None else (5.0 if process.exitcode is None and not self._running else 0))
            if process.is_alive():
                process.terminate()
                process.join(5)
            if process.is_alive():
                process.kill()
                process.join(5)
        for pipe in self._running:
            pipe.close()


def prepare(client: Client, plan: BenchPlan, filled: filling.Filled | None = None) -> bool:
    """Create the bucket and the data that the plan reads. Return whether anything was put. Raises InvalidRequest."""
    bucket = filling.own_bucket(client, plan.bucket, plan.copies)
    return plan.workload not in ("put", "put-many") and filling.fill(bucket, plan, filled)


def run(
    plan: BenchPlan,
    *,
    live: Live | None = None,
    described: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure, in a prepared bucket. After KeyboardInterrupt, the result covers what was done until then.

    Raises a process's connection error, and NodeUnavailable if a process died.
    """
    new_histogram()  # raises an error about missing packages before anything is started
    described = described or {}
    nodes = machine.Nodes(described)
    cold = machine.make_cold(described) if plan.cold else None
    crew = Crew(plan)
    try:
        crew.start()
        nodes.begin_peak()
        crew.warm_up()
        node_before, devices_before = nodes.cpu_s(), machine.device_counts_of(described)
        whole = crew.follow(live)
        node_after, devices = nodes.cpu_s(), machine.device_counts_of(described)
    finally:
        crew.end()
    notes = []
    if nodes.unseen and not plan.embedded:
        notes.append(f"processor time of nodes is not known: {', '.join(nodes.unseen)} cannot be seen from here")
    return result(
        plan,
        crew.measured,
        node_cpu_s=None if node_before is None or node_after is None else node_after - node_before,
        node_peak_bytes=nodes.peak_bytes(),
        whole=whole,
        devices={
            path: tuple(map(sub, devices[path], then)) for path, then in devices_before.items() if path in devices
        },
        cold=cold,
        notes=notes,
    )


def finish(plan: BenchPlan) -> None:
    """Delete the objects that the measurement has put. The data it read stays for the next one."""
    if plan.writes:
        with connected(plan) as client:
            filling.forget_written(client.bucket(plan.bucket))
