"""Bulk put: many objects stored with few requests, all at once or as their infos are consumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, Literal, overload

from ais_loader import errors
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.objects.put_spec import ToPut, put_specs
from ais_loader.transport.base import PutSpec, Transport
from ais_loader.values.changes import Failure, OnError, OnProgress, PutSummary, Tally, check_on_error
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.source import Source


def iter_put_many(
    transport: Transport, bucket: str, objects: Iterable[ToPut], *, if_absent: bool, on_error: Literal["raise", "yield"]
) -> Generator[ObjectInfo | errors.LoaderError, None, None]:
    """See `Bucket.iter_put_many`."""
    with closing(transport.put_many(put_specs(bucket, objects, if_absent=if_absent))) as results:
        for result in results:
            if isinstance(result, errors.LoaderError) and on_error == "raise":
                raise result
            yield result


class BucketPutting(BucketPart):
    """Puts of many objects."""

    def put_many(
        self,
        objects: Iterable[ToPut],
        *,
        if_absent: bool = False,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> PutSummary:
        """Store many objects with few requests.

        Args:
            objects: N >= 0 tuples, either (name, data) or (name, data, metadata), with values as `put` takes them. They
                are consumed as needed. If a name is repeated, the last object wins.
            if_absent: As for `put`, applied to each object separately. An object that exists fails with
                VersionConflict.
            on_error: "raise" raises the first failure. All objects before it are stored. Of the objects after it, up to
                a few thousand had already been sent, and any of them may be stored. "return" stores the other objects,
                and the summary names those that failed.
            progress: Called with a `Progress` after each object, in the order of `objects`, in this thread.

        Returns:
            A summary with the number of objects stored. If `objects` has a length, as a list does, the summary also has
            their ObjectInfos, in order. For an iterator of any length, it keeps only the counts and the first 1,000
            failures.

        Raises:
            The errors of `put`. With either `on_error`: TypeError for a value that cannot be stored, NodeUnavailable if
            no node answers any more, and any exception that `objects` or `progress` raises. Objects consumed before
            that may have been stored, and a note on the exception says how many certainly were.
        """
        transport, bucket = self._transport, self.name
        unanswered: deque[str] = deque()

        def drawn() -> Iterator[tuple[PutSpec, Source]]:
            for spec, source in put_specs(bucket, objects, if_absent=if_absent):
                unanswered.append(spec.name)
                yield spec, source

        infos: list[ObjectInfo] = []
        with Tally(progress, objects, on_error=on_error) as tally, closing(transport.put_many(drawn())) as results:
            for index, result in enumerate(results):
                name = unanswered.popleft()
                if isinstance(result, ObjectInfo):
                    if tally.keeps_all:
                        infos.append(result)
                    tally.add_done(result.size_bytes)
                else:
                    tally.add_failed(Failure(name, result, index))
        return tally.summary(PutSummary, "stored", _infos=tuple(infos) if tally.keeps_all else None)

    @overload
    def iter_put_many(
        self, objects: Iterable[ToPut], *, if_absent: bool = False, on_error: Literal["raise"] = "raise"
    ) -> Generator[ObjectInfo, None, None]: ...

    @overload
    def iter_put_many(
        self, objects: Iterable[ToPut], *, if_absent: bool = False, on_error: Literal["yield"]
    ) -> Generator[ObjectInfo | errors.LoaderError, None, None]: ...

    def iter_put_many(
        self, objects: Iterable[ToPut], *, if_absent: bool = False, on_error: Literal["raise", "yield"] = "raise"
    ) -> Generator[Any, None, None]:
        """Yield the ObjectInfo of each object as it is stored, in order: `put_many` step by step.

        `objects` may be endless. The generator is lazy: nothing is stored until you iterate. An object that it has
        yielded is stored. It consumes up to a few thousand objects ahead, and when you close it, those may or may not
        have been stored. With on_error="yield", the error of an object that failed is yielded in its place. Otherwise
        like `put_many`.
        """
        check_on_error(on_error, "raise", "yield")
        return iter_put_many(self._transport, self.name, objects, if_absent=if_absent, on_error=on_error)
