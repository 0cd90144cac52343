"""Transforms of one node, by name and version. A stage starts at its first use and is replaced without interruption.

A run ends with the version that it began with: a replaced version is closed when its last run has ended. Tenants share
the workers in turns, which account for the seconds that each tenant uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from ais_loader.errors import LoaderError, TransformFailed, TransformGone, TransformNotFound, TransformRefused
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.run.bursts import Bursts
from storage_node.etl.values import Content, Origin, PutResult, ResultDestination, TransformStage
from storage_node.etl.worker.program import INLINE_BYTES
from storage_node.etl.worker.stage import CommandStage, PythonStage, WorkerStage, workers_of
from storage_node.etl.worker.stage_context import StageContext, StageCounts, StageLog, error_text
from storage_node.limits.call_slots import current_tenant
from storage_node.limits.fair_scheduler import JobTurns
from storage_node.limits.tasks import retrieve, uninterrupted


def open_stage(transform: pb.Transform, context: StageContext) -> TransformStage:
    """Create the stage of a transform. Raises TransformRefused, MissingExtra."""
    match transform.WhichOneof("source"):
        case "python":
            return PythonStage(transform, context)
        case "command":
            return CommandStage(transform, context)
        case "server":
            from storage_node.etl.servers.stage import ServerStage

            return ServerStage(transform, context)
        case _:
            raise TransformRefused(f"{transform.name}: of a kind that this node does not know")


class _Opened:
    """An open version of a transform, with the number of its users."""

    def __init__(self, transform: pb.Transform, stage: TransformStage) -> None:
        self.transform, self.stage = transform, stage
        self.users = 0
        self.retired = False


class AdmittedStages:
    """The stages of a call as they were when it was admitted. They stay open until it is released, even if they are
    replaced."""

    def __init__(self, opened: Sequence[_Opened], release: Callable[[_Opened], None]) -> None:
        self._opened, self._release = opened, release

    @property
    def stages(self) -> Sequence[TransformStage]:
        return [one.stage for one in self._opened]

    def release(self) -> None:
        """Release the stages. May be called again."""
        opened, self._opened = self._opened, ()
        for one in opened:
            self._release(one)


class NodeTransforms:
    """All transforms of a node by name, as batches and jobs use them. Belongs to the event loop that stages run on.

    Args:
        known: Returns the current transform of a name, from the cluster's map or the store's record; None if there is
            none.
        context: Context that all stages share; logs and counters are separate for each transform.
    """

    def __init__(self, known: Callable[[str], pb.Transform | None], context: StageContext) -> None:
        self._known, self._context = known, context
        self._opened: dict[str, _Opened] = {}
        self._of_name: dict[str, tuple[StageLog, StageCounts]] = {}
        self._turns = JobTurns(
            workers_of(context.config.etl), context.config.limits.tenant_weights, clock_s=time.monotonic
        )
        self._bursts: dict[tuple[TransformStage, str, str], Bursts] = {}
        """Keyed by stage, arguments and tenant."""
        self._closing: set[asyncio.Task[None]] = set()
        self._problems: dict[str, str] = {}
        self._closed = False

    # -- runs

    def versions(self, call: batch_pb.TransformCall) -> tuple[bytes, ...]:
        """Return the uuid of each stage, a part of the key of results. Raises TransformNotFound, TransformGone."""
        return tuple([self._transform(stage.name).uuid for stage in call.stage])  # faster than a generator

    async def run(
        self, call: batch_pb.TransformCall, origin: Origin, content: Content, versions: Sequence[bytes] = ()
    ) -> Content:
        """Pass an input through all stages and close it. With `versions`, only these versions may run; otherwise raises
        TransformGone.

        Waits for its turn if all workers are busy; tenants share them by the seconds that they use.

        Raises TransformNotFound, TransformRefused, TransformFailed, TransformTimeout, TransformGone.
        """
        admitted = self._admit(call, versions, content)
        try:
            return await self.run_admitted(admitted, call, origin, content)
        finally:
            admitted.release()

    def admit(self, call: batch_pb.TransformCall, versions: Sequence[bytes] = ()) -> AdmittedStages:
        """Admit a call, to be run by the current versions. The caller releases it. Raises as `run`."""
        admitted: list[_Opened] = []
        try:
            for at, stage in enumerate(call.stage):
                opened = self._open(stage.name, versions[at] if versions else b"")
                opened.users += 1
                admitted.append(opened)
        except BaseException:
            for one in admitted:
                self._release(one)
            raise
        return AdmittedStages(admitted, self._release)

    def _admit(self, call: batch_pb.TransformCall, versions: Sequence[bytes], content: Content) -> AdmittedStages:
        """Like `admit`, for an input that belongs to the call: it is closed if the call is not admitted."""
        try:
            return self.admit(call, versions)
        except BaseException:
            content.close()
            raise

    async def run_admitted(
        self, admitted: AdmittedStages, call: batch_pb.TransformCall, origin: Origin, content: Content
    ) -> Content:
        """Like `run`, for an admitted call, which the caller releases."""
        try:
            for opened, stage in zip(admitted.stages, call.stage, strict=True):
                output = await self._counted(opened, stage, origin, content)
                content.close()
                content = output
            output, content = content, Content(0, 0)
            return output
        finally:
            content.close()

    def puts(self, call: batch_pb.TransformCall) -> bool:
        """Return whether the last stage is a server that can put its result to another node itself, according to its
        author."""
        last = self._known(call.stage[-1].name)
        return last is not None and last.server.direct_put and self._context.transform_http.is_shared

    async def run_to(
        self,
        call: batch_pb.TransformCall,
        origin: Origin,
        content: Content,
        destination: ResultDestination,
        versions: Sequence[bytes] = (),
    ) -> PutResult:
        """Like `run`, for a call that `puts`: the result goes directly from the server to its destination.

        Raises NodeUnavailable if the result was made but not accepted, or if that is unknown, and what `run` raises.
        Raises ValueError if names and metadata are too long for a token; in that case only, the input remains the
        caller's.
        """
        from storage_node.etl.servers.stage import ServerStage

        admitted = self._admit(call, versions, content)
        try:
            *before, last = admitted.stages
            assert isinstance(last, ServerStage)  # otherwise `puts` is false
            target = last.target(destination)
        except ValueError:
            admitted.release()
            raise
        try:
            for opened, stage in zip(before, call.stage, strict=False):
                output = await self._counted(opened, stage, origin, content)
                content.close()
                content = output
            stage = call.stage[-1]
            # Without a turn: no worker of this node is busy. The number of connections is the limit.
            async with self._counting(stage, f"{stage.name}: {origin}", contextlib.nullcontext()) as counts:
                put = await last.run_to(origin, content, stage.args, target)
            counts.success(content.size_bytes, put.size_bytes)
            return put
        finally:
            content.close()
            admitted.release()

    def burst(self, call: batch_pb.TransformCall) -> int:
        """Return how many small inputs should be passed through together now, by `run_many`: the smallest burst size of
        the stages, 1 if a stage has no running worker."""
        found = []
        for stage in call.stage:
            opened = self._opened.get(stage.name)
            found.append(opened.stage.burst if opened and isinstance(opened.stage, WorkerStage) else 1)
        return min(found, default=1)

    async def run_many(
        self,
        call: batch_pb.TransformCall,
        inputs: Sequence[tuple[Origin, Content]],
        versions: Sequence[bytes] = (),
    ) -> list[Content | LoaderError]:
        """Like `run` for each input, in one turn. An error of one input does not affect the others."""
        origins = [origin for origin, _ in inputs]
        outputs: list[Content | LoaderError] = [content for _, content in inputs]
        admitted = AdmittedStages((), self._release)
        try:
            admitted = self.admit(call, versions)
            for opened, stage in zip(admitted.stages, call.stage, strict=True):
                whole = {at: one for at, one in enumerate(outputs) if isinstance(one, Content)}
                outcomes = await self._counted_many(opened, stage, [(origins[at], one) for at, one in whole.items()])
                for (at, before), outcome in zip(whole.items(), outcomes, strict=True):
                    before.close()
                    outputs[at] = outcome
            done, outputs = outputs, []
            return done
        except LoaderError as error:  # nothing has started
            return [error] * len(inputs)
        finally:
            admitted.release()
            for one in outputs:
                if isinstance(one, Content):
                    one.close()

    def kept_result(self, call: batch_pb.TransformCall, size_bytes: int, results: int = 1) -> None:
        """Count results that were served from the cache."""
        counts = self.counts(call.stage[-1].name)
        counts.cache_hits += results
        counts.cache_hit_bytes += size_bytes

    def missing_result(self, call: batch_pb.TransformCall) -> None:
        self.counts(call.stage[-1].name).cache_misses += 1

    async def _counted(
        self, opened: TransformStage, stage: batch_pb.TransformStage, origin: Origin, content: Content
    ) -> Content:
        if isinstance(opened, WorkerStage) and content.data is not None and content.size_bytes <= INLINE_BYTES:
            return await self._with_others(opened, stage, origin, content)
        async with self._counting(stage, f"{stage.name}: {origin}") as counts:
            output = await opened.run(origin, content, stage.args)
        counts.success(content.size_bytes, output.size_bytes)
        return output

    async def _with_others(
        self, opened: WorkerStage, stage: batch_pb.TransformStage, origin: Origin, content: Content
    ) -> Content:
        key = opened, stage.args, (tenant := current_tenant.get())
        bursts = self._bursts.get(key)
        if bursts is None:
            bursts = self._bursts[key] = Bursts(
                workers_of(self._context.config.etl),
                lambda: opened.burst,
                lambda: self._turns.turn(tenant),
                lambda inputs: self._counted_burst(opened, stage, inputs),
                lambda: self._bursts.__delitem__(key),
            )
        return await bursts.run(origin, content)

    @contextlib.asynccontextmanager
    async def _counting(
        self,
        stage: batch_pb.TransformStage,
        what: str,
        turn: contextlib.AbstractAsyncContextManager[None] | None = None,
        objects: int = 1,
    ) -> AsyncIterator[StageCounts]:
        """Context of one run, in its turn. Raises what the run raises; an internal error becomes TransformFailed.

        Args:
            what: What is run, in the message of that error.
            objects: Number of objects that fail with the run.
        """
        counts = self.counts(stage.name)
        async with turn or self._turns.turn(current_tenant.get()):
            began_s = time.monotonic()
            counts.running += 1
            try:
                yield counts
            except Exception as error:
                for _ in range(objects):
                    counts.failure(error)
                if isinstance(error, LoaderError):
                    raise
                raise TransformFailed(f"{what}: {type(error).__name__}: {error}") from error  # concerns these alone
            finally:
                counts.running -= 1
                counts.busy_s += time.monotonic() - began_s

    def _release(self, opened: _Opened) -> None:
        opened.users -= 1
        if opened.retired and not opened.users:
            self._close(opened)

    async def _counted_many(
        self, opened: TransformStage, stage: batch_pb.TransformStage, inputs: Sequence[tuple[Origin, Content]]
    ) -> Sequence[Content | LoaderError]:
        if not isinstance(opened, WorkerStage) or len(inputs) == 1:
            return await asyncio.gather(*(self._outcome(opened, stage, *one) for one in inputs))
        async with self._turns.turn(current_tenant.get()):
            return await self._counted_burst(opened, stage, inputs)

    async def _counted_burst(
        self, opened: WorkerStage, stage: batch_pb.TransformStage, inputs: Sequence[tuple[Origin, Content]]
    ) -> Sequence[Content | LoaderError]:
        """Run a burst within a turn. An error of the burst is that of each input."""
        try:
            async with self._counting(stage, stage.name, contextlib.nullcontext(), len(inputs)) as counts:
                outcomes = await opened.run_many(inputs, stage.args)
        except LoaderError as error:
            return [error] * len(inputs)
        for (_, content), outcome in zip(inputs, outcomes, strict=True):
            if isinstance(outcome, LoaderError):
                counts.failure(outcome)
            else:
                counts.success(content.size_bytes, outcome.size_bytes)
        return outcomes

    async def _outcome(
        self, opened: TransformStage, stage: batch_pb.TransformStage, origin: Origin, content: Content
    ) -> Content | LoaderError:
        try:
            return await self._counted(opened, stage, origin, content)
        except LoaderError as error:
            return error

    # -- versions

    def _transform(self, name: str) -> pb.Transform:
        transform = self._known(name)
        if transform is None:
            raise TransformNotFound(f"there is no transform {name!r}; client.etl.init makes one")
        if transform.stopped:
            raise TransformGone(f"transform {name!r} is stopped; client.etl.start starts it again")
        return transform

    def _open(self, name: str, version: bytes) -> _Opened:
        if self._closed:
            raise TransformGone(f"transform {name!r}: this node is stopping")
        transform = self._transform(name)
        if version and transform.uuid != version:
            raise TransformGone(f"transform {name!r} has been replaced meanwhile")
        opened = self._opened.get(name)
        if opened is not None and opened.transform.uuid == transform.uuid:
            return opened
        if opened is not None:
            self._retire(name)
        log, counts = self._own(name)
        try:
            stage = open_stage(transform, replace(self._context, log=log, counts=counts))
        except LoaderError as error:
            self._problems[name] = error_text(error)
            raise
        except ImportError as error:  # a missing extra
            self._problems[name] = error_text(error)
            raise TransformRefused(f"{name}: {error}") from error
        self._problems.pop(name, None)
        self._opened[name] = opened = _Opened(transform, stage)
        return opened

    def _retire(self, name: str) -> None:
        opened = self._opened.pop(name)
        opened.retired = True
        if not opened.users:
            self._close(opened)

    def _close(self, opened: _Opened) -> None:
        task = uninterrupted(opened.stage.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        task.add_done_callback(retrieve)

    def follow(self) -> None:
        """Close the stages of transforms that were stopped, deleted or replaced. Called when the map or the record has
        changed."""
        for name, opened in list(self._opened.items()):
            transform = self._known(name)
            if transform is None or transform.stopped or transform.uuid != opened.transform.uuid:
                self._retire(name)
        for name in [name for name in self._of_name if self._known(name) is None]:
            del self._of_name[name]

    def prepare(self, transforms: Sequence[pb.Transform]) -> None:
        """Create environments for transforms that other nodes use already, before a request waits for them."""
        if self._context.environments is None or not self._context.config.etl.install or self._closed:
            return
        for transform in transforms:
            if transform.python.requirement and not transform.stopped and transform.name not in self._problems:
                with contextlib.suppress(LoaderError):
                    stage = self._open(transform.name, transform.uuid).stage
                    assert isinstance(stage, PythonStage)
                    stage.prepare()

    @contextlib.asynccontextmanager
    async def tried(self, transform: pb.Transform) -> AsyncIterator[None]:
        """Context in which a transform becomes known: first check that it can start here, then serve it with the stage
        that was started.

        Raises the error of the start.
        """
        log, counts = StageLog(), StageCounts()
        try:
            stage = open_stage(transform, replace(self._context, log=log, counts=counts))
        except ImportError as error:
            raise TransformRefused(f"{transform.name}: {error}") from error
        try:
            if isinstance(stage, PythonStage | CommandStage):
                await stage.try_out()
            yield
        except BaseException:
            await stage.close()
            raise
        known = self._known(transform.name)
        if known is None or known.uuid != transform.uuid or transform.name in self._opened:
            await stage.close()  # another call was faster
            return
        self._of_name[transform.name] = log, counts
        self._problems.pop(transform.name, None)
        self._opened[transform.name] = _Opened(known, stage)

    async def close(self) -> None:
        self._closed = True
        for name in list(self._opened):
            opened = self._opened.pop(name)
            opened.retired = True
            self._close(opened)
        while self._closing:
            await asyncio.wait(self._closing)
        await self._context.transform_http.stop()

    # -- state

    def _own(self, name: str) -> tuple[StageLog, StageCounts]:
        found = self._of_name.get(name)
        return self._of_name.setdefault(name, (StageLog(), StageCounts())) if found is None else found

    def counts(self, name: str) -> StageCounts:
        return self._own(name)[1]

    def all_counts(self) -> dict[str, StageCounts]:
        """Return counters by name, for all existing transforms that have been used. May be called from any thread."""
        return {name: counts for name, (_, counts) in list(self._of_name.items())}

    def state(self, transform: pb.Transform, *, with_log: bool) -> pb.NodeTransform:
        """Return a transform's state on this node, without the node's uuid."""
        name = transform.name
        found = self._of_name.get(name)
        problem = self._problems.get(name, "")
        opened = self._opened.get(name)
        if not problem and opened is not None and isinstance(opened.stage, WorkerStage):
            problem = opened.stage.problem
        state = pb.NodeTransform.RUNNING if name in self._opened else pb.NodeTransform.IDLE
        if transform.stopped:
            state = pb.NodeTransform.STOPPED
        elif problem:
            state = pb.NodeTransform.FAILED
        report = pb.NodeTransform(state=state, problem=problem)
        if found is not None:
            log, counts = found
            for one in (
                "workers",
                "objects",
                "failed",
                "input_bytes",
                "output_bytes",
                "busy_s",
                "cache_hits",
                "restarts",
            ):
                setattr(report, one, getattr(counts, one))
            report.error.extend(counts.errors)
            if with_log:
                report.log = log.text()
        return report
