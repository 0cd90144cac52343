"""Bulk put: many objects stored with few requests, all at once or as their infos are consumed."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Literal

from ais_loader.errors import LoaderError
from ais_loader.objects.put_spec import ToPut, put_specs
from ais_loader.transport.base import PutSpec, Transport
from ais_loader.values.changes import Failure, OnError, OnProgress, PutSummary, Tally
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.source import Source


def put_many(
    transport: Transport,
    bucket: str,
    objects: Iterable[ToPut],
    *,
    if_absent: bool,
    on_error: OnError,
    progress: OnProgress | None,
) -> PutSummary:
    """See `Bucket.put_many`."""
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


def iter_put_many(
    transport: Transport,
    bucket: str,
    objects: Iterable[ToPut],
    *,
    if_absent: bool,
    on_error: Literal["raise", "yield"],
) -> Generator[ObjectInfo | LoaderError, None, None]:
    """See `Bucket.iter_put_many`."""
    with closing(transport.put_many(put_specs(bucket, objects, if_absent=if_absent))) as results:
        for result in results:
            if isinstance(result, LoaderError) and on_error == "raise":
                raise result
            yield result
