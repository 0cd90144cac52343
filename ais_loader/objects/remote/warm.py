"""Warming and eviction of a remote bucket's copies: by names, or by prefix and shell patterns; the wait for uploads."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence

from ais_loader import errors
from ais_loader.name_matching import Patterns, matcher, pattern_list
from ais_loader.objects.bucket_part import BucketPart
from ais_loader.transport.base import Transport, require_bucket, require_text
from ais_loader.values.changes import EvictSummary, Failure, OnError, OnProgress, Tally, WarmSummary
from ais_loader.values.requests import require_many

_WARMED_TOGETHER = 500
_EVICTED_TOGETHER = 5000
_FLUSH_STEP_S = 10.0


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
    transport: Transport, bucket: str, group: list[tuple[str, int | None]], results: list[errors.LoaderError | None]
) -> list[int]:
    """Return the sizes of warmed objects. Those that are not known already are looked up where they are stored now."""
    asked = [
        name for (name, size_bytes), error in zip(group, results, strict=True) if size_bytes is None and error is None
    ]
    found = zip(asked, transport.head_names(bucket, asked), strict=True) if asked else ()
    known = {name: 0 if isinstance(info, errors.LoaderError) else info.size_bytes for name, info in found}
    return [known.get(name, 0) if size_bytes is None else size_bytes for name, size_bytes in group]


def _patterns(names: Iterable[str] | None, prefix: str, pattern: Patterns | None) -> tuple[str, ...]:
    require_text(prefix, errors.InvalidRequest, "prefix")
    patterns = pattern_list("pattern", pattern)
    if names is not None and (prefix or patterns):
        raise errors.InvalidRequest("names: give either them, or prefix and pattern")
    return patterns


def _named(failed: Mapping[str, errors.LoaderError]) -> str:
    return "; ".join(f"{name}: {error}" for name, error in failed.items())


class BucketWarming(BucketPart):
    """Copies of a remote bucket."""

    def warm(
        self,
        names: Iterable[str] | None = None,
        *,
        prefix: str = "",
        pattern: str | Sequence[str] | None = None,
        on_error: OnError = "raise",
        progress: OnProgress | None = None,
    ) -> WarmSummary:
        """Store the objects of a remote bucket that are cold, before they are read.

        Args:
            names: N >= 0 names, consumed as needed; None for all remote objects whose names begin with `prefix`, and
                match `pattern` if it is given.
            pattern: A shell pattern such as "*.wav", or several patterns, of which at least one must match. A pattern
                with a slash is matched against the whole name, any other pattern against what follows the last slash.
            on_error: "raise" raises the first failure; of up to 500 names that were sent together, others may be
                stored. "return" goes on, and the summary names the failures.
            progress: Called with a `Progress` after each object, in the order of the names, in this thread.

        Call it again to resume: what is stored and current costs no request to the remote storage. Raises
        InvalidRequest for a bucket that is not a remote one, BucketNotFound, RemoteUnavailable, RemoteDenied, and
        ObjectNotFound for a name that the remote storage does not have.
        """
        transport, bucket = self._transport, self.name
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

    def evict(
        self, names: Iterable[str] | None = None, *, prefix: str = "", pattern: str | Sequence[str] | None = None
    ) -> EvictSummary:
        """Remove stored copies of a remote bucket to free space. The remote objects stay, and are fetched again when
        they are read.

        Args:
            names: Names of objects; None for all whose names begin with `prefix`, and match `pattern` if it is given.
                Names that are not stored are ignored.
            pattern: One shell pattern, or several, as for `warm`.

        In a cluster, every node must answer. Objects that were put before the bucket was a remote one are kept. Raises
        InvalidRequest for a bucket that is not a remote one, BucketNotFound, NodeUnavailable, StoreReadOnly.
        """
        transport, bucket = self._transport, self.name
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

    def flush(self, prefix: str = "", *, timeout_s: float = 600.0) -> None:
        """Wait until everything that was put or deleted before is uploaded, in a bucket with `Remote(write="back")`.

        Args:
            prefix: Wait only for names that begin with this.

        Raises VersionConflict for objects that others have changed in the remote storage, against the condition of the
        write; RemoteUnavailable or RemoteDenied if something is not uploaded in time. Their messages name the first
        objects. Raises InvalidRequest for a bucket that is not a remote one, and NodeUnavailable.
        """
        require_bucket(self.name)
        transport, bucket = self._transport, self.name
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
