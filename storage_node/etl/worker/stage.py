"""Worker stage: a transform's pool of worker processes, for Python code and for commands.

Workers are started when there is work for them, up to the number that run concurrently, and kept for a while. A worker
that has died is replaced: at once for the next object, and with growing delays while no new worker becomes ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ais_loader.errors import LoaderError, TransformError, TransformFailed, TransformGone, TransformRefused
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.values import Content, Origin
from storage_node.etl.worker import sandbox
from storage_node.etl.worker.environments import Environment, is_needed
from storage_node.etl.worker.process import WorkerDied, WorkerInput, WorkerProcess
from storage_node.etl.worker.process_limits import ProcessLimits
from storage_node.etl.worker.program import BURST_BYTES, INLINE_BYTES, room_for
from storage_node.etl.worker.stage_context import StageContext, error_text
from storage_node.limits.tasks import settled, uninterrupted
from storage_node.settings.command_template import (
    WrongArgument,
    WrongCommand,
    check_suffix,
    parse,
    parse_text,
    words_of,
)
from storage_node.settings.declarations import EtlSettings
from storage_node.store.permissions import require_trusted

IDLE_S = 60.0
DEFAULT_RETRIES = 1
_BURST = 64
"""Maximum number of small objects that are sent to a worker together."""
_BURST_S = 0.03
"""Approximate time that a burst keeps a worker busy; others wait for their turn meanwhile."""
_PAUSES = Backoff(0.5, 30.0, jitter=0.2)
PROCESSES_PER_WORKER = 64
"""Maximum number of processes and threads, if workers have a user of their own. It is multiplied by the number of
workers and shared by all of them."""


class WorkerStage(ABC):
    """A `Stage` on worker processes. Subclasses define the setup of a worker."""

    def __init__(self, transform: pb.Transform, context: StageContext) -> None:
        """Read the limits of the transform. Raises TransformRefused."""
        self._transform, self._context = transform, context
        etl, limits = context.config.etl, transform.limits
        self._timeout_s = min(limits.timeout_s or etl.timeout_s, etl.timeout_s)
        self._max_bytes = min(limits.output_bytes or etl.output_bytes, etl.output_bytes)
        self._memory_bytes = min(limits.memory_bytes or etl.worker_memory_bytes, etl.worker_memory_bytes)
        self._free = asyncio.Semaphore(min(transform.workers or 1 << 20, workers_of(etl)))
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._ending: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._failures = 0
        self._not_before_s = 0.0
        self._last_failure: TransformError | TransformRefused | None = None
        self._retries = limits.retries or DEFAULT_RETRIES
        self.burst = 1
        """Number of small objects that should be passed through together: as many as a worker finishes within a short
        time."""

    @abstractmethod
    def _setup(self) -> tuple[dict[str, Any], bytes]:
        """Return the setup message of a worker, and the code that it receives."""

    async def _python(self) -> str:
        """Return the interpreter that runs workers; "" for this process's own. Raises TransformFailed; OSError if other
        users can change it."""
        if python := self._context.config.etl.python:
            require_trusted(Path(python))
        return python

    @property
    def problem(self) -> str:
        """The error of the last attempt to start a worker; "" if it succeeded."""
        return "" if self._last_failure is None else error_text(self._last_failure)

    async def run(self, origin: Origin, content: Content, args: str) -> Content:
        """See `Stage`."""
        (output,) = await self.run_many([(origin, content)], args)
        if isinstance(output, LoaderError):
            raise output
        return output

    async def run_many(self, inputs: Sequence[tuple[Origin, Content]], args: str) -> list[Content | LoaderError]:
        """Like `run` for each input, by one worker. If it is cancelled, no output remains."""
        outputs: list[Content | LoaderError | None] = [None] * len(inputs)
        tries: Counter[int] = Counter()
        left = list(range(len(inputs)))
        alone: set[int] = set()
        """Inputs that are sent alone, because one of them has ended a worker and it cannot be determined which."""
        try:
            while left:
                some = self._together(inputs, left, alone)
                try:
                    outcomes = await self._by_one_worker([inputs[at] for at in some], args)
                except LoaderError as error:
                    outcomes = [error] * len(some)
                for at, outcome in zip(some, outcomes, strict=True):
                    if isinstance(outcome, WorkerDied):
                        tries[at] += 1
                        if tries[at] <= self._retries:
                            continue
                    outputs[at] = outcome
                if all(outcome is None for outcome in outcomes):
                    alone.update(some)
                left = [at for at in left if outputs[at] is None]
            done, outputs = [one for one in outputs if one is not None], []
            return done
        finally:
            for one in outputs:
                if isinstance(one, Content):
                    one.close()

    def _together(
        self, inputs: Sequence[tuple[Origin, Content]], left: Sequence[int], alone: Collection[int]
    ) -> list[int]:
        """Return which of the remaining inputs are sent to a worker together."""
        some: list[int] = []
        size_bytes = 0
        for at in left[: self.burst]:
            content = inputs[at][1]
            if content.data is None or content.size_bytes > INLINE_BYTES or at in alone:
                return some or [at]
            size_bytes += room_for(content.size_bytes)
            if some and size_bytes > BURST_BYTES:
                break
            some.append(at)
        return some

    async def _by_one_worker(
        self, inputs: Sequence[tuple[Origin, Content]], args: str
    ) -> list[Content | LoaderError | None]:
        """Return the outcomes; None for inputs that were not started. Raises TransformError, TransformRefused."""
        inflation = self._transform.limits.inflation
        given = []
        for origin, content in inputs:
            most_bytes = min(self._max_bytes, int(inflation * content.size_bytes)) if inflation else self._max_bytes
            given.append(WorkerInput(str(origin), content, most_bytes))
        async with self._free:
            worker = await self._worker()
            self._busy.add(worker)
            try:
                began_s = time.monotonic()
                outcomes = await worker.run(given, args, self._timeout_s)
                self._adapt(len(given), time.monotonic() - began_s)
            finally:
                self._busy.discard(worker)
                self._give_back(worker)
        named: list[Content | LoaderError | None] = []
        for (origin, _), outcome in zip(inputs, outcomes, strict=True):
            if isinstance(outcome, TransformError):
                outcome = type(outcome)(f"{self._transform.name}: {origin}: {outcome}")
            named.append(outcome)
        return named

    def _adapt(self, count: int, seconds: float) -> None:
        """Adapt the burst size to the duration of a burst. The thresholds are wide, so that a busy machine, which
        delays each burst, does not shrink them."""
        if seconds > 4 * _BURST_S:
            self.burst = max(1, int(count * _BURST_S / seconds))
        elif seconds < _BURST_S and count == self.burst:
            self.burst = min(_BURST, 2 * count)

    async def try_out(self) -> None:
        """Start a worker. Raises the error of the start."""
        self._give_back(await self._worker())

    async def _worker(self) -> WorkerProcess:
        if self._closed:
            raise TransformGone(f"{self._transform.name}: it was stopped, deleted or replaced meanwhile")
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            self._context.counts.restarts += 1
            self._close(worker)
        if self._last_failure is not None and time.monotonic() < self._not_before_s:
            raise type(self._last_failure)(f"{self._last_failure} (tried again in a while)")
        worker = WorkerProcess(
            self._context.spool, self._memory_bytes, 2 * self._max_bytes, self._context.on_thread, self._context.log.add
        )
        self._context.counts.workers += 1
        etl = self._context.config.etl
        processes = PROCESSES_PER_WORKER * workers_of(etl) if etl.user else 0
        process_limits = ProcessLimits(self._memory_bytes, self._max_bytes, etl.network, processes, os.getpid())
        setup, code = self._setup()
        self._busy.add(worker)
        try:
            await worker.start(setup, code, process_limits, python=await self._python(), user=etl.user)
        except BaseException as error:
            self._context.counts.workers -= 1
            if isinstance(error, OSError):
                error = TransformFailed(f"{self._transform.name}: no worker can be started: {error}")
            elif isinstance(error, TransformError | TransformRefused):
                error = type(error)(f"{self._transform.name}: it does not start: {error}")
            else:
                raise
            self._failed(error)
            raise error from None
        finally:
            self._busy.discard(worker)
        self._failures, self._last_failure = 0, None
        return worker

    def _failed(self, error: TransformError | TransformRefused) -> None:
        """Record that no worker could be started, and delay the next attempt."""
        self._not_before_s = time.monotonic() + _PAUSES.pause_s(self._failures)
        self._failures += 1
        self._last_failure = error

    def _give_back(self, worker: WorkerProcess) -> None:
        if self._closed or not worker.alive:
            if not worker.alive:
                self._context.counts.restarts += 1
            self._close(worker)
            return
        self._idle.append(worker)
        if self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)

    def _end_idle(self) -> None:
        """End workers that have been idle for long."""
        self._ending = None
        now_s = time.monotonic()
        for worker in [one for one in self._idle if now_s - one.idle_since_s >= IDLE_S - 1]:
            self._idle.remove(worker)
            self._close(worker)
        if self._idle:
            self._ending = asyncio.get_running_loop().call_later(IDLE_S, self._end_idle)

    def _close(self, worker: WorkerProcess) -> None:
        self._context.counts.workers -= 1
        task = uninterrupted(worker.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """See `Stage`: running objects get the transform's time limit to finish."""
        self._closed = True
        if self._ending is not None:
            self._ending.cancel()
        while self._idle:
            self._close(self._idle.pop())
        deadline_s = time.monotonic() + self._timeout_s
        while self._busy and time.monotonic() < deadline_s:
            await asyncio.sleep(0.02)
        for worker in list(self._busy):
            worker.kill()
        while self._closing:
            await settled(asyncio.ensure_future(asyncio.wait(self._closing)))


