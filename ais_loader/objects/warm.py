"""Warming and eviction of a remote bucket's copies: by names, or by their common prefix."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from ais_loader import errors
from ais_loader.transport.base import Transport, require_text
from ais_loader.values.changes import EvictSummary, Failure, OnError, OnProgress, Tally, WarmSummary, check_on_error
from ais_loader.values.requests import require_many

_WARMED_TOGETHER = 500
_EVICTED_TOGETHER = 5000
_PAGE_SIZE = 1000


def warm(
    transport: Transport,
    bucket: str,
    names: Iterable[str] | None,
    prefix: str,
    *,
    on_error: OnError,
    progress: OnProgress | None,
) -> WarmSummary:
    """See `Bucket.warm`."""
    check_on_error(on_error, "raise", "return")
    require_text(prefix, errors.InvalidRequest, "prefix")
    _require_one(names, prefix)
    index = 0
    with Tally(progress, names) as tally:
        if names is None:
            names = _cold(transport, bucket, prefix, tally)
        else:
            require_many("names", names)
        left = iter(names)
        while group := list(itertools.islice(left, _WARMED_TOGETHER)):
            for name, error in zip(group, transport.warm(bucket, group), strict=True):
                if error is None:
                    tally.add_done()
                elif on_error == "raise":
                    raise error
                else:
                    tally.add_failed(Failure(name, error, index))
                index += 1
    return WarmSummary(warmed=tally.done, skipped=tally.skipped, failed=tally.failed, failures=tuple(tally.failures))


def _cold(transport: Transport, bucket: str, prefix: str, tally: Tally) -> Iterable[str]:
    for info in transport.objects(bucket, prefix=prefix, page_size=_PAGE_SIZE):
        if info.is_stored:
            tally.add_skipped()
        else:
            yield info.name


def evict(transport: Transport, bucket: str, names: Iterable[str] | None, prefix: str) -> EvictSummary:
    """See `Bucket.evict`."""
    require_text(prefix, errors.InvalidRequest, "prefix")
    _require_one(names, prefix)
    copies = size_bytes = 0
    if names is None:
        return EvictSummary(*transport.evict(bucket, None, prefix))
    require_many("names", names)
    left = iter(names)
    while group := list(itertools.islice(left, _EVICTED_TOGETHER)):
        more = transport.evict(bucket, group, "")
        copies, size_bytes = copies + more[0], size_bytes + more[1]
    return EvictSummary(copies, size_bytes)


def _require_one(names: Iterable[str] | None, prefix: str) -> None:
    if names is not None and prefix:
        raise errors.InvalidRequest("names and prefix: give one of them")
