"""Outcome of calls that change many objects: what was done, what failed and why, and progress while they run.

Memory is bounded on purpose. Of what has a length, and the caller holds anyway, everything is kept; of an iterator or a
prefix, which may come to ten million objects, the counts and the first MAX_FAILURES failures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ais_loader.entry import ObjectInfo
from ais_loader.errors import InvalidRequest, LoaderError

MAX_FAILURES = 1000
"""Kept of an iterator or a prefix; the others are counted."""
OnError: TypeAlias = Literal["raise", "return"]


@dataclass(frozen=True, slots=True)
class Failure:
    """An object that a call did not change."""

    name: str
    """Empty for a node's whole part in a promotion."""
    error: LoaderError
    index: int | None = None
    """Its place in what `put_many` or `delete_many` was given, from 0."""
    path: str | None = None
    """The file that was to be promoted, from the path that was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a call is."""

    done: int = 0
    """Objects stored, downloaded, deleted, copied, renamed or promoted, whichever the call does."""
    skipped: int = 0
    """Objects that needed nothing: copied or promoted before, or deleted by somebody else."""
    failed: int = 0
    size_bytes: int = 0
    """Of those done. Deletions say none."""


OnProgress: TypeAlias = Callable[[Progress], object]
"""Called once for each object, when the store has answered for it, in the thread that made the call. An error that it
raises ends the call, and passes through; what was done stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSummary:
    """What all these calls return, each with its own counts besides."""

    failed: int = 0
    failures: tuple[Failure, ...] = ()
    """All of them where the call was given what has a length, as a list; of an iterator or a prefix the first 1,000."""

    @property
    def complete(self) -> bool:
        """Whether nothing failed."""
        return not self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSummary(ChangeSummary):
    """What `Bucket.put_many` or `Bucket.put_folder` has stored."""

    stored: int = 0
    skipped: int = 0
    """Of `put_folder`: files that were objects already, with the same bytes."""
    size_bytes: int = 0
    _infos: tuple[ObjectInfo, ...] | None = field(default=None, repr=False)

    @property
    def infos(self) -> tuple[ObjectInfo, ...]:
        """Of the objects stored, in order. Raises InvalidRequest where the call was given an iterator: none are kept of
        objects that nobody holds."""
        if self._infos is None:
            raise InvalidRequest("infos are kept of a list of objects, not of an iterator: see iter_put_many")
        return self._infos


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSummary(ChangeSummary):
    """What `Bucket.download` has written to files."""

    downloaded: int = 0
    skipped: int = 0
    """Were there already, with the same bytes."""
    size_bytes: int = 0
    """Of those downloaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteSummary(ChangeSummary):
    """What `Bucket.delete_many` or `Bucket.delete_prefix` has deleted."""

    deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySummary(ChangeSummary):
    """What `Bucket.copy_prefix` has copied."""

    copied: int = 0
    skipped: int = 0
    """Were there already, with the same bytes and metadata."""
    size_bytes: int = 0
    """Of those copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameSummary(ChangeSummary):
    """What `Bucket.rename_prefix` has renamed."""

    renamed: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteSummary(ChangeSummary):
    """What `Bucket.promote` has made objects of."""

    promoted: int = 0
    skipped: int = 0
    """Were there already."""
    size_bytes: int = 0
    """Of those promoted."""


class Tally:
    """Counts of a call under way. As a context it has an error that ends the call say what was done before."""

    def __init__(self, progress: OnProgress | None, given: Iterable[object] | None = None) -> None:
        """`given`: what the caller passed, where that is objects or names."""
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
        self._tell()

    def add_skipped(self) -> None:
        self.skipped += 1
        self._tell()

    def add_failed(self, failure: Failure) -> None:
        self.failed += 1
        if self.keeps_all or len(self.failures) < MAX_FAILURES:
            self.failures.append(failure)
        self._tell()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(
                Progress(done=self.done, skipped=self.skipped, failed=self.failed, size_bytes=self.size_bytes)
            )


def check_on_error(on_error: str, *allowed: str) -> None:
    """Raises InvalidRequest."""
    if on_error not in allowed:
        raise InvalidRequest(f"on_error={on_error!r}: need {' or '.join(map(repr, allowed))}")