class PythonStage(WorkerStage):
    """A function or a class of a client."""

    def __init__(self, transform: pb.Transform, context: StageContext) -> None:
        if not context.config.etl.code:
            raise TransformRefused(
                f"{transform.name}: this node runs no code of clients': its operator would have to allow it "
                "(etl_code = true, or serve --etl-code)"
            )
        super().__init__(transform, context)
        self._environment: asyncio.Task[Environment] | None = None
        requirements = self._requirements = list(transform.python.requirement)
        installs = context.config.etl.install and context.environments is not None
        self._needs_environment = installs and is_needed(requirements)

    def prepare(self) -> None:
        """Start creating what the first worker would wait for."""
        if self._needs_environment and time.monotonic() >= self._not_before_s:
            self._begin_environment()

    def _begin_environment(self) -> asyncio.Task[Environment]:
        if self._environment is None:
            assert self._context.environments is not None
            making = self._context.environments.make(self._requirements, self._context.log.add)
            self._environment = asyncio.ensure_future(making)
            self._environment.add_done_callback(self._on_environment)
        return self._environment

    def _on_environment(self, task: asyncio.Task[Environment]) -> None:
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self._failures, self._last_failure = 0, None
            return
        self._environment = None  # the next caller creates it again
        if isinstance(error, TransformError):
            self._failed(type(error)(f"{self._transform.name}: it does not start: {error}"))

    async def _python(self) -> str:
        """See `WorkerStage`. If the caller is cancelled, the environment is still created, for the next one."""
        if not self._needs_environment:
            return await super()._python()
        making = self._begin_environment()
        try:
            return (await asyncio.shield(making)).python
        except asyncio.CancelledError:
            if making.cancelled():
                raise TransformGone("it was stopped, deleted or replaced meanwhile") from None
            raise

    async def close(self) -> None:
        """See `Stage`."""
        making, self._environment = self._environment, None
        if making is not None and not making.done():
            making.cancel()
        await super().close()
        if making is not None:
            with contextlib.suppress(asyncio.CancelledError, TransformError):
                (await making).release()

    def _setup(self) -> tuple[dict[str, Any], bytes]:
        python = self._transform.python
        setup = {
            "kind": "python",
            "name": python.qualified_name or self._transform.name,
            "python": python.python or f"{sys.version_info[0]}.{sys.version_info[1]}",
            "requirements": list(python.requirement),
            "streaming": python.streaming,
            "path": python.path,
        }
        return setup, python.pickle


