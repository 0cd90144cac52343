"""Transforming methods of Bucket: the store's own nodes pass objects through transforms and store the results."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Literal, overload

from ais_loader import errors
from ais_loader.name_matching import pattern_list
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.objects.copy import job_stages
from ais_loader.transforms.transform_job import OnJobProgress, PlannedResult, TransformJob, plan_job, start_job
from ais_loader.values.pipeline import Etl
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.job_names import JobNames, expand_template


class BucketTransforming(BucketPart):
    """Jobs that pass objects through transforms."""

    @overload
    def transform(
        self,
        to_bucket: str,
        *,
        etl: Etl,
        prefix: str = "",
        names: Sequence[str] | str | None = None,
        pattern: str | Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        to_prefix: str = "",
        strip_prefix: str = "",
        dry_run: Literal[False] = False,
        inspect: bool = False,
        continue_on_error: bool = True,
        concurrency: int = 0,
        synchronize: bool = False,
        name: str | None = None,
        wait: bool = True,
        progress: bool | OnJobProgress | None = None,
    ) -> TransformJob: ...

    @overload
    def transform(
        self,
        to_bucket: str,
        *,
        etl: Etl,
        prefix: str = "",
        names: Sequence[str] | str | None = None,
        pattern: str | Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        to_prefix: str = "",
        strip_prefix: str = "",
        dry_run: Literal[True],
        inspect: bool = False,
        continue_on_error: bool = True,
        concurrency: int = 0,
        synchronize: bool = False,
        name: str | None = None,
        wait: bool = True,
        progress: bool | OnJobProgress | None = None,
    ) -> list[PlannedResult]: ...

    def transform(
        self,
        to_bucket: str,
        *,
        etl: Etl,
        prefix: str = "",
        names: Sequence[str] | str | None = None,
        pattern: str | Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        to_prefix: str = "",
        strip_prefix: str = "",
        dry_run: bool = False,
        inspect: bool = False,
        continue_on_error: bool = True,
        concurrency: int = 0,
        synchronize: bool = False,
        name: str | None = None,
        wait: bool = True,
        progress: bool | OnJobProgress | None = None,
    ) -> TransformJob | list[PlannedResult]:
        """Run every object of this bucket, or of one of its snapshots, through a transform, and store the results in a
        bucket.

        The store's nodes run this as a job. It continues even if this process, a worker or a node dies. Each source
        becomes one object, whose metadata name the versions of the source and of the transform. Results that are
        already there are skipped, so calling this again transforms only what has changed since. See docs/etl.md.

        Args:
            etl: A transform's name, a `Stage` with arguments, or a pipeline of stages.
            prefix: Only objects whose names begin with this.
            names: Only these objects: a list, or a template such as "shard-{000..127}.tar".
            pattern: Only objects that match this shell pattern, or one of several. A pattern with a slash is matched
                against the whole name, any other pattern against what follows the last slash.
            rename: Extensions to replace, without dots: {"flac": "wav"}.
            to_prefix: Put this before the names of results.
            strip_prefix: Remove this from the names before that.
            dry_run: Change nothing, and return what would be made from what, as a list of `PlannedResult`.
            inspect: Transform every object, but store nothing. Afterwards, `job.failures()` has up to 10,000 of those
                that failed.
            continue_on_error: Continue after an object fails. Otherwise, the first failure ends the job.
            concurrency: The number of objects that each node transforms at once. 0 means as many as it can.
            synchronize: Delete results that such a job has made from objects that no longer exist.
            name: A name for the job. By default, one is generated. A finished job makes way for a new one of the same
                name.
            wait: Return when the job has ended, rather than when it has begun.
            progress: See `TransformJob.wait`.

        Raises BucketNotFound, TransformNotFound, TransformExists if a job of this name is running, InvalidRequest for
        invalid names or if results would become sources again, StoreReadOnly, NodeUnavailable; and, with `wait`,
        TransformIncomplete if some objects failed (unless the job only inspects), or if the job was stopped or failed
        as a whole. The results that it made are stored.
        """
        if not isinstance(concurrency, int) or not 0 <= concurrency < 1 << 16:
            raise errors.InvalidRequest(
                f"concurrency={concurrency!r}: need 0, which lets each node choose, or a positive number"
            )
        if isinstance(names, str):
            names = expand_template(names)
        if names is not None and not len(names):
            raise errors.InvalidRequest("names=[]: need at least one, or None for all")
        patterns = pattern_list("pattern", pattern)
        job = pb.TransformJob(
            name=name or f"job-{uuid.uuid4().hex[:8]}",
            uuid=uuid.uuid4().bytes,
            bucket=self.name,
            to_bucket=to_bucket,
            stage=job_stages(etl),
            prefix=prefix,
            pattern=patterns,
            object=names or (),
            to_prefix=to_prefix,
            strip_prefix=strip_prefix,
            extension=dict(rename or {}),
            inspect=inspect,
            continue_on_error=continue_on_error,
            concurrency=concurrency,
            synchronize=synchronize,
        )
        JobNames(job)
        if dry_run:
            return plan_job(self._transport, job)
        started = start_job(self._transport, job)
        if wait:
            started.wait(progress=progress)
        return started
