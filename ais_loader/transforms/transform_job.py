"""Jobs as clients see them: the store's nodes pass a bucket through a transform, independently of this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ais_loader import errors
from ais_loader.transport.base import Transport
from ais_loader.transport.retry import RetryBudget
from ais_loader.values.changes import Failure
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.job_names import JobNames

if TYPE_CHECKING:
    from tqdm import tqdm

JobState: TypeAlias = Literal["running", "done", "stopped", "failed"]
_STATES: Mapping[int, JobState] = {
    pb.TransformJob.RUNNING: "running",
    pb.TransformJob.DONE: "done",
    pb.TransformJob.STOPPED: "stopped",
    pb.TransformJob.FAILED: "failed",
}
_RETRY_S = 60.0
"""How long to wait for a job while no node answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """The progress of a job, summed over all nodes."""

    seen: int = 0
    """Sources that were reached so far, done or not."""
    transformed: int = 0
    """Sources whose results were stored."""
    skipped: int = 0
    """Sources that already had their result: from this version, by these versions and arguments of the transforms."""
    failed: int = 0
    """Sources that have no result because of an error. `TransformJob.failures` has the reasons."""
    deleted: int = 0
    """Results that were deleted because their sources are gone, with `synchronize`."""
    input_bytes: int = 0
    """Total size of the sources that were read."""
    output_bytes: int = 0
    """Total size of the results that were stored."""
    busy_s: float = 0.0
    """The time spent in transforms, which includes waiting for a worker."""


OnJobProgress: TypeAlias = Callable[[JobCounts], object]


@dataclass(frozen=True, slots=True)
class JobFailures:
    """The objects that a job left out, by name. Iterating yields `failures`."""

    failures: tuple[Failure, ...]
    more: bool
    """Whether there are more: more than the nodes keep, or failures of nodes that were restarted or do not answer."""

    def __iter__(self) -> Iterator[Failure]:
        return iter(self.failures)

    def __len__(self) -> int:
        return len(self.failures)


@dataclass(frozen=True, slots=True)
class PlannedResult:
    """A source of a job, and the name that its result would have."""

    source: str
    result: str
    refused: str = ""
    """Why there would be no result. Empty otherwise."""


class TransformJob:
    """A job. It shows the state at the last update, which `refresh` and `wait` perform."""

    def __init__(self, transport: Transport, info: pb.JobInfo) -> None:
        self._transport = transport
        self._info = info

    def __repr__(self) -> str:
        return (
            f"<job {self.name!r}: {self._info.job.bucket} to {self._info.job.to_bucket}, {self.state}, {self.counts}>"
        )

    @property
    def name(self) -> str:
        """The name by which any client can find the job again."""
        return self._info.job.name

    @property
    def bucket(self) -> str:
        """The bucket of the sources, or BUCKET@SNAPSHOT."""
        return self._info.job.bucket

    @property
    def to_bucket(self) -> str:
        """The bucket of the results."""
        return self._info.job.to_bucket

    @property
    def state(self) -> JobState:
        """running, done (perhaps with failures), stopped by someone, or failed as a whole."""
        return _STATES[self._info.job.state]

    @property
    def problem(self) -> str:
        """Why the job failed as a whole. Empty otherwise."""
        return self._info.job.problem

    @property
    def inspect(self) -> bool:
        """Whether the job only inspects, and writes nothing."""
        return self._info.job.inspect

    @property
    def counts(self) -> JobCounts:
        """The progress, summed over all nodes that answered."""
        return JobCounts(**{field.name: getattr(self._info.counts, field.name) for field in fields(JobCounts)})

    def refresh(self) -> TransformJob:
        """Update the state, and return the job itself. Raises JobNotFound, NodeUnavailable."""
        self._info = next(iter(_watched(self._transport, self.name)))
        return self

    def failures(self) -> JobFailures:
        """Return up to 10,000 objects that could not be transformed, and why. Raises JobNotFound, NodeUnavailable."""
        found = self._transport.etl("ListJobFailures", pb.ListJobFailuresRequest(name=self.name))
        return JobFailures(
            tuple(Failure(one.object, errors.from_node(one.error.kind, one.error.message)) for one in found.failure),
            found.more,
        )

    def wait(self, timeout_s: float | None = None, progress: bool | OnJobProgress | None = None) -> JobCounts:
        """Wait until the job has ended. Neither the death of a node nor a client that stops waiting ends it.

        Args:
            timeout_s: The longest time to wait. None means no limit.
            progress: A function that is called with new `JobCounts`, or True for a progress bar on standard error.

        Raises TransformIncomplete if the job left out objects (unless it only inspects), was stopped or failed;
        SilenceTimeout if `timeout_s` has passed; JobNotFound if the job was deleted; NodeUnavailable if no node has
        answered for a minute; and the errors of `progress`.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with ExitStack() as held:
            report = held.enter_context(_Bar(self.name)).report if progress is True else progress or None
            for info in _watched(self._transport, self.name, until_s):
                self._info = info
                if report is not None:
                    report(self.counts)
                if self.state != "running":
                    break
                if until_s is not None and time.monotonic() >= until_s:
                    raise errors.SilenceTimeout(
                        f"job {self.name!r} is still running after {timeout_s:g} s: {self.counts}"
                    )
        self._require_complete()
        return self.counts

    def _require_complete(self) -> None:
        counts = self.counts
        if self.state == "stopped":
            raise errors.TransformIncomplete(f"job {self.name!r} was stopped: {counts}")
        if self.state == "failed":
            raise errors.TransformIncomplete(f"job {self.name!r} failed: {self.problem}")
        if counts.failed and not self.inspect:
            first = next(iter(self.failures()), None)
            reason = f"; first: {first.name}: {first.error}" if first is not None else ""
            raise errors.TransformIncomplete(
                f"job {self.name!r} left out {counts.failed:,} of {counts.seen:,} objects{reason}"
            )

    def stop(self) -> None:
        """Stop the job. Objects in progress are finished, and results stay. The same job, run again, does the rest."""
        self._info = self._transport.etl("StopJob", pb.StopJobRequest(name=self.name))

    def delete(self) -> None:
        """Delete the store's record of the job. Results stay. Raises JobNotFound, and InvalidRequest while it runs."""
        self._transport.etl("DeleteJob", pb.DeleteJobRequest(name=self.name))


