"""Conductor of a measurement: fills the bucket, starts the processes, follows them, and adds up what they found.

Every process is one of its own, also a single one: what the conductor does costs the measured ones nothing, and memory
and processor time are theirs alone.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from ais_loader.bench import filling, machine
from ais_loader.bench.calls import connected
from ais_loader.bench.plan import Plan
from ais_loader.bench.result import result
from ais_loader.bench.tally import Tally, new_histogram
from ais_loader.bench.worker import work
from ais_loader.client import Client
from ais_loader.errors import LoaderError, NodeUnavailable

_START_S = 120.0
"""How long processes may take to import and connect."""
_END_S = 60.0
"""How long a call may last once all are told to stop; a process that takes longer is ended."""
Live = Callable[[float, int, int, int], None]
"""Told every half second: seconds, objects, bytes, errors."""


def prepare(client: Client, plan: Plan, filled: filling.Filled | None = None) -> bool:
    """Make the bucket and what the plan reads; whether anything had to be put. Raises InvalidRequest."""
    bucket = filling.own_bucket(client, plan.bucket, plan.copies)
    return plan.workload not in ("put", "put-many") and filling.fill(bucket, plan, filled)


def run(plan: Plan, *, live: Live | None = None, described: dict[str, Any] | None = None) -> dict[str, Any]:
    """Measure; the bucket is prepared. After KeyboardInterrupt the result is of what was done until then.

    Raises what a process could not connect for, and NodeUnavailable if one died.
    """
    new_histogram()  # raises what is missing before anything is started
    described = described or {}
    nodes = machine.Nodes(described)
    cold = machine.make_cold(described) if plan.cold else None
    crew = _Crew(plan)
    try:
        crew.until_all("ready", _START_S)
        nodes.begin_peak()
        crew.tell("go")
        crew.until_all("warm", plan.warm_up_s + _END_S + plan.retry_s)
        node_before = nodes.cpu_s()
        whole = crew.follow(live)
        node_after = nodes.cpu_s()
    finally:
        crew.end()
    total = Tally()
    for report in crew.reports:
        for packed in report["tallies"]:
            total.add(Tally.unpacked(packed))
    notes = list(crew.notes)
    if nodes.unseen and not plan.embedded:
        notes.append(f"processor time of nodes is not known: {', '.join(nodes.unseen)} cannot be seen from here")
    if not crew.reports:
        raise NodeUnavailable("no process of the measurement came to its end; nothing was measured")
    return result(
        plan,
        total,
        max(report["elapsed_s"] for report in crew.reports),
        client_cpu_s=sum(report["cpu_s"] for report in crew.reports),
        node_cpu_s=None if node_before is None or node_after is None else node_after - node_before,
        client_peak_bytes=sum(report["peak_bytes"] for report in crew.reports),
        node_peak_bytes=nodes.peak_bytes(),
        whole=whole,
        cold=cold,
        notes=notes,
    )


def finish(plan: Plan) -> None:
    """Delete what the measurement has put; what it read stays for the next one."""
    if plan.writes:
        with connected(plan) as client:
            filling.forget_written(client.bucket(plan.bucket))


class _Crew:
    """Processes of one measurement, and what came from them."""

    def __init__(self, plan: Plan) -> None:
        context = multiprocessing.get_context("spawn")
        self.reports: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._running: dict[Connection, BaseProcess] = {}
        self._all: list[BaseProcess] = []
        self._epochs = bool(plan.epochs)
        self._plan = plan
        for number in range(plan.processes):
            here, there = context.Pipe()
            process = context.Process(target=work, args=(plan, number, there), daemon=True)
            process.start()
            there.close()
            self._running[here] = process
            self._all.append(process)

    def tell(self, word: str) -> None:
        for pipe in self._running:
            with contextlib.suppress(BrokenPipeError):  # it has ended, which its own end of the pipe tells
                pipe.send(word)

    def until_all(self, kind: str, timeout_s: float) -> None:
        """Wait until every process has said this, and nothing else."""
        end = time.monotonic() + timeout_s
        for pipe in self._running:
            if not pipe.poll(max(0.0, end - time.monotonic())):
                raise NodeUnavailable(f"a process of the measurement was not {kind} within {timeout_s:.0f} s")
            said, value = self._received(pipe)
            if said != kind:
                raise NodeUnavailable(f"a process of the measurement said {said} before it was {kind}: {value}")

    def follow(self, live: Live | None) -> bool:
        """Until all have reported; false if they were told to stop before."""
        start = time.monotonic()
        so_far: dict[Connection, dict[str, int]] = {}
        deadline = None if self._epochs else start + self._plan.duration_s + _END_S
        whole = True
        while self._running:
            try:
                ready = wait(list(self._running), 1.0)
                for pipe in ready:
                    assert isinstance(pipe, Connection)
                    said, value = self._received(pipe)
                    if said == "done":
                        self.reports.append(value)
                        del self._running[pipe]
                    else:
                        so_far[pipe] = value
                if live is not None:
                    sums = [sum(one[name] for one in so_far.values()) for name in ("objects", "bytes", "errors")]
                    live(time.monotonic() - start, sums[0], sums[1], sums[2])
            except KeyboardInterrupt:
                if not whole:
                    raise  # a second one: now
                whole = False
                self.tell("stop")
                deadline = time.monotonic() + _END_S
            if deadline is not None and time.monotonic() > deadline:
                self.notes.append(f"{len(self._running)} processes did not end in time, and are not counted")
                return False
        return whole

    def _received(self, pipe: Connection) -> tuple[str, Any]:
        try:
            said, value = pipe.recv()
        except (EOFError, ConnectionResetError):
            code = self._running[pipe].exitcode
            raise NodeUnavailable(f"a process of the measurement died (exit code {code})") from None
        if said == "failed":
            if isinstance(value, (LoaderError, OSError, ImportError)):
                raise value
            raise RuntimeError(f"a process of the measurement failed: {value!r}") from value
        return said, value

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
