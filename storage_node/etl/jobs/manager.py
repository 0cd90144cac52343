"""Jobs of one node: starts the node's part of each running job, reports its progress to other nodes, and ends finished
jobs.

A job is a value that all nodes know: in the cluster's map, or in the record of a store without a cluster. A node that
sees it running performs its part, regardless of earlier failures. There is no leader: the first node that can determine
that all parts are complete records the end. Recording it again changes nothing.

A node polls the others immediately after a change of its own, and otherwise with delays that grow with the job's age. A
client that waits for a job learns of its end after at most a tenth of its duration, and a long job costs four polls a
second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from ais_loader.errors import InvalidRequest, JobNotFound, LoaderError
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.job_names import JobNames
from ais_loader.wire.object_info import info_of
from storage_node.etl.jobs import edits
from storage_node.etl.jobs.job_store import JobStore
from storage_node.etl.jobs.job_tokens import JobTokens, beyond
from storage_node.etl.jobs.run import JobParts, JobRun, PartsOf, ResultsUrls, call_of
from storage_node.etl.jobs.shares import MAX_FAILURES, Division, NodeShare, add, is_complete, layout_of, whole
from storage_node.etl.jobs.stamp import stages_text, stamp
from storage_node.etl.registry.registry import JobsEdit, Registry
from storage_node.etl.run.node_transforms import NodeTransforms
from storage_node.etl.values import Origin
from storage_node.store.names import check_job_name, check_object_name

SHORTEST_S, LONGEST_S = 0.01, 0.25
_OF_AGE = 0.1
ASK_S = 1.0
"""Interval of polling the other nodes' parts, while this node has work of its own."""
DOWN_S = 3.0
"""Time without an answer after which a job proceeds without a node."""
ENDING_S = 2.0
"""The first node of the map records the end of a job; the others do so if it has not after this time."""
BEAT_S = 2.0
ENDED_KEPT = 64
_PER_CORE = 8
"""Number of objects being transformed for each core, including those that wait for a worker."""
log = logging.getLogger(__name__)


async def _no_peers(nodes: Sequence[bytes], request: pb.JobPartRequest) -> JobParts:
    return {}


class _Running:
    def __init__(self, run: JobRun, task: asyncio.Task[None], part: NodeShare) -> None:
        self.run, self.task, self.part = run, task, part
        self.others: dict[bytes, pb.NodeJob] = {}
        self.polled_s = -ASK_S
        self.complete_since_s: float | None = None
        self.began_s = time.monotonic()
        self.fatal: LoaderError | None = None


