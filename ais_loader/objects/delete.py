"""Bulk deletion: by names, or by their common prefix; a few thousand objects with each request."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator
from typing import Literal

from ais_loader import errors
from ais_loader.transport.base import Transport, require_bucket, require_text
from ais_loader.values.changes import DeleteSummary, Failure, OnError, OnProgress, Tally, check_on_error
from ais_loader.values.requests import require_many

NAMES_AT_ONCE = 4000
"""Number of names in one request."""
_LISTED_AT_ONCE = 1000


def delete_many(
    transport: Transport, bucket: str, names: Iterable[str], *, on_error: OnError, progress: OnProgress | None
) -> DeleteSummary:
    """See `Bucket.delete_many`."""
    with Tally(progress, names, on_error=on_error) as tally:
        for index, (name, error) in enumerate(_results(transport, bucket, names)):
            if error is None:
                tally.add_done()
            else:
                tally.add_failed(Failure(name, error, index))
    return tally.summary(DeleteSummary, "deleted")


def iter_delete_many(
    transport: Transport, bucket: str, names: Iterable[str], *, on_error: Literal["raise", "yield"]
) -> Generator[str | errors.LoaderError, None, None]:
    """See `Bucket.iter_delete_many`."""
    for name, error in _results(transport, bucket, names):
        if error is not None and on_error == "raise":
            raise error
        yield name if error is None else error


def _results(
    transport: Transport, bucket: str, names: Iterable[str]
) -> Iterator[tuple[str, errors.LoaderError | None]]:
    """Yield each name, in order, with the reason why it was not deleted."""
    require_many("names", names)
    rest = iter(names)
    while group := list(itertools.islice(rest, NAMES_AT_ONCE)):
        for name in group:
            if not isinstance(name, str):
                raise TypeError(f"an object's name is a str, got {type(name).__name__}")
        yield from zip(group, _deleted(transport, bucket, group), strict=True)


def _deleted(transport: Transport, bucket: str, names: list[str]) -> list[errors.LoaderError | None]:
    """Return one result for each name. A name that no request can carry counts as not found."""
    results: list[errors.LoaderError | None] = [None] * len(names)
    sent: list[int] = []
    for at, name in enumerate(names):
        try:
            require_text(name, errors.ObjectNotFound, "object name")
        except errors.ObjectNotFound as error:
            results[at] = error
        else:
            sent.append(at)
    try:
        require_bucket(bucket)
        done = transport.delete_names(bucket, [names[at] for at in sent])
    except errors.Closed:
        raise
    except errors.LoaderError as error:
        done = [error] * len(sent)
    for at, result in zip(sent, done, strict=True):
        results[at] = result
    return results


def delete_prefix(
    transport: Transport, bucket: str, prefix: str, *, on_error: OnError = "raise", progress: OnProgress | None = None
) -> DeleteSummary:
    """See `Bucket.delete_prefix`."""
    check_on_error(on_error, "raise", "return")
    require_bucket(bucket)
    require_text(prefix, errors.InvalidRequest, "prefix")
    found = transport.objects(bucket, prefix=prefix, page_size=_LISTED_AT_ONCE)
    with Tally(progress) as tally:
        while group := [info.name for info in itertools.islice(found, _LISTED_AT_ONCE)]:
            for name, error in zip(group, transport.delete_names(bucket, group), strict=True):
                if error is None:
                    tally.add_done()
                elif isinstance(error, errors.BucketNotFound) or error.retryable:
                    raise error
                elif isinstance(error, errors.NotFound):
                    tally.add_skipped()  # another client has deleted it in the meantime
                else:
                    tally.add_failed(Failure(name, error))
    if tally.failed and on_error == "raise":
        first = tally.failures[0].error
        raise type(first)(
            f"{tally.done:,} objects were deleted, and {tally.failed:,} could not be; the first error: {first}"
        )
    return tally.summary(DeleteSummary, "deleted")
