"""Promotion: files on the store's own machines become objects without passing through this process."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ais_loader import errors
from ais_loader.values.changes import Failure, OnError, OnProgress, PromoteSummary, Tally, check_on_error
from ais_loader.values.entry import ObjectInfo

Overwrite: TypeAlias = Literal["changed", "always", "never"]
Shared: TypeAlias = bool | Literal["auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromoteSpec:
    """Files to promote, how, and on which nodes. See `Bucket.promote`."""

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
    """The outcome for one file, or for a node's part of the work, which has no path."""

    path: str
    """The file, relative to the path that was promoted."""
    name: str
    """The object's name."""
    status: Literal["promoted", "skipped", "failed"]
    """`skipped` if the object already existed."""
    info: ObjectInfo | None = None
    """The object. None if the promotion failed."""
    error: errors.LoaderError | None = None
    """Why the promotion failed. None if it did not."""


def promote_all(
    results: Generator[PromoteResult, None, None], *, on_error: OnError, progress: OnProgress | None = None
) -> PromoteSummary:
    """Consume all results. With on_error="raise", raises PromoteIncomplete at the end if some of them failed."""
    check_on_error(on_error, "raise", "return")
    with Tally(progress) as tally, closing(results):
        for result in results:
            if result.error is not None:
                tally.add_failed(Failure(result.name, result.error, path=result.path))
            elif result.status == "skipped":
                tally.add_skipped()
            else:
                tally.add_done(result.info.size_bytes if result.info is not None else 0)
    if tally.failed and on_error == "raise":
        total = tally.done + tally.skipped + tally.failed
        raise errors.PromoteIncomplete(
            f"{tally.failed} of {total} files were not promoted; the first error: {tally.failures[0].error}"
        )
    return tally.summary(PromoteSummary, "promoted")