class JobManager:
    """Jobs of one node. Belongs to the event loop that transforms run on; `run` is its task."""

    def __init__(
        self,
        node_uuid: bytes,
        store: JobStore,
        registry: Registry,
        transforms: NodeTransforms,
        parts_of: PartsOf = _no_peers,
        workers: int = 0,
        results_url: Callable[[], Awaitable[str]] | None = None,
        tokens: JobTokens | None = None,
    ) -> None:
        """Create the manager; nothing runs before `run`.

        Args:
            parts_of: Returns the parts of other nodes of the map; None for a node that does not answer.
            workers: Number of workers of transforms on this node; 0 means as many as there are cores.
            results_url: Returns this node's URL for results, see `TransformHttp.results_url`.
            tokens: Check of the tokens with which jobs were started. Without it, jobs need none.
        """
        self._node_uuid = node_uuid
        self._store, self._registry, self._transforms = store, registry, transforms
        self._parts_of = parts_of
        self._concurrency = _PER_CORE * (workers or len(os.sched_getaffinity(0)))
        self._running: dict[bytes, _Running] = {}
        self._ended: dict[bytes, NodeShare] = {}
        self._silent_since_s: dict[bytes, float] = {}
        self._results_url = results_url
        self._tokens = tokens
        self._results_urls = ResultsUrls(parts_of, self._others)
        self._change = asyncio.Event()
        """Set by the next change of jobs or of the map, of which each has an event of its own."""

    @property
    def is_running(self) -> bool:
        """Whether a job runs on this node."""
        return bool(self._running)

    # -- background

    def changed(self) -> None:
        """Notify the manager that jobs or the map have changed; it checks them without delay."""
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def run(self) -> None:
        """Run until cancelled. On cancellation, running jobs are stopped and released."""
        try:
            while True:
                change = self._change
                await self._look()
                youngest_s = max((running.began_s for running in self._running.values()), default=0.0)
                is_busy = self._running or any(job.state == pb.TransformJob.RUNNING for job in self._registry.jobs())
                await _changed(change, time.monotonic() - youngest_s if is_busy else None)
        finally:
            for running in self._running.values():
                running.run.stop()
                running.task.cancel()
            if self._running:
                await asyncio.wait([running.task for running in self._running.values()])
            self._running.clear()

    async def _look(self) -> None:
        now = {job.uuid: job for job in self._registry.jobs() if job.state == pb.TransformJob.RUNNING}
        for job_uuid, job in now.items():
            if job_uuid in self._running:
                continue
            if problem := self._token_problem(job) or beyond(job):
                await self._record_end(job, pb.TransformJob.FAILED, problem, job.counts)
            else:
                self._begin(job)
        for job_uuid in list(self._running):
            if job_uuid not in now:
                await self._finish(job_uuid)
        if self._running:
            await asyncio.gather(*(self._see_to(running) for running in list(self._running.values())))

    def _begin(self, job: pb.TransformJob) -> None:
        known = pb.TransformJob()
        known.CopyFrom(job)
        part = NodeShare(self._node_uuid)

        def fatal(error: LoaderError) -> None:
            if running.fatal is None:
                running.fatal = error
                run.stop()
                self.changed()

        run = JobRun(
            known,
            self._store,
            self._transforms,
            part,
            lambda: self._division(known),
            fatal,
            self.changed,
            self._concurrency,
            self._results_urls,
        )
        task = asyncio.create_task(run.run(), name=f"job {job.name}")
        running = self._running[job.uuid] = _Running(run, task, part)

    async def _finish(self, job_uuid: bytes) -> None:
        """Complete a job that has ended on this node."""
        running = self._running[job_uuid]
        running.run.stop()
        if not running.task.done():
            return  # checked again soon
        del self._running[job_uuid]
        if not running.task.cancelled() and (error := running.task.exception()) is not None:
            log.error("job %s failed on this node", running.run.job.name, exc_info=error)
        self._ended[job_uuid] = running.part
        for old in list(self._ended)[:-ENDED_KEPT]:
            del self._ended[old]

    def _division(self, job: pb.TransformJob) -> Division:
        view = self._registry.view
        bucket = view.to_read(job.bucket) if view is not None else None
        if view is None or bucket is None:
            return Division()
        now_s = time.monotonic()
        down = [
            node.uuid
            for node in view.nodes
            if node.uuid != self._node_uuid and now_s - self._silent_since_s.get(node.uuid, now_s) >= DOWN_S
        ]
        return Division(layout_of(view, bucket), tuple(sorted(down)))

    def _others(self) -> list[bytes]:
        view = self._registry.view
        return [] if view is None else [node.uuid for node in view.nodes if node.uuid != self._node_uuid]

    def _token_problem(self, job: pb.TransformJob) -> str:
        return self._tokens.problem(job) if self._tokens is not None else ""

    async def _see_to(self, running: _Running) -> None:
        job = running.run.job
        if problem := self._token_problem(job):
            running.run.stop()
            running.task.cancel()  # what is being made is not stored
            await self._end(running, pb.TransformJob.FAILED, problem)
            return
        if running.task.done() and not running.run.stopped:
            error = None if running.task.cancelled() else running.task.exception()
            log.error("job %s failed on this node and is restarted", job.name, exc_info=error)
            del self._running[job.uuid]
            return
        if running.fatal is not None:
            await self._end(running, pb.TransformJob.FAILED, str(running.fatal))
            return
        now_s = time.monotonic()
        if running.part.finished or now_s - running.polled_s >= ASK_S:
            running.polled_s = now_s
            await self._ask(running)
        division = self._division(job)
        if running.part.division != division or not running.part.finished:
            running.run.changed.set()
            running.complete_since_s = None
            return
        if (counts := self._whole(running, division)) is None:
            running.complete_since_s = None
            return
        if running.complete_since_s is None:
            running.complete_since_s = now_s
        answering = [node for node in sorted([self._node_uuid, *self._others()]) if node not in division.without]
        if answering[0] == self._node_uuid or now_s - running.complete_since_s >= ENDING_S:
            await self._end(running, pb.TransformJob.DONE, "", counts)

    def _whole(self, running: _Running, division: Division) -> pb.JobCounts | None:
        view = self._registry.view
        if view is None:
            return whole({self._node_uuid: running.part.message()}, [self._node_uuid], division)
        bucket = view.to_read(running.run.job.bucket)
        if bucket is None or not is_complete(view, bucket, division):
            return None
        parts = {**running.others, self._node_uuid: running.part.message()}
        return whole(parts, [node.uuid for node in view.nodes], division)

    async def _ask(self, running: _Running) -> None:
        nodes = self._others()
        request = pb.JobPartRequest(job_uuid=running.run.job.uuid, with_results_url=running.run.puts)
        answers = await self._parts_of(nodes, request)
        if request.with_results_url:
            self._results_urls.take(answers)
        now_s = time.monotonic()
        running.others = {}
        for node, answer in answers.items():
            if answer is None:
                self._silent_since_s.setdefault(node, now_s)
                continue
            self._silent_since_s.pop(node, None)
            running.others[node] = answer.part

    async def _end(
        self, running: _Running, state: pb.TransformJob.State, problem: str, counts: pb.JobCounts | None = None
    ) -> None:
        if counts is None:
            counts = running.part.message().counts
            for part in running.others.values():
                add(counts, part.counts)
        await self._record_end(running.run.job, state, problem, counts)

    async def _record_end(
        self, job: pb.TransformJob, state: pb.TransformJob.State, problem: str, counts: pb.JobCounts
    ) -> None:
        try:
            await self._change_jobs(lambda jobs: edits.ended(jobs, job.uuid, state, problem, counts))
        except LoaderError as error:
            log.warning("job %s has ended, but this cannot be recorded now: %s", job.name, error)

    async def _change_jobs(self, edit: JobsEdit) -> None:
        await self._registry.change(edit_jobs=edit)
        self.changed()

    # -- calls of other nodes

    async def answer(self, request: pb.JobPartRequest) -> pb.JobPartResponse:
        """Return this node's part, and on request the URL where this node accepts results."""
        answer = self.part(request)
        if request.with_results_url and self._results_url is not None:
            answer.results_url = await self._results_url()
        return answer

    def part(self, request: pb.JobPartRequest) -> pb.JobPartResponse:
        """Return this node's part. The part of an unknown job is unfinished."""
        running = self._running.get(request.job_uuid)
        part = running.part if running is not None else self._ended.get(request.job_uuid)
        if part is None:
            return pb.JobPartResponse(part=pb.NodeJob(node_uuid=self._node_uuid, answers=True))
        failures = part.failures if request.with_failures else ()
        return pb.JobPartResponse(part=part.message(), failure=failures)

    # -- calls of clients

    async def start(self, request: pb.StartJobRequest, token: pb.JobToken | None = None) -> pb.JobInfo:
        """Start a job. Raises LoaderError.

        `token`: what the job keeps of the token of whoever starts it. It ends with that token.
        """
        job = pb.TransformJob()
        job.CopyFrom(request.job)
        job.ClearField("token")
        if token is not None:
            job.token.CopyFrom(token)
        job.name = job.name or f"job-{uuid.uuid4().hex[:8]}"
        if len(job.uuid) not in (0, 16):
            raise InvalidRequest("a job's uuid has 16 bytes")
        check_job_name(job.name)
        if not job.stage:
            raise InvalidRequest("a job needs a transform")
        JobNames(job)
        self._store.require(job.bucket, job.to_bucket)
        self._fill_versions(job.stage)
        job.uuid, job.state = job.uuid or uuid.uuid4().bytes, pb.TransformJob.RUNNING
        job.created_ns = time.time_ns()
        await self._change_jobs(lambda jobs: edits.started(jobs, job))
        return await self._info(self._job(job.name))

    def _fill_versions(self, stages: Sequence[pb.JobStage]) -> batch_pb.TransformCall:
        """Record the current versions of the transforms, and return the call of them. Raises TransformNotFound,
        TransformGone."""
        call = call_of(stages)
        for stage, version in zip(stages, self._transforms.versions(call), strict=True):
            stage.uuid = version
        return call

    def buckets_of(self, name: str) -> tuple[str, str] | None:
        """Return the source and the target of a job; None if there is no job of this name."""
        jobs = (job for job in self._registry.jobs() if job.name == name)
        return next(((job.bucket, job.to_bucket) for job in jobs), None)

    def _job(self, name: str) -> pb.TransformJob:
        for job in self._registry.jobs():
            if job.name == name:
                return job
        raise JobNotFound(f"there is no job {name!r}")

    async def _info(self, job: pb.TransformJob) -> pb.JobInfo:
        info = pb.JobInfo(job=job)
        info.job.ClearField("token")
        others = self._others()
        request = pb.JobPartRequest(job_uuid=job.uuid)
        answers = await self._parts_of(others, request)
        local = self.part(request).part
        for part in (local, *(answer.part for answer in answers.values() if answer is not None)):
            info.node.append(part)
            add(info.counts, part.counts)
        info.node.extend(pb.NodeJob(node_uuid=node) for node in others if answers.get(node) is None)
        if job.state != pb.TransformJob.RUNNING:
            info.counts.CopyFrom(job.counts)
        return info

    async def watch(self, request: pb.WatchJobRequest) -> AsyncIterator[pb.JobInfo]:
        """Yield the state of a job whenever it changes. Raises JobNotFound, also if it is deleted meanwhile."""
        last, sent_s, began_s = b"", 0.0, time.monotonic()
        while True:
            change = self._change
            info = await self._info(self._job(request.name))
            done = info.job.state != pb.TransformJob.RUNNING
            text = info.SerializeToString(deterministic=True)
            if done or not request.wait or text != last or time.monotonic() - sent_s >= BEAT_S:
                yield info
                last, sent_s = text, time.monotonic()
            if done or not request.wait:
                return
            await _changed(change, time.monotonic() - began_s)

    async def list(self) -> pb.ListJobsResponse:
        return pb.ListJobsResponse(job=await asyncio.gather(*map(self._info, self._registry.jobs())))

    async def failures(self, name: str) -> pb.ListJobFailuresResponse:
        """Return the failures on the nodes that answer. Raises JobNotFound."""
        job = self._job(name)
        request = pb.JobPartRequest(job_uuid=job.uuid, with_failures=True)
        answers = await self._parts_of(self._others(), request)
        parts = [self.part(request), *(answer for answer in answers.values() if answer is not None)]
        found = sorted((failure for part in parts for failure in part.failure), key=lambda one: one.object)
        total = max(job.counts.failed, sum(part.part.counts.failed for part in parts))
        return pb.ListJobFailuresResponse(failure=found[:MAX_FAILURES], more=total > min(len(found), MAX_FAILURES))

    async def stop(self, name: str) -> pb.JobInfo:
        """Stop a job. Returns when that is recorded. Raises JobNotFound, LoaderError."""
        job = self._job(name)
        if job.state == pb.TransformJob.RUNNING:
            counts = (await self._info(job)).counts
            await self._change_jobs(lambda jobs: edits.ended(jobs, job.uuid, pb.TransformJob.STOPPED, "", counts))
        return await self._info(self._job(name))

    async def delete(self, name: str) -> None:
        """Remove a job. Raises JobNotFound; InvalidRequest while it runs."""
        await self._change_jobs(lambda jobs: edits.deleted(jobs, name))

    async def copy(self, request: pb.CopyObjectRequest) -> pb.CopyObjectResponse:
        """Copy one object through transforms. Raises LoaderError."""
        stages = list(request.stage)
        if not stages:
            raise InvalidRequest("a copy through a transform needs one")
        check_object_name(request.to_name)
        self._store.require(request.bucket, request.to_bucket)
        call = self._fill_versions(stages)
        found = (await self._store.read(request.bucket, [request.name]))[0]
        if isinstance(found, LoaderError):
            raise found
        origin = Origin(request.bucket, request.name, found.version)
        versions = tuple(stage.uuid for stage in stages)
        output = None
        try:
            output = await self._transforms.run(call, origin, found.content, versions)
            metadata = stamp(f"{request.bucket}/{request.name}", found.version, stages_text(stages))
            stored = await self._store.put_large(request.to_bucket, request.to_name, metadata, output)
        finally:
            found.content.close()
            if output is not None:
                output.close()
        return pb.CopyObjectResponse(info=info_of(request.to_bucket, request.to_name, stored))


async def _changed(change: asyncio.Event, age_s: float | None) -> None:
    """Wait for a change, or until the next poll of what began `age_s` ago; None: until a change."""
    poll_s = None if age_s is None else min(LONGEST_S, max(SHORTEST_S, _OF_AGE * age_s))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(poll_s):
            await change.wait()
