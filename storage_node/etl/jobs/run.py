"""Run of a job on one node: passes over the node's sources until every one has its result.

A pass first looks up which results exist, so it costs little if an earlier one has done the work. Passes are repeated
after a restart, when nodes come or go, and when a job is run again for changed sources.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeAlias

from ais_loader.errors import (
    BucketNotFound,
    InvalidRequest,
    LoaderError,
    NodeUnavailable,
    NotFound,
    OutcomeUnknown,
    RemoteDenied,
    SnapshotReadOnly,
    StaleMap,
    TransformGone,
    TransformNotFound,
    Unsupported,
)
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.job_names import JobNames
from ais_loader.wire.object_info import Stored
from storage_node.cluster.replication.put_groups import SMALL_BYTES, PutGroups
from storage_node.etl.jobs.job_store import Input, JobStore, ListedSource, is_gone, is_superseded
from storage_node.etl.jobs.shares import Division, NodeShare
from storage_node.etl.jobs.stamp import JOB_KEY, SOURCE_KEY, is_result, source_version, stages_text, stamp
from storage_node.etl.run.node_transforms import NodeTransforms
from storage_node.etl.transform_http import METADATA
from storage_node.etl.values import Content, Origin, ResultDestination
from storage_node.etl.worker.program import INLINE_BYTES
from storage_node.limits.memory_budget import MemoryBudget
from storage_node.limits.wakeup import Wakeup

GROUP_OBJECTS, GROUP_BYTES = 128, 8 << 20
"""Limits on the number and size of sources that are looked up and read together."""
DIRECT_BYTES = 64 << 10
"""Results expected to be smaller are sent to their owners in groups, which costs less than a request for each."""
_GROUPS = 3
"""Number of groups in progress."""
_HELD_BYTES = 64 << 20
"""Limit on the estimated size of results that wait to be stored."""
AGAIN = Backoff(0.5, 8.0, jitter=0.2)
TRIES = 6
"""Attempts per object, about 15 s with `AGAIN`, before it counts as failed."""
ENDS_THE_JOB = (BucketNotFound, SnapshotReadOnly, TransformNotFound)
JobParts: TypeAlias = Mapping[bytes, pb.JobPartResponse | None]
"""Parts of a job by node; None for a node that did not answer."""
PartsOf: TypeAlias = Callable[[Sequence[bytes], pb.JobPartRequest], Awaitable[JobParts]]
log = logging.getLogger(__name__)


class _ReadObject(NamedTuple):
    name: str
    result: str
    """Name of the result."""
    input: Input


def call_of(stages: Iterable[pb.JobStage]) -> batch_pb.TransformCall:
    return batch_pb.TransformCall(stage=[batch_pb.TransformStage(name=one.name, args=one.args) for one in stages])


class ResultsUrls:
    """HTTP endpoints of the other nodes, where servers put results."""

    def __init__(self, parts_of: PartsOf, others: Callable[[], Sequence[bytes]]) -> None:
        self._parts_of, self._others = parts_of, others
        self._found: dict[bytes, str] = {}

    async def learn(self) -> None:
        """Query the nodes that answer. Never raises."""
        self.take(await self._parts_of(self._others(), pb.JobPartRequest(with_results_url=True)))

    def take(self, answers: JobParts) -> None:
        self._found = {node: "" if answer is None else answer.results_url for node, answer in answers.items()}

    def of(self, node: bytes) -> str:
        """Return the endpoint of a node by its uuid; "" if it accepts no results or has not answered."""
        return self._found.get(node, "")


class JobRun:
    """One node's run of a job. Belongs to the event loop.

    Args:
        division: Returns the current division of the sources.
        on_fatal: Called when the whole job cannot continue.
        on_finished: Called after each complete pass.
        concurrency: Number of objects transformed concurrently, if the job does not specify it.
        results_urls: Endpoints where servers put results to other nodes.
    """

    def __init__(
        self,
        job: pb.TransformJob,
        store: JobStore,
        transforms: NodeTransforms,
        part: NodeShare,
        division: Callable[[], Division],
        on_fatal: Callable[[LoaderError], None],
        on_finished: Callable[[], None],
        concurrency: int,
        results_urls: ResultsUrls,
    ) -> None:
        self.job, self.part = job, part
        self._store, self._transforms = store, transforms
        self._division, self._on_fatal, self._on_finished = division, on_fatal, on_finished
        self._names = JobNames(job)
        self._call = call_of(job.stage)
        self._versions = tuple(stage.uuid for stage in job.stage)
        self._stages = stages_text(job.stage)
        self._turns = asyncio.Semaphore(job.concurrency or concurrency)
        self._held = MemoryBudget(_HELD_BYTES)
        self._inflation = 1.0
        self._put_groups = PutGroups(store.put_small)
        self._results_urls = results_urls
        self._not_directly: set[str] = set()
        """Sources whose results a server could not put to their owners. Their results go through this node."""
        self._again: list[tuple[str, LoaderError]] = []
        self.stopped = False
        self.changed = Wakeup()
        """Set when the division has changed or `stop` was called."""

    def stop(self) -> None:
        """Finish what is running and start nothing more."""
        self.stopped = True
        self.changed.set()

    @property
    def puts(self) -> bool:
        """Whether results may go directly from the server that makes them to the nodes that will own them."""
        return not self.job.inspect and self._transforms.puts(self._call)

    async def run(self) -> None:
        """Run until stopped. On cancellation, what is running is released first."""
        failures = 0
        try:
            if self.puts:
                await self._results_urls.learn()
            while not self.stopped:
                division = self._division()
                if self.part.finished and self.part.division == division:
                    await self.changed.wait()
                    continue
                self.part.begin(division)
                try:
                    await self._pass(division)
                    failures = 0
                except (*ENDS_THE_JOB, RemoteDenied, Unsupported) as error:  # of the listing, too
                    self._on_fatal(error)
                    await self.changed.wait()
                except LoaderError as error:
                    # Replicas are being compared, a drive is missing, or the map is changing: all of these are
                    # temporary.
                    log.info("job %s: its sources cannot be gone through now: %s", self.job.name, error)
                    await self.changed.wait(AGAIN.pause_s(failures))
                    failures += 1
        finally:
            await self._put_groups.close()

    def _go_on(self, division: Division) -> bool:
        return not self.stopped and division == self._division()

    # -- one pass

    async def _pass(self, division: Division) -> None:
        """Make one pass over the sources. Raises LoaderError if it was incomplete; it is then repeated."""
        self._store.require(self.job.bucket, self.job.to_bucket)
        self._require_versions()
        self._again = []
        await self._through(self._groups(division), division)
        for tried in range(TRIES):
            if not self._again or not self._go_on(division):
                break
            await self.changed.wait(AGAIN.pause_s(tried))
            again, self._again = self._again, []
            self.part.counts.seen -= len(again)
            self._require_versions()
            await self._through(_in_groups([ListedSource(name, -1) for name, _ in again]), division)
        if not self._go_on(division):
            return  # what is left belongs to the pass of the next division
        for name, error in self._again:
            self._failed(name, "", error)
        if self.job.synchronize and not self.job.inspect:
            await self._delete_orphans(division)
        if self._go_on(division):
            self.part.finished = True
            self._on_finished()

    def _require_versions(self) -> None:
        """Raise TransformNotFound, which ends the job, if a transform was replaced; TransformGone if one is stopped."""
        versions = self._transforms.versions(self._call)
        for stage, version in zip(self.job.stage, versions, strict=True):
            if stage.uuid != version:
                raise TransformNotFound(
                    f"transform {stage.name!r} was replaced while the job was running; run it again, by the new one"
                )

    async def _through(self, groups: AsyncGenerator[list[ListedSource], None], division: Division) -> None:
        """Process groups. Raises the first LoaderError of a group, after all running groups have ended."""
        running: set[asyncio.Task[None]] = set()
        error: LoaderError | None = None
        try:
            async with aclosing(groups) as found:
                async for group in found:
                    running.add(asyncio.ensure_future(self._group(group)))
                    if len(running) >= _GROUPS:
                        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                        error = error or _first_error(done)
                    if error is not None or not self._go_on(division):
                        break
            while running:
                done, running = await asyncio.wait(running)
                error = error or _first_error(done)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)
        if error is not None:
            raise error

    async def _groups(self, division: Division) -> AsyncGenerator[list[ListedSource], None]:
        """Yield this node's sources. Raises LoaderError."""
        job = self.job
        if job.object:
            wanted = sorted({name for name in job.object if self._names.takes(name)}, key=str.encode)
            async for group in _in_groups(await self._mine([ListedSource(name, -1) for name in wanted], division)):
                yield group
            return
        start_after: str | None = ""
        while start_after is not None:
            page = await self._store.page(job.bucket, job.prefix, start_after)
            matching = [one for one in page.objects if self._names.takes(one.name)]
            async for group in _in_groups(await self._mine(matching, division)):
                yield group
            start_after = page.next

    async def _mine(self, listed: Sequence[ListedSource], division: Division) -> list[ListedSource]:
        if not listed:
            return []
        mine = self._store.mine(self.job.bucket, [one.name for one in listed], division)
        return [one for one, is_mine in zip(listed, mine, strict=True) if is_mine]

    # -- one group

    async def _group(self, group: Sequence[ListedSource]) -> None:
        """Process a group. Raises errors that end the job, or the pass."""
        self.part.counts.seen += len(group)
        wanted = await self._unrivalled(group)
        results = {one.name: self._names.result_of(one.name) for one in wanted}
        existing: dict[str, Stored] = {}
        if not self.job.inspect:
            existing = await self._existing(self.job.to_bucket, list(results.values()))
        left = [one.name for one in wanted]
        if existing:
            now = await self._existing(self.job.bucket, [name for name in left if results[name] in existing])
            left = [name for name in left if not self._is_done(name, now.get(name), existing.get(results[name]))]
        if not left:
            return
        try:
            inputs = await self._store.read(self.job.bucket, left)
        except ENDS_THE_JOB:
            raise
        except LoaderError as error:
            inputs = [error] * len(left)
        small: deque[_ReadObject] = deque()
        async with asyncio.TaskGroup() as several:
            for name, one in zip(left, inputs, strict=True):
                if isinstance(one, LoaderError):
                    self._not_done(name, "", one)
                elif (
                    one.content.data is not None and one.content.size_bytes <= INLINE_BYTES and not self._is_direct(one)
                ):
                    small.append(_ReadObject(name, results[name], one))
                else:
                    several.create_task(self._object(_ReadObject(name, results[name], one)))
            while small:
                some = [small.popleft() for _ in range(min(len(small), self._transforms.burst(self._call)))]
                expected = round(sum(one.input.content.size_bytes for one in some) * max(1.0, self._inflation))
                await self._held.acquire(expected)
                await self._turns.acquire()
                several.create_task(self._burst(some, expected))

    async def _unrivalled(self, group: Sequence[ListedSource]) -> list[ListedSource]:
        """Return the sources without those whose result would have the same name as another source's."""
        rivals = {one.name: found for one in group if (found := self._names.rivals(one.name))}
        if not rivals:
            return list(group)
        results = sorted({name for found in rivals.values() for name in found})
        existing = await self._existing(self.job.bucket, results)
        left = []
        for one in group:
            rival = next((name for name in rivals.get(one.name, ()) if name in existing), None)
            if rival is None:
                left.append(one)
                continue
            self._failed(
                one.name,
                "",
                InvalidRequest(
                    f"{one.name!r} and {rival!r} would both become {self._names.result_of(one.name)!r}; rename, or "
                    "choose one of them by pattern"
                ),
            )
        return left

    async def _existing(self, bucket: str, names: Sequence[str]) -> dict[str, Stored]:
        """Return the existing objects. Names without an answer count as missing."""
        found = await self._store.heads(bucket, names)
        return {name: one for name, one in zip(names, found, strict=True) if isinstance(one, Stored)}

    def _is_done(self, name: str, source: Stored | None, result: Stored | None) -> bool:
        """Return whether the result exists, and count it."""
        if source is None or result is None:
            return False
        if not is_result(result.metadata, self._label(name), source_version(source), self._stages):
            return False
        counts = self.part.counts
        if result.metadata.get(JOB_KEY) == self.job.uuid.hex():
            counts.transformed += 1
            counts.input_bytes += source.size_bytes
            counts.output_bytes += result.size_bytes
        else:
            counts.skipped += 1
        return True

    def _label(self, name: str) -> str:
        return f"{self.job.bucket}/{name}"

    # -- one object

    async def _object(self, one: _ReadObject) -> None:
        expected = round(one.input.content.size_bytes * max(1.0, self._inflation))
        try:
            await self._held.acquire(expected)
            try:
                async with self._turns:
                    if self.stopped or (self._is_direct(one.input) and await self._put_directly(one)):
                        return
                    output = await self._transform(one)
                try:
                    await self._keep(one, output)
                finally:
                    output.close()
            finally:
                self._held.release(expected)
        except LoaderError as error:
            self._went_wrong(one, error)
        finally:
            one.input.content.close()

    def _went_wrong(self, one: _ReadObject, error: LoaderError) -> None:
        if isinstance(error, TransformNotFound):
            self._not_done(one.name, one.input.version, TransformGone(str(error)))
        elif isinstance(error, ENDS_THE_JOB):
            self._on_fatal(error)
        else:
            self._not_done(one.name, one.input.version, error)

    async def _transform(self, one: _ReadObject) -> Content:
        began_s = asyncio.get_running_loop().time()
        try:
            return await self._transforms.run(self._call, self._origin(one), one.input.content, self._versions)
        finally:
            self.part.counts.busy_s += asyncio.get_running_loop().time() - began_s

    def _is_direct(self, one: Input) -> bool:
        """Return whether the result should go directly from the server that makes it to the node that will own it."""
        return self.puts and one.content.size_bytes * self._inflation >= DIRECT_BYTES

    async def _put_directly(self, one: _ReadObject) -> bool:
        """Have the server put its output to the node that will own it; return False if the output must go through this
        node.

        Raises LoaderError. A result that may have been stored is looked up before the next attempt.
        """
        if one.name in self._not_directly:
            return False
        url = self._results_urls.of(self._store.owner(self.job.to_bucket, one.result))
        if not url:
            return False
        destination = ResultDestination(url, self.job.to_bucket, one.result, {METADATA: self._stamp(one)})
        began_s = asyncio.get_running_loop().time()
        try:
            put = await self._transforms.run_to(
                self._call, self._origin(one), one.input.content, destination, self._versions
            )
        except NodeUnavailable:
            self._not_directly.add(one.name)
            raise
        except ValueError:  # names and metadata are too long for a token
            return False
        finally:
            self.part.counts.busy_s += asyncio.get_running_loop().time() - began_s
        self._count(one, put.size_bytes)
        return True

    def _origin(self, one: _ReadObject) -> Origin:
        return Origin(self.job.bucket, one.name, one.input.version)

    async def _keep(self, one: _ReadObject, output: Content) -> None:
        """Store a result. Raises LoaderError."""
        if not self.job.inspect:
            if output.data is not None and output.size_bytes <= SMALL_BYTES:
                await self._put_groups.put(self._small(one, output))
            else:
                await self._store.put_large(self.job.to_bucket, one.result, self._stamp(one), output)
        self._count(one, output.size_bytes)

    def _stamp(self, one: _ReadObject) -> dict[str, str]:
        return stamp(self._label(one.name), one.input.version, self._stages, self.job.uuid)

    def _small(self, one: _ReadObject, output: Content) -> objects_pb.SmallObject:
        assert output.data is not None
        return objects_pb.SmallObject(
            bucket=self.job.to_bucket,
            name=one.result,
            data=bytes(output.data),
            checksum=output.checksum,
            metadata=self._stamp(one),
        )

    def _count(self, one: _ReadObject, size_bytes: int) -> None:
        input_bytes = one.input.content.size_bytes
        self._inflation = 0.9 * self._inflation + 0.1 * (size_bytes / max(1, input_bytes))
        counts = self.part.counts
        counts.transformed += 1
        counts.input_bytes += input_bytes
        counts.output_bytes += size_bytes

    # -- bursts of small objects

    async def _burst(self, some: Sequence[_ReadObject], expected: int) -> None:
        """Transform and store a burst. It holds `expected` bytes and a turn, and returns both."""
        try:
            try:
                if self.stopped:
                    return
                outputs = await self._transform_many(some)
            finally:
                self._turns.release()
            try:
                await self._keep_many(some, outputs)
            finally:
                for content in outputs:
                    if isinstance(content, Content):
                        content.close()
        finally:
            self._held.release(expected)
            for one in some:
                one.input.content.close()

    async def _transform_many(self, some: Sequence[_ReadObject]) -> list[Content | LoaderError]:
        began_s = asyncio.get_running_loop().time()
        inputs = [(self._origin(one), one.input.content) for one in some]
        try:
            return await self._transforms.run_many(self._call, inputs, self._versions)
        finally:
            self.part.counts.busy_s += asyncio.get_running_loop().time() - began_s

    async def _keep_many(self, some: Sequence[_ReadObject], outputs: Sequence[Content | LoaderError]) -> None:
        together: list[tuple[_ReadObject, Content]] = []
        for one, content in zip(some, outputs, strict=True):
            if isinstance(content, LoaderError):
                self._went_wrong(one, content)
            elif self.job.inspect:
                self._count(one, content.size_bytes)
            elif content.data is not None and content.size_bytes <= SMALL_BYTES:
                together.append((one, content))
            else:
                try:
                    await self._keep(one, content)
                except LoaderError as error:
                    self._went_wrong(one, error)
        stored = await self._put_groups.put_many([self._small(one, content) for one, content in together])
        for (one, content), outcome in zip(together, stored, strict=True):
            if isinstance(outcome, LoaderError):
                self._went_wrong(one, outcome)
            else:
                self._count(one, content.size_bytes)

    # -- objects without a result

    def _not_done(self, name: str, version: str, error: LoaderError) -> None:
        if isinstance(error, NotFound) and not self.job.object and not isinstance(error, BucketNotFound):
            self.part.counts.seen -= 1  # deleted since the listing
        elif error.retryable or isinstance(error, (OutcomeUnknown, TransformGone, StaleMap)):
            self._again.append((name, error))
        else:
            self._failed(name, version, error)

    def _failed(self, name: str, version: str, error: LoaderError) -> None:
        self.part.failed(name, version, error)
        if not self.job.continue_on_error:
            self._on_fatal(type(error)(f"{self._label(name)}: {error}"))

    # -- orphans

    async def _delete_orphans(self, division: Division) -> None:
        """Delete this node's results whose sources, by the names of this job, no longer exist."""
        start_after: str | None = ""
        while start_after is not None and self._go_on(division):
            page = await self._store.page(self.job.to_bucket, self.job.to_prefix, start_after)
            listed = [one for one in page.objects if not one.name.startswith("/")]
            mine: Iterable[bool] = ()
            if listed:
                mine = self._store.mine(self.job.to_bucket, [one.name for one in listed], division)
            names = [one.name for one, is_mine in zip(listed, mine, strict=True) if is_mine]
            if names:
                await self._delete_orphans_among(names)
            start_after = page.next

    async def _delete_orphans_among(self, names: Sequence[str]) -> None:
        results: dict[str, tuple[str, str]] = {}
        label = self._label("")
        for name, found in zip(names, await self._store.heads(self.job.to_bucket, names), strict=True):
            if isinstance(found, Stored) and (source := found.metadata.get(SOURCE_KEY, "")).startswith(label):
                of = source.removeprefix(label)
                if self._names.takes(of) and self._names.result_of(of) == name:
                    results[name] = of, found.version
        if not results:
            return
        sources = await self._store.heads(self.job.bucket, [of for of, _ in results.values()])
        for (name, (_, version)), found_source in zip(results.items(), sources, strict=True):
            if not is_gone(found_source):
                continue
            try:
                await self._store.delete(self.job.to_bucket, name, version)
                self.part.counts.deleted += 1
            except LoaderError as error:
                if not is_superseded(error):
                    self._failed(name, version, error)


def _first_error(done: Iterable[asyncio.Task[None]]) -> LoaderError | None:
    """Return the first LoaderError of the tasks. Raises other errors."""
    found = None
    for task in done:
        if isinstance(error := task.exception(), LoaderError):
            found = found or error
        elif error is not None:
            raise error
    return found


async def _in_groups(listed: Sequence[ListedSource]) -> AsyncGenerator[list[ListedSource], None]:
    group: list[ListedSource] = []
    size_bytes = 0
    for one in listed:
        if group and (len(group) >= GROUP_OBJECTS or size_bytes + one.size_bytes > GROUP_BYTES):
            yield group
            group, size_bytes = [], 0
        group.append(one)
        size_bytes += max(0, one.size_bytes)
    if group:
        yield group
