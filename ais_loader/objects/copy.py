"""Server-side copies and renames of objects: bytes do not pass through this process.

A prefix is copied object by object. An object that exists at its new place with the same bytes is left alone, so an
interrupted copy is resumed by repeating it. A rename is a copy followed by the deletion of the copied version. Between
the two, the object has both names, and repeating the rename completes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Literal, TypeAlias, TypeVar

from ais_loader import errors
from ais_loader.objects.compose_request import make_range, make_request
from ais_loader.objects.put_spec import require_ordinary
from ais_loader.transport.base import Transport
from ais_loader.transport.retry import RetryBudget
from ais_loader.values.changes import Failure, OnError, OnProgress, Tally
from ais_loader.values.entry import ObjectInfo
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


def copy_transformed(
    transport: Transport,
    bucket: str,
    name: str,
    to_bucket: str,
    to: str,
    stages: Sequence[etl_pb.JobStage],
    *,
    if_absent: bool,
) -> ObjectInfo:
    """See Bucket.copy."""
    require_ordinary(to)
    if if_absent:
        raise errors.InvalidRequest(
            "if_absent cannot be combined with etl: the result of a transform replaces any object of its name"
        )
    request = etl_pb.CopyObjectRequest(bucket=bucket, name=name, to_bucket=to_bucket, to_name=to, stage=stages)
    return transport.copy_transformed(request)


def rename_object(
    transport: Transport, bucket: str, name: str, to_bucket: str, to: str, *, if_absent: bool = False
) -> ObjectInfo:
    """See Bucket.rename."""
    before = transport.head(bucket, name)
    try:
        made = copy_object(transport, bucket, name, to_bucket, to, version=before.version, if_absent=if_absent)
    except errors.VersionConflict:
        made = transport.head(to_bucket, to)
        if not _is_equal(before, made):
            raise
    _delete_copied(transport, before)
    return made


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


def copy_prefix(
    transport: Transport,
    bucket: str,
    prefix: str,
    to_bucket: str,
    to: str,
    *,
    remove: bool,
    on_error: OnError,
    progress: OnProgress | None,
) -> Tally:
    """See `Bucket.copy_prefix` and, with `remove`, `Bucket.rename_prefix`."""
    results = each_copied(transport, bucket, prefix, to_bucket, to, remove=remove)
    with Tally(progress, on_error=on_error) as tally, closing(results):
        for source, result in results:
            if result is None:
                tally.add_skipped()
            elif isinstance(result, ObjectInfo):
                tally.add_done(result.size_bytes)
            else:
                tally.add_failed(Failure(source.name, result))
    return tally


def iter_copy_prefix(
    transport: Transport,
    bucket: str,
    prefix: str,
    to_bucket: str,
    to: str,
    *,
    remove: bool,
    on_error: Literal["raise", "yield"],
) -> Generator[ObjectInfo | errors.LoaderError, None, None]:
    """See `Bucket.iter_copy_prefix` and, with `remove`, `Bucket.iter_rename_prefix`."""
    with closing(each_copied(transport, bucket, prefix, to_bucket, to, remove=remove)) as results:
        for _, result in results:
            if isinstance(result, errors.LoaderError) and on_error == "raise":
                raise result
            if result is not None:
                yield result


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