class CommandStage(WorkerStage):
    """A command that the operator lists, by its name, or one that a client wrote, if clients may run code."""

    def __init__(self, transform: pb.Transform, context: StageContext) -> None:
        super().__init__(transform, context)
        command, etl = transform.command, context.config.etl
        try:
            words, self._usage = self._words_of(command, etl)
            self._fixed = self._fixed_arguments(words, command)
            for suffix in (command.input_suffix, command.output_suffix):
                check_suffix(suffix)
        except WrongCommand as error:
            raise TransformRefused(f"{transform.name}: {error}") from None
        except WrongArgument as error:
            raise TransformRefused(f"{transform.name}: args: {error}{self._usage}") from None
        found = shutil.which(words[0])
        if found is None:
            raise TransformRefused(f"{transform.name}: there is no program {words[0]!r} on this node (PATH)")
        self._words = [os.path.abspath(found), *words[1:]]
        self._sandbox = None if etl.sandbox == "off" else sandbox.offered()
        if etl.sandbox == "required" and self._sandbox is not None and self._sandbox.lacking:
            raise TransformRefused(
                f"{transform.name}: this node runs commands in a full sandbox only (etl_sandbox = required), and here "
                f"{'; '.join(self._sandbox.lacking)}"
            )

    def _words_of(self, command: pb.Command, etl: EtlSettings) -> tuple[list[str], str]:
        """Return the words, and the suffix of errors about an argument. Raises TransformRefused, WrongCommand."""
        if not command.template:
            if not etl.code:
                raise TransformRefused(
                    f"{self._transform.name}: this node runs no commands that clients write: its operator would have "
                    f"to allow them (etl_code = true, or serve --etl-code); it has {listed(etl.commands)}"
                )
            words = list(command.argument)
            parse(words)
            return words, ""
        text = etl.commands.get(command.template)
        if text is None:
            raise TransformRefused(
                f"{self._transform.name}: this node has no command {command.template!r}: it has "
                f"{listed(etl.commands)}; its operator lists them (etl_commands, or serve --etl-command)"
            )
        return words_of(text), f"; {command.template} takes {parse_text(text).usage}"

    def _fixed_arguments(self, words: list[str], command: pb.Command) -> dict[str, Any]:
        """Return the arguments that the transform itself sets. Raises WrongArgument."""
        try:
            fixed = json.loads(command.args or "{}")
        except ValueError as error:
            raise WrongArgument(f"not JSON: {error}") from None
        if not isinstance(fixed, dict):
            raise WrongArgument("need an object of names and values")
        line = parse(words)
        # Arguments that are missing here may come with a request.
        known = {argument.name: argument for argument in line.arguments}
        for name, value in fixed.items():
            if name not in known:
                raise WrongArgument(f"this command takes no argument {name!r}")
            known[name].text(value)
        return fixed

    def _setup(self) -> tuple[dict[str, Any], bytes]:
        command, etl = self._transform.command, self._context.config.etl
        setup = {
            "kind": "command",
            "argument": self._words,
            "usage": self._usage,
            "args": self._fixed,
            "input_suffix": command.input_suffix,
            "output_suffix": command.output_suffix,
            "sandbox": None if self._sandbox is None else self._sandbox.as_json(),
            "readable": [os.path.realpath(self._words[0]), *etl.command_paths],
        }
        return setup, b""


