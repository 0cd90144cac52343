"""Server-side copies and renames of objects: bytes do not pass through this process.

A prefix is copied object by object. An object that exists at its new place with the same bytes is left alone, so an
interrupted copy is resumed by repeating it. A rename is a copy followed by the deletion of the copied version. Between
the two, the object has both names, and repeating the rename completes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Literal, TypeAlias, TypeVar, overload

from ais_loader import errors
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.objects.put_spec import make_range, make_request, require_ordinary
from ais_loader.transport.base import Transport
from ais_loader.transport.retry import RetryBudget
from ais_loader.values.changes import CopySummary, Failure, OnError, OnProgress, RenameSummary, Tally, check_on_error
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.pipeline import Etl, args_text, to_pipeline
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb

T = TypeVar("T")
R = TypeVar("R")
Copied: TypeAlias = ObjectInfo | errors.LoaderError | None
"""Result for one object of many: the copy, the error, or None for an object that was there already."""
IN_FLIGHT = 4
"""Number of objects of a prefix that are copied in parallel."""
_RETRY_S = 10.0
"""How long to retry the deletion of a copied object while no node answers."""


def copy_object(
    transport: Transport, bucket: str, name: str, to_bucket: str, to: str, *, version: str = "", if_absent: bool = False
) -> ObjectInfo:
    """Copy an object with its metadata, in the current or the given version. See Bucket.copy."""
    require_ordinary(to)
    if (bucket, name) == (to_bucket, to):
        raise errors.InvalidRequest(f"{bucket}/{name} is both the source and the target: give another name")
    request = make_request(to_bucket, to, [make_range(bucket, name, version)])
    if if_absent:
        request.object.condition.if_absent = True
    return transport.compose(request)


def job_stages(etl: Etl) -> list[etl_pb.JobStage]:
    """Convert transforms to stages. Raises InvalidRequest, TypeError."""
    return [etl_pb.JobStage(name=stage.name, args=args_text(stage.args)) for stage in to_pipeline(etl).stages]


class BucketCopying(BucketPart):
    """Copies and renames."""

    def copy(
        self, name: str, to: str, *, to_bucket: str | None = None, if_absent: bool = False, etl: Etl | None = None
    ) -> ObjectInfo:
        """Copy an object with its metadata, within this bucket or to another one. The bytes do not leave the store.

        The source is verified as it is read, and a damaged source is not copied.

        Args:
            if_absent: Copy the object only if there is none of that name.
            etl: Store the result of this transform or pipeline instead of the source. The metadata of the new object
                name the versions of the source and of the transforms, and do not include the source's metadata. Cannot
                be combined with `if_absent`.

        Raises ObjectNotFound, BucketNotFound, InvalidName, CorruptObject, InvalidRequest (a copy of an object to
        itself), VersionConflict, and the errors of `put`; with `etl` also TransformNotFound, TransformFailed,
        TransformTimeout, TransformGone.
        """
        to_bucket = to_bucket or self.name
        if etl is None:
            return copy_object(self._transport, self.name, name, to_bucket, to, if_absent=if_absent)
        require_ordinary(to)
        if if_absent:
            raise errors.InvalidRequest(
                "if_absent cannot be combined with etl: the result of a transform replaces any object of its name"
            )
        stages = job_stages(etl)
        request = etl_pb.CopyObjectRequest(bucket=self.name, name=name, to_bucket=to_bucket, to_name=to, stage=stages)
        return self._transport.copy_transformed(request)

    def rename(self, name: str, to: str, *, to_bucket: str | None = None, if_absent: bool = False) -> ObjectInfo:
        """Copy an object, then delete the version that was copied. Arguments and errors are those of `copy`.

        If the call is interrupted in between, the object has both names, and renaming it again completes the operation
        (the copy that is already there does not count as existing for `if_absent`). If the source is replaced after it
        was copied, the call raises VersionConflict: the copy is kept, and the newer version keeps the old name.
        """
        transport, to_bucket = self._transport, to_bucket or self.name
        before = transport.head(self.name, name)
        try:
            made = copy_object(transport, self.name, name, to_bucket, to, version=before.version, if_absent=if_absent)
        except errors.VersionConflict:
            made = transport.head(to_bucket, to)
            if not _is_equal(before, made):
                raise
        _delete_copied(transport, before)
        return made

    def copy_prefix(
        self,
        prefix: str,
        to: str,
        *,
        to_bucket: str | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> CopySummary:
        """Copy all objects whose names begin with `prefix`. In the names of the copies, `to` takes the place of
        `prefix`.

        If an object with the same bytes and metadata is already there, it is left alone, so you can call this again to
        resume an interrupted copy.

        Args:
            on_error: "raise" raises the first failure. All objects before it are copied, and up to 7 after it may be.
                "return" copies the other objects, and the summary names those that failed.
            progress: Called with a `Progress` after each object, in the order of names, in this thread.

        Returns:
            A summary with the number of objects copied, the number that were already there, and the first 1,000
            failures, by the name of the source object.

        Raises InvalidRequest for overlapping prefixes in one bucket, and the errors of `copy`. With either `on_error`,
        a retryable error such as NodeUnavailable ends the call, because the next object would fail as well.
        """
        tally = self._copied(prefix, to, to_bucket, remove=False, on_error=on_error, progress=progress)
        return tally.summary(CopySummary, "copied")

    def rename_prefix(
        self,
        prefix: str,
        to: str,
        *,
        to_bucket: str | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> RenameSummary:
        """Rename all objects whose names begin with `prefix`, one by one, as `copy_prefix` and `rename` do."""
        tally = self._copied(prefix, to, to_bucket, remove=True, on_error=on_error, progress=progress)
        return tally.summary(RenameSummary, "renamed")

    @overload
    def iter_copy_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["raise"] = "raise"
    ) -> Generator[ObjectInfo, None, None]: ...

    @overload
    def iter_copy_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["yield"]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]: ...

    def iter_copy_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["raise", "yield"] = "raise"
    ) -> Generator[Any, None, None]:
        """Yield the ObjectInfo of each copy, in the order of names: `copy_prefix` step by step.

        Nothing is yielded for an object that is already there. The generator is lazy: nothing is copied until you
        iterate. Up to 7 objects are copied ahead, and closing the generator waits for those whose copy has begun. With
        on_error="yield", the error of an object that failed is yielded in its place. Otherwise like `copy_prefix`.
        """
        check_on_error(on_error, "raise", "yield")
        return self._iter_copied(prefix, to, to_bucket, remove=False, on_error=on_error)

    @overload
    def iter_rename_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["raise"] = "raise"
    ) -> Generator[ObjectInfo, None, None]: ...

    @overload
    def iter_rename_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["yield"]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]: ...

    def iter_rename_prefix(
        self, prefix: str, to: str, *, to_bucket: str | None = None, on_error: Literal["raise", "yield"] = "raise"
    ) -> Generator[Any, None, None]:
        """Yield each object's info under its new name: `rename_prefix` step by step, as lazy as `iter_copy_prefix`."""
        check_on_error(on_error, "raise", "yield")
        return self._iter_copied(prefix, to, to_bucket, remove=True, on_error=on_error)

    def _copied(
        self,
        prefix: str,
        to: str,
        to_bucket: str | None,
        *,
        remove: bool,
        on_error: OnError,
        progress: OnProgress | None,
    ) -> Tally:
        results = each_copied(self._transport, self.name, prefix, to_bucket or self.name, to, remove=remove)
        with Tally(progress, on_error=on_error) as tally, closing(results):
            for source, result in results:
                if result is None:
                    tally.add_skipped()
                elif isinstance(result, ObjectInfo):
                    tally.add_done(result.size_bytes)
                else:
                    tally.add_failed(Failure(source.name, result))
        return tally

    def _iter_copied(
        self, prefix: str, to: str, to_bucket: str | None, *, remove: bool, on_error: Literal["raise", "yield"]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]:
        copies = each_copied(self._transport, self.name, prefix, to_bucket or self.name, to, remove=remove)
        with closing(copies) as results:
            for _, result in results:
                if isinstance(result, errors.LoaderError) and on_error == "raise":
                    raise result
                if result is not None:
                    yield result


