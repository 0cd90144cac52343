"""Warming and eviction of a remote bucket's copies: by names, or by prefix and shell patterns; the wait for uploads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping

from ais_loader import errors
from ais_loader.name_matching import Patterns, matcher, pattern_list
from ais_loader.transport.base import Transport, require_text
from ais_loader.values.changes import EvictSummary, Failure, OnError, OnProgress, Tally, WarmSummary
from ais_loader.values.requests import require_many

_WARMED_TOGETHER = 500
_EVICTED_TOGETHER = 5000
_FLUSH_STEP_S = 10.0


def warm(
    transport: Transport,
    bucket: str,
    names: Iterable[str] | None,
    prefix: str,
    pattern: Patterns | None,
    *,
    on_error: OnError,
    progress: OnProgress | None,
) -> WarmSummary:
    """See `Bucket.warm`."""
    patterns = _patterns(names, prefix, pattern)
    index = 0
    with Tally(progress, names, on_error=on_error) as tally:
        wanted: Iterable[tuple[str, int | None]]
        if names is None:
            wanted = _cold(transport, bucket, prefix, patterns, tally)
        else:
            require_many("names", names)
            wanted = ((name, None) for name in names)
        left = iter(wanted)
        while group := list(itertools.islice(left, _WARMED_TOGETHER)):
            results = transport.warm(bucket, [name for name, _ in group])
            sizes = _sizes(transport, bucket, group, results)
            for (name, _), size_bytes, error in zip(group, sizes, results, strict=True):
                if error is None:
                    tally.add_done(size_bytes)
                else:
                    tally.add_failed(Failure(name, error, index))
                index += 1
    return tally.summary(WarmSummary, "warmed")


def _cold(
    transport: Transport, bucket: str, prefix: str, patterns: tuple[str, ...], tally: Tally
) -> Iterable[tuple[str, int | None]]:
    """Yield the names and sizes of objects that are cold."""
    fits = matcher(patterns)
    for info in transport.objects(bucket, prefix=prefix):
        if patterns and not fits(info.name):
            continue
        if info.is_stored:
            tally.add_skipped()
        else:
            yield info.name, info.size_bytes


def _sizes(
    transport: Transport,
    bucket: str,
    group: list[tuple[str, int | None]],
    results: list[errors.LoaderError | None],
) -> list[int]:
    """Return the sizes of warmed objects. Those that are not known already are looked up where they are stored now."""
    asked = [
        name for (name, size_bytes), error in zip(group, results, strict=True) if size_bytes is None and error is None
    ]
    found = zip(asked, transport.head_names(bucket, asked), strict=True) if asked else ()
    known = {name: 0 if isinstance(info, errors.LoaderError) else info.size_bytes for name, info in found}
    return [known.get(name, 0) if size_bytes is None else size_bytes for name, size_bytes in group]


def evict(
    transport: Transport, bucket: str, names: Iterable[str] | None, prefix: str, pattern: Patterns | None
) -> EvictSummary:
    """See `Bucket.evict`."""
    patterns = _patterns(names, prefix, pattern)
    copies = size_bytes = 0
    if names is None:
        return EvictSummary(*transport.evict(bucket, None, prefix, patterns))
    require_many("names", names)
    left = iter(names)
    while group := list(itertools.islice(left, _EVICTED_TOGETHER)):
        more = transport.evict(bucket, group, "", ())
        copies, size_bytes = copies + more[0], size_bytes + more[1]
    return EvictSummary(copies, size_bytes)


def _patterns(names: Iterable[str] | None, prefix: str, pattern: Patterns | None) -> tuple[str, ...]:
    require_text(prefix, errors.InvalidRequest, "prefix")
    patterns = pattern_list("pattern", pattern)
    if names is not None and (prefix or patterns):
        raise errors.InvalidRequest("names: give either them, or prefix and pattern")
    return patterns


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
