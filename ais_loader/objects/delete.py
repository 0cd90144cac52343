"""Bulk deletion: by names, or by what names begin with; a few thousand objects with each request."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable
from typing import Literal

from ais_loader import errors
from ais_loader.transport.base import Transport
from ais_loader.transport.validation import require_bucket, require_text

NAMES_AT_ONCE = 4000
"""With one request."""
_LISTED_AT_ONCE = 1000


def delete_many(
    transport: Transport, bucket: str, names: Iterable[str], on_error: Literal["raise", "yield"]
) -> Generator[str | errors.LoaderError, None, None]:
    """See `Bucket.delete_many`."""
    if isinstance(names, str):
        raise TypeError("names is one string; pass a list of names")
    rest = iter(names)
    while group := list(itertools.islice(rest, NAMES_AT_ONCE)):
        for name in group:
            if not isinstance(name, str):
                raise TypeError(f"an object's name is a str, got {type(name).__name__}")
        for name, result in zip(group, _deleted(transport, bucket, group), strict=True):
            if result is not None and on_error == "raise":
                raise result
            yield name if result is None else result


def _deleted(transport: Transport, bucket: str, names: list[str]) -> list[errors.LoaderError | None]:
    """One result each: a name that no request can carry is one that is not there."""
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


def delete_prefix(transport: Transport, bucket: str, prefix: str) -> int:
    """See `Bucket.delete_prefix`."""
    require_bucket(bucket)
    require_text(prefix, errors.InvalidRequest, "prefix")
    found = transport.objects(bucket, prefix=prefix, page_size=_LISTED_AT_ONCE)
    deleted = 0
    failures: list[errors.LoaderError] = []
    failed = 0
    while group := [info.name for info in itertools.islice(found, _LISTED_AT_ONCE)]:
        for result in transport.delete_names(bucket, group):
            if result is None:
                deleted += 1
            elif isinstance(result, errors.BucketNotFound) or result.retryable:
                raise result
            elif not isinstance(result, errors.NotFound):  # somebody else deleted it meanwhile
                failed += 1
                failures = failures or [result]
    if failures:
        raise type(failures[0])(f"{failed:,} objects are left, {deleted:,} were deleted; of the first: {failures[0]}")
    return deleted