def _delete_copied(transport: Transport, before: ObjectInfo) -> None:
    """Delete a copied version. Raises VersionConflict if the object was replaced meanwhile; the newer version stays."""
    patience = RetryBudget(_RETRY_S)
    while True:
        try:
            transport.delete(before.bucket, before.name, if_version=before.version)
            return
        except errors.NodeUnavailable as error:
            patience.pause(error)  # unlike other deletions, it can be repeated: no other version is at risk
        except errors.VersionConflict:
            if _is_deleted(transport, before):
                return
            raise


def _is_deleted(transport: Transport, before: ObjectInfo) -> bool:
    """Whether an earlier attempt, or another client, has deleted the source. Its copy exists."""
    try:
        transport.head(before.bucket, before.name)
    except errors.ObjectNotFound:
        return True
    return False


def each_copied(
    transport: Transport, bucket: str, prefix: str, to_bucket: str, to: str, *, remove: bool
) -> Generator[tuple[ObjectInfo, Copied], None, None]:
    """Copy the objects whose names begin with `prefix`, in order, to names in which `to` replaces it; with `remove`,
    rename them. Yield each with its result. Raises retryable errors: an unreachable store will not copy the next object
    either."""
    if bucket == to_bucket and (prefix.startswith(to) or to.startswith(prefix)):
        raise errors.InvalidRequest(
            f"prefixes {prefix!r} and {to!r} of one bucket overlap: objects would be copied on top of each other"
        )

    def one(pair: tuple[ObjectInfo, ObjectInfo | None]) -> ObjectInfo | None:
        source, stored = pair
        if stored is not None and _is_equal(source, stored):
            made = stored
        else:
            stored, name = None, to + source.name[len(prefix) :]
            made = copy_object(transport, bucket, source.name, to_bucket, name, version=source.version)
        if remove:
            _delete_copied(transport, source)
        return made if remove or stored is None else None

    sources = transport.objects(bucket, prefix=prefix)
    targets = transport.objects(to_bucket, prefix=to)
    for (source, _), result in each_done(one, _paired(sources, len(prefix), targets, len(to))):
        yield source, result