def listed(commands: Mapping[str, str]) -> str:
    """Describe the commands of a node and their arguments, for messages."""
    return ", ".join(f"{name} ({parse_text(text).usage})" for name, text in commands.items()) or "none"


def sandbox_state(etl: EtlSettings) -> str:
    """The mechanisms that contain the commands of a node, for status; empty if it runs none."""
    if not etl.commands and not etl.code:
        return ""
    return "off" if etl.sandbox == "off" else str(sandbox.offered())


def sandbox_warnings(etl: EtlSettings, drives: Sequence[Path]) -> list[str]:
    """Return warnings for the operator of a node that starts: what its sandbox of commands lacks."""
    if not sandbox_state(etl) or etl.sandbox == "off":
        return []
    then = "commands are refused" if etl.sandbox == "required" else "a command is not fully contained"
    found = [f"etl_sandbox={etl.sandbox}: {then}: {lacking}" for lacking in sandbox.offered().lacking]
    for folder in sandbox.SYSTEM_FOLDERS:
        inside = [str(drive) for drive in drives if drive.resolve().is_relative_to(Path(folder).resolve())]
        if inside:
            found.append(f"commands can read {inside[0]}: it lies in {folder}, where programs are; move the drive")
    return found


def workers_of(etl: EtlSettings) -> int:
    """Return the number of objects that are transformed concurrently."""
    return etl.workers or len(os.sched_getaffinity(0))