def _watched(transport: Transport, name: str, until_s: float | None = None) -> Iterator[pb.JobInfo]:
    """Yield the job's state until it has ended, from any node that answers. Raises JobNotFound, NodeUnavailable, and
    SilenceTimeout if no node answers at the time `until_s`."""
    patience = RetryBudget(_RETRY_S)
    while True:
        try:
            for info in transport.watch_job(name):
                patience.progress()
                yield info
                if info.job.state != pb.TransformJob.RUNNING:
                    return
            failure: errors.LoaderError = errors.NodeUnavailable(f"job {name!r}: the node stopped telling of it")
        except errors.LoaderError as error:
            failure = error
        if failure.retryable and until_s is not None and time.monotonic() >= until_s:
            raise errors.SilenceTimeout(f"no node says in time whether job {name!r} has ended: {failure}") from failure
        patience.pause(failure)


class _Bar:
    """A progress bar of objects, on standard error."""

    def __init__(self, name: str) -> None:
        from tqdm import tqdm

        self._bar: tqdm[Any] = tqdm(desc=name, unit="objects", dynamic_ncols=True)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def report(self, counts: JobCounts) -> None:
        self._bar.total = counts.seen
        self._bar.n = counts.transformed + counts.skipped + counts.failed
        self._bar.set_postfix(failed=counts.failed, refresh=False)
        self._bar.refresh()


def start_job(transport: Transport, job: pb.TransformJob) -> TransformJob:
    """Start a job. Raises the errors of `Bucket.transform`."""
    return TransformJob(transport, transport.etl("StartJob", pb.StartJobRequest(job=job)))


def plan_job(transport: Transport, job: pb.TransformJob) -> list[PlannedResult]:
    """Return what the job would make of the current objects, in the order of names.

    Raises BucketNotFound, NodeUnavailable.
    """
    names = JobNames(job)
    if job.object:
        found = sorted(name for name in set(job.object) if names.takes(name))
    else:
        listed = transport.objects(job.bucket, prefix=job.prefix)
        found = [info.name for info in listed if names.takes(info.name)]
    existing = set(found)
    planned = []
    for name in found:
        rival = next((one for one in names.rivals(name) if one in existing), None)
        refused = f"{rival!r} has a result of the same name" if rival is not None else ""
        planned.append(PlannedResult(name, names.result_of(name), refused))
    return planned
