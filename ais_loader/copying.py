"""Copies and renames of objects, done by the store: bytes do not pass through this process.

A prefix is copied object by object, and what is at its new place with the same bytes and metadata is left alone: who
was interrupted does the same again, and only the rest is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, TypeAlias

from ais_loader import errors
from ais_loader.composing import make_range, make_request
from ais_loader.entry import ObjectInfo
from ais_loader.parts import require_ordinary
from ais_loader.transport.base import Transport

IN_FLIGHT = 4
"""Objects of a prefix that are copied at once."""
_PAGE_SIZE = 1000


def copy_object(
    transport: Transport, bucket: str, name: str, to_bucket: str, to: str, *, version: str = "",
    moved: Callable[[int], None] | None = None,
) -> ObjectInfo:  # fmt: skip
    """Copy an object, as it is or in this version of it, with its metadata."""
    require_ordinary(to)
    if (bucket, name) == (to_bucket, to):
        raise errors.InvalidRequest(f"{bucket}/{name} cannot be copied to itself")
    request = make_request(to_bucket, to, [make_range(bucket, name, version)])
    return transport.compose(request, moved)


Copied: TypeAlias = ObjectInfo | errors.LoaderError


def copy_prefix(
    transport: Transport, bucket: str, prefix: str, to_bucket: str, to: str, *,
    on_error: Literal["raise", "yield"], moved: Callable[[ObjectInfo], None] | None = None,
) -> Iterator[Copied]:  # fmt: skip
    """Objects whose names begin with `prefix`, in order, copied to where `to` takes its place; see Bucket.copy_prefix.

    `moved` hears of each object of the source that is done with, copied or equal already.
    """
    if bucket == to_bucket and (prefix.startswith(to) or to.startswith(prefix)):
        raise errors.InvalidRequest(
            f"prefixes {prefix!r} and {to!r} of one bucket overlap: objects would be copied on top of each other"
        )

    def one(source: ObjectInfo, there: ObjectInfo | None) -> ObjectInfo | None:
        made: ObjectInfo | None = None
        if there is None or not _is_equal(source, there):
            made = copy_object(
                transport, bucket, source.name, to_bucket, to + source.name[len(prefix) :], version=source.version
            )
        return made

    waiting: deque[tuple[ObjectInfo, Future[ObjectInfo | None]]] = deque()

    def first_done() -> Iterator[Copied]:
        source, running = waiting.popleft()
        try:
            made = running.result()
        except errors.LoaderError as error:
            if on_error == "raise" or error.retryable:
                raise
            yield error
            return
        if moved is not None:
            moved(source)
        if made is not None:
            yield made

    sources = transport.objects(bucket, prefix=prefix, page_size=_PAGE_SIZE)
    targets = transport.objects(to_bucket, prefix=to, page_size=_PAGE_SIZE)
    pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="ais-loader-copy")
    try:
        for source, there in _paired(sources, len(prefix), targets, len(to)):
            waiting.append((source, pool.submit(one, source, there)))
            if len(waiting) >= 2 * IN_FLIGHT:
                yield from first_done()
        while waiting:
            yield from first_done()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _paired(
    sources: Iterator[ObjectInfo], cut: int, targets: Iterator[ObjectInfo], target_cut: int
) -> Iterator[tuple[ObjectInfo, ObjectInfo | None]]:
    """Each source with what is at its new place. Both lists are in order of what follows their prefixes."""
    there = next(targets, None)
    for source in sources:
        rest = source.name[cut:].encode()
        while there is not None and there.name[target_cut:].encode() < rest:
            there = next(targets, None)
        yield source, there if there is not None and there.name[target_cut:].encode() == rest else None


def _is_equal(one: ObjectInfo, other: ObjectInfo) -> bool:
    return (one.size_bytes, one.checksum, one.metadata) == (other.size_bytes, other.checksum, other.metadata)
