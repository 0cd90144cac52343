"""Promotion: files that the store's own machines see become objects, without passing through this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from ais_loader import errors
from ais_loader.entry import ObjectInfo

Overwrite: TypeAlias = Literal["changed", "always", "never"]
Shared: TypeAlias = bool | Literal["auto"]
MAX_FAILURES = 1000
"""Kept in a summary; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteSpec:
    """What is to be promoted, how, and by whom; see `Bucket.promote`."""

    bucket: str
    path: str
    prefix: str = ""
    recursive: bool = True
    move: bool = False
    overwrite: Overwrite = "changed"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    shared: Shared = "auto"
    node: str | None = None


@dataclass(frozen=True, slots=True)
class PromoteResult:
    """What became of one file, or of a node's part in the work (then without a path)."""

    path: str
    """From the path that was promoted."""
    name: str
    """Of the object."""
    status: Literal["promoted", "skipped", "failed"]
    """skipped: the object was there already."""
    info: ObjectInfo | None = None
    """The object; None where it failed."""
    error: errors.LoaderError | None = None


@dataclass(slots=True)
class PromoteSummary:
    """What came of a promotion: numbers of files, the bytes of those that were promoted, and the first failures."""

    promoted: int = 0
    skipped: int = 0
    """Were there already."""
    failed: int = 0
    promoted_bytes: int = 0
    failures: list[PromoteResult] = field(default_factory=list)
    """The first MAX_FAILURES of them."""

    def add(self, result: PromoteResult) -> None:
        """Count one result."""
        if result.status == "promoted":
            self.promoted += 1
            self.promoted_bytes += result.info.size_bytes if result.info is not None else 0
        elif result.status == "skipped":
            self.skipped += 1
        else:
            self.failed += 1
            if len(self.failures) < MAX_FAILURES:
                self.failures.append(result)

    @property
    def complete(self) -> bool:
        """Whether everything that was found is in the bucket now."""
        return not self.failed


def promote_spec(
    bucket: str,
    path: str | os.PathLike[str],
    *,
    recursive: bool,
    prefix: str,
    move: bool,
    shared: Shared,
    overwrite: Overwrite,
    include: Sequence[str],
    exclude: Sequence[str],
    node: str | None,
) -> PromoteSpec:
    """Raises InvalidRequest, TypeError."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise errors.InvalidRequest(f"{path!r}: need the path of a file or a folder")
    if overwrite not in get_args(Overwrite):
        raise errors.InvalidRequest(f"overwrite={overwrite!r}: need {', '.join(map(repr, get_args(Overwrite)))}")
    if shared not in (True, False, "auto"):
        raise errors.InvalidRequest(f'shared={shared!r}: need True, False or "auto"')
    for patterns in (include, exclude):
        if isinstance(patterns, str):
            raise TypeError(f"{patterns!r}: need a sequence of patterns, not one")
    return PromoteSpec(
        bucket=bucket,
        path=text,
        prefix=prefix,
        recursive=recursive,
        move=move,
        overwrite=overwrite,
        include=tuple(include),
        exclude=tuple(exclude),
        shared=shared,
        node=node,
    )


def summarize(
    results: Iterable[PromoteResult], on_result: Callable[[PromoteResult], None] | None, *, raising: bool
) -> PromoteSummary:
    """Go through all results. With `raising`, PromoteIncomplete at the end when some of them failed."""
    summary = PromoteSummary()
    try:
        for result in results:
            summary.add(result)
            if on_result is not None:
                on_result(result)
    finally:
        if isinstance(results, Generator):
            results.close()  # an error of `on_result` ends the promotion now, not when it has been forgotten
    if raising and summary.failed:
        first = summary.failures[0].error
        done = summary.promoted + summary.skipped
        raise errors.PromoteIncomplete(f"{summary.failed} of {summary.failed + done} were not promoted; first: {first}")
    return summary
