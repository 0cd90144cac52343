"""Transforming methods of Bucket: objects passed through transforms into objects, by the store's own nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, overload

from ais_loader.objects.job_stages import job_stages
from ais_loader.pipeline import Etl
from ais_loader.transform_job import OnJobProgress, PlannedResult, TransformJob, job_message, plan_job, start_job
from ais_loader.transport.base import Transport


class BucketTransforming(ABC):
    """Part of `Bucket`."""

    name: str

    @property
    @abstractmethod
    def _transport(self) -> Transport: ...

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
        """Pass this bucket, or one of its snapshots, through a transform into another bucket, on the store's nodes.

        A job, which goes on by itself whoever dies: this process, workers, nodes. Each source version becomes one
        object, whose metadata names it and the transform's version. What is there already is skipped, so that the same
        call again makes what has changed since. See docs/etl.md.

        Args:
            etl: a transform's name, a `Stage` with arguments, or a pipeline of them.
            prefix: only objects whose names begin with it.
            names: only these; or a template of them, as "shard-{000..127}.tar".
            pattern: only objects that fit a shell pattern, or one of several: with a slash it is of the whole name,
                otherwise of what follows its last slash.
            rename: extensions by extensions, without dots: {"flac": "wav"}.
            to_prefix: put before the names of results.
            strip_prefix: taken off before that.
            dry_run: do nothing, and return what would be made of what, as a list of `PlannedResult`.
            inspect: run every object and write nothing: `job.failures()` then has all that fail.
            continue_on_error: go on past objects that fail; otherwise the first one ends the job.
            concurrency: objects transformed at once on each node; 0: as many as it can.
            synchronize: delete results of these sources, made as this job makes them, whose sources are gone.
            name: of the job; drawn without one. One that has ended gives way to a new one of its name.
            wait: return when it has ended, or once it has begun.
            progress: see `TransformJob.wait`.

        Raises BucketNotFound, TransformNotFound, TransformExists while a job of this name runs, InvalidRequest for
        names that make no sense, and where results would be sources again; StoreReadOnly, NodeUnavailable; and, with
        `wait`, TransformIncomplete when objects were left out: the others are there.
        """
        job = job_message(
            self.name,
            to_bucket,
            job_stages(etl),
            prefix=prefix,
            names=names,
            pattern=pattern,
            rename=rename,
            to_prefix=to_prefix,
            strip_prefix=strip_prefix,
            inspect=inspect,
            continue_on_error=continue_on_error,
            concurrency=concurrency,
            synchronize=synchronize,
            name=name,
        )
        if dry_run:
            return plan_job(self._transport, job)
        started = start_job(self._transport, job)
        if wait:
            started.wait(progress=progress)
        return started
