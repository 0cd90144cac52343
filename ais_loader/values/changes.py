"""Outcome of calls that change many objects: what was done, what failed and why, and progress while they run.

Memory is bounded on purpose. If the caller passes something that has a length, and therefore holds it anyway,
everything is kept. For an iterator or a prefix, which may stand for ten million objects, only the counts and the first
MAX_FAILURES failures are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias, TypeVar

from ais_loader.errors import InvalidRequest, LoaderError
from ais_loader.values.entry import ObjectInfo

MAX_FAILURES = 1000
"""The number of failures to keep for an iterator or a prefix. Further ones are only counted."""
OnError: TypeAlias = Literal["raise", "return"]
S = TypeVar("S", bound="ChangeSummary")


@dataclass(frozen=True, slots=True)
class Failure:
    """An object that a call could not change."""

    name: str
    """The object's name. Empty if a node's entire part of a promotion failed."""
    error: LoaderError
    """Why. Each failure has an error of its own type."""
    index: int | None = None
    """The object's position in the argument of `put_many` or `delete_many`, starting at 0."""
    path: str | None = None
    """The file that could not be promoted, relative to the path that was promoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a call."""

    done: int = 0
    """Objects that were stored, downloaded, deleted, copied, renamed or promoted, depending on the call."""
    skipped: int = 0
    """Objects for which there was nothing to do: already copied or promoted, or deleted by someone else."""
    failed: int = 0
    """Objects that failed so far."""
    size_bytes: int = 0
    """Total size of the objects in `done`. Deletions do not report it."""


OnProgress: TypeAlias = Callable[[Progress], object]
"""A function that is called once for each object, when the store has answered for it, in the thread that made the call.
If it raises an error, the call ends with that error. What was done until then is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSummary:
    """The part that the results of all these calls have in common. Each adds its own counts."""

    failed: int = 0
    """The number of objects that failed."""
    failures: tuple[Failure, ...] = ()
    """All failures if the call was given something that has a length, such as a list. For an iterator or a prefix, the
    first 1,000."""

    @property
    def complete(self) -> bool:
        """Whether nothing failed."""
        return not self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSummary(ChangeSummary):
    """The result of `Bucket.put_many` or `Bucket.put_folder`."""

    stored: int = 0
    """The number of objects stored."""
    skipped: int = 0
    """For `put_folder`: files that already existed as objects with the same bytes."""
    size_bytes: int = 0
    """Total size of the stored objects."""
    _infos: tuple[ObjectInfo, ...] | None = field(default=None, repr=False)

    @property
    def infos(self) -> tuple[ObjectInfo, ...]:
        """The ObjectInfo of each stored object, in order.

        Raises InvalidRequest if the call was given an iterator, for which none are kept.
        """
        if self._infos is None:
            raise InvalidRequest(
                "infos are kept only if put_many was given a list, not an iterator; iter_put_many yields them instead"
            )
        return self._infos


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSummary(ChangeSummary):
    """The result of `Bucket.download`."""

    downloaded: int = 0
    """The number of files written."""
    skipped: int = 0
    """Files that already existed with the same bytes."""
    size_bytes: int = 0
    """Total size of the downloaded objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSummary(ChangeSummary):
    """The result of `Bucket.delete_many` or `Bucket.delete_prefix`."""

    deleted: int = 0
    """The number of objects deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySummary(ChangeSummary):
    """The result of `Bucket.copy_prefix`."""

    copied: int = 0
    """The number of objects copied."""
    skipped: int = 0
    """Objects that already existed with the same bytes and metadata."""
    size_bytes: int = 0
    """Total size of the copied objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameSummary(ChangeSummary):
    """The result of `Bucket.rename_prefix`."""

    renamed: int = 0
    """The number of objects renamed."""
    size_bytes: int = 0
    """Total size of the renamed objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteSummary(ChangeSummary):
    """The result of `Bucket.promote`."""

    promoted: int = 0
    """The number of files that became objects."""
    skipped: int = 0
    """Files that already existed as objects."""
    size_bytes: int = 0
    """Total size of the promoted files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmSummary(ChangeSummary):
    """The result of `Bucket.warm`."""

    warmed: int = 0
    """The number of objects that are stored and current now."""
    skipped: int = 0
    """Objects of a prefix that were stored already."""
    size_bytes: int = 0
    """Total size of the warmed objects."""


@dataclass(frozen=True, slots=True)
class EvictSummary:
    """The result of `Bucket.evict`."""

    copies: int
    """The number of stored copies that were removed, on all nodes."""
    size_bytes: int
    """Their total size."""


class Tally:
    """Counts of a running call. As a context manager, it adds to an error that ends the call what was done before."""

    def __init__(
        self, progress: OnProgress | None, given: Iterable[object] | None = None, *, on_error: OnError = "return"
    ) -> None:
        """`given`: What the caller passed, if that was objects or names. With on_error="raise", `add_failed` raises the
        error. Raises InvalidRequest."""
        check_on_error(on_error, "raise", "return")
        self._raises = on_error == "raise"
        self.done = self.skipped = self.failed = self.size_bytes = 0
        self.failures: list[Failure] = []
        self.keeps_all = isinstance(given, Sized)
        self._progress = progress

    def __enter__(self) -> Tally:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception):
            error.add_note(f"before this error: {self.done:,} done, {self.skipped:,} skipped, {self.failed:,} failed")

    def add_done(self, size_bytes: int = 0) -> None:
        self.done += 1
        self.size_bytes += size_bytes
        self._report()

    def add_skipped(self) -> None:
        self.skipped += 1
        self._report()

    def add_failed(self, failure: Failure) -> None:
        if self._raises:
            raise failure.error
        self.failed += 1
        if self.keeps_all or len(self.failures) < MAX_FAILURES:
            self.failures.append(failure)
        self._report()

    def summary(self, kind: type[S], done: str, **more: Any) -> S:
        """Return the result of the call. `done`: the field of this kind of result that has the number of objects."""
        counts = {done: self.done, "skipped": self.skipped, "size_bytes": self.size_bytes, "failed": self.failed}
        known = {one.name: counts[one.name] for one in fields(kind) if one.name in counts}
        return kind(**known, failures=tuple(self.failures), **more)

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(
                Progress(done=self.done, skipped=self.skipped, failed=self.failed, size_bytes=self.size_bytes)
            )


def check_on_error(on_error: str, *allowed: str) -> None:
    """Raises InvalidRequest."""
    if on_error not in allowed:
        raise InvalidRequest(f"on_error={on_error!r}: need {' or '.join(map(repr, allowed))}")
