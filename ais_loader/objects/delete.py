"""Bulk deletion: by names, or by their common prefix; a few thousand objects with each request."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Literal, overload

from ais_loader import errors
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.transport.base import Transport, require_bucket, require_text
from ais_loader.values.changes import DeleteSummary, Failure, OnError, OnProgress, Tally, check_on_error
from ais_loader.values.requests import require_many

NAMES_AT_ONCE = 4000
"""Number of names in one request."""
_LISTED_AT_ONCE = 1000


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


class BucketDeleting(BucketPart):
    """Deletions of many objects."""

    def delete_many(
        self, names: Iterable[str], *, on_error: OnError = "raise", progress: OnProgress | None = None
    ) -> DeleteSummary:
        """Delete many objects, thousands with one request.

        Args:
            names: N >= 0 names, consumed as needed. A name that is repeated is not found the second time.
            on_error: "raise" raises the first failure. All objects before it are deleted, and of the up to 4,000 that
                were sent in the same request, others may be. "return" deletes the other objects, and the summary names
                those that failed.
            progress: Called with a `Progress` after each object, in the order of `names`, in this thread.

        Raises the errors of `delete`, and TypeError for a value that is not a name. If `names` or `progress` raises an
        exception, a note on it says how many objects certainly had been deleted.
        """
        transport, bucket = self._transport, self.name
        with Tally(progress, names, on_error=on_error) as tally:
            for index, (name, error) in enumerate(_results(transport, bucket, names)):
                if error is None:
                    tally.add_done()
                else:
                    tally.add_failed(Failure(name, error, index))
        return tally.summary(DeleteSummary, "deleted")

    @overload
    def iter_delete_many(
        self, names: Iterable[str], *, on_error: Literal["raise"] = "raise"
    ) -> Generator[str, None, None]: ...

    @overload
    def iter_delete_many(
        self, names: Iterable[str], *, on_error: Literal["yield"]
    ) -> Generator[str | errors.LoaderError, None, None]: ...

    def iter_delete_many(
        self, names: Iterable[str], *, on_error: Literal["raise", "yield"] = "raise"
    ) -> Generator[Any, None, None]:
        """Yield each name once its object is deleted, in order: `delete_many` step by step.

        `names` may be endless. The generator is lazy: nothing is deleted until you iterate. Then up to 4,000 objects
        are deleted with one request before the first of them is yielded. With on_error="yield", the error of a name
        that failed is yielded in its place. Otherwise like `delete_many`.
        """
        check_on_error(on_error, "raise", "yield")
        return iter_delete_many(self._transport, self.name, names, on_error=on_error)

    def delete_prefix(
        self, prefix: str, *, everything: bool = False, on_error: OnError = "raise", progress: OnProgress | None = None
    ) -> DeleteSummary:
        """Delete the objects whose names begin with `prefix`, holding one page of 1,000 names in memory at a time.

        If it fails half-way, call it again. Objects that are stored meanwhile may be kept.

        Args:
            everything: Required for an empty prefix, which every name begins with.
            on_error: An object that cannot be deleted does not stop the others. "raise" raises the error of the first
                one at the end. "return" only reports failures in the summary.
            progress: Called with a `Progress` after each object, in the order of names, in this thread.

        Raises InvalidRequest, BucketNotFound, StoreReadOnly, NodeUnavailable, which end it immediately; others, such as
        DriveFailed, at the end.
        """
        require_text(prefix, errors.InvalidRequest, "prefix")
        if not prefix and not everything:
            raise errors.InvalidRequest(
                "an empty prefix selects all objects of the bucket: pass everything=True to delete them"
            )
        transport, bucket = self._transport, self.name
        check_on_error(on_error, "raise", "return")
        require_bucket(bucket)
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
