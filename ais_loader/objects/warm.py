"""Warming and eviction of a remote bucket's copies, by names or by their common prefix, and the wait for uploads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping

from ais_loader import errors
from ais_loader.transport.base import Transport, require_text
from ais_loader.values.changes import EvictSummary, Failure, OnError, OnProgress, Tally, WarmSummary, check_on_error
from ais_loader.values.requests import require_many

_WARMED_TOGETHER = 500
_EVICTED_TOGETHER = 5000
_PAGE_SIZE = 1000
_FLUSH_STEP_S = 10.0


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


def flush(transport: Transport, bucket: str, prefix: str, timeout_s: float) -> None:
    """See `Bucket.flush`."""
    end_s = time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, end_s - time.monotonic())
        rows = transport.pending_uploads(bucket, prefix, min(left_s, _FLUSH_STEP_S))
        count = max((row.count for row in rows), default=0)
        if not count or not left_s:
            break
    failed = {name: error for row in rows for name, error in row.failures.items()}
    conflicts = {name: error for name, error in failed.items() if isinstance(error, errors.VersionConflict)}
    if conflicts and any(row.conflicts for row in rows):
        raise errors.VersionConflict(f"bucket {bucket!r}: {_named(conflicts)}")
    if count:
        kind = errors.RemoteDenied if any(isinstance(one, errors.RemoteDenied) for one in failed.values()) else None
        what = f": {_named(failed)}" if failed else ""
        raise (kind or errors.RemoteUnavailable)(
            f"bucket {bucket!r}: {count:,} writes are not uploaded after {timeout_s:g} s{what}"
        )


def _named(failed: Mapping[str, errors.LoaderError]) -> str:
    return "; ".join(f"{name}: {error}" for name, error in failed.items())