def each_done(work: Callable[[T], R], items: Iterable[T]) -> Generator[tuple[T, R | errors.LoaderError], None, None]:
    """Yield each item with its result or error, in order, with IN_FLIGHT at a time and as many more begun ahead.

    A retryable error is raised. It, and the end of the iterator, cancel what has not begun, and wait for the rest.
    """
    waiting: deque[tuple[T, Future[R]]] = deque()

    def first_done() -> tuple[T, R | errors.LoaderError]:
        item, running = waiting.popleft()
        try:
            return item, running.result()
        except errors.LoaderError as error:
            if error.retryable:
                raise
            return item, error

    pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="ais-loader-copy")
    try:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            if len(waiting) >= 2 * IN_FLIGHT:
                yield first_done()
        while waiting:
            yield first_done()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _paired(
    sources: Iterator[ObjectInfo], cut: int, targets: Iterator[ObjectInfo], target_cut: int
) -> Iterator[tuple[ObjectInfo, ObjectInfo | None]]:
    """Pair each source with the object at its new place. Both lists are sorted by what follows their prefixes."""
    stored = next(targets, None)
    for source in sources:
        rest = source.name[cut:].encode()
        while stored is not None and stored.name[target_cut:].encode() < rest:
            stored = next(targets, None)
        yield source, stored if stored is not None and stored.name[target_cut:].encode() == rest else None


def _is_equal(one: ObjectInfo, other: ObjectInfo) -> bool:
    return (one.size_bytes, one.checksum, one.metadata) == (other.size_bytes, other.checksum, other.metadata)
