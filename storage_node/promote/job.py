"""Promotion job: the policy that skips, compares or stores each file, decided without the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, TypeAlias, get_args

from ais_loader.errors import InvalidName, InvalidRequest, LoaderError, SourceChanged, SourceRefused, SourceUnreadable
from ais_loader.wire.object_info import Stored
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.promote.source import SourceFile
from storage_node.promote.walk import FoundFile, NotFit
from storage_node.store.drive.drive import Drive
from storage_node.store.files.clone_or_copy import FROM_BYTES, Transfer
from storage_node.store.files.staged_file import StagedFile

Overwrite: TypeAlias = Literal["changed", "always", "never"]
OVERWRITES = get_args(Overwrite)
STAMP_KEY = "ais.promoted-mtime-ns"
"""Key in an object's metadata: the modification time of the file that it was promoted from."""


@dataclass(frozen=True, slots=True)
class Job:
    bucket: str
    move: bool = False
    overwrite: str = "changed"
    go_on: Callable[[], None] = lambda: None
    """Called at intervals; raises when the promotion is cancelled."""

    def __post_init__(self) -> None:
        if self.overwrite not in OVERWRITES:
            raise InvalidRequest(f"overwrite={self.overwrite!r}: need {', '.join(map(repr, OVERWRITES))}")


class Outcome(NamedTuple):
    """The result for one file. Without an object there is an error."""

    path: str
    name: str
    stored: Stored | None = None
    skipped: bool = False
    """The object existed already."""
    error: LoaderError | None = None
    method: Transfer = "copied"
    """How this node got the bytes of a stored object."""


def failed(one: FoundFile | NotFit, error: LoaderError, about: str = "") -> Outcome:
    return Outcome(one.path, one.name, error=type(error)(f"{one.path}: {about}{error}"))


def stamp_metadata(source: SourceFile) -> dict[str, str]:
    return {STAMP_KEY: str(source.stamp.mtime_ns)}


def open_unless_stored(job: Job, found: FoundFile, existing: Stored | None) -> SourceFile | None:
    """Open the file; None if nothing has to be done. The result's `equal` is set if the object need not be stored.

    `existing` is the object of the same name. It is equal if size and stamp of an earlier promotion match, or else the
    checksum. For a file that would be removed, only the checksum counts. Raises SourceRefused, SourceUnreadable,
    SourceChanged.
    """
    if found.is_link and job.move:
        raise SourceRefused("is a symbolic link; only files are moved")
    if existing is not None and job.overwrite == "never":
        return None
    quick = existing is not None and job.overwrite == "changed" and not job.move
    if quick and not found.is_link and _same_stamp(existing, found.size_bytes, found.mtime_ns):
        return None
    source = SourceFile(found)
    try:
        if job.move and source.is_object():
            raise SourceRefused("is the file of an object in a store; only other files are moved")
        if existing is not None and job.overwrite == "changed" and existing.size_bytes == source.size_bytes:
            has_checksum = not existing.version.startswith(ETAG_VERSION)
            source.equal = (quick and _same_stamp(existing, source.size_bytes, source.stamp.mtime_ns)) or (
                has_checksum and source.checksum(job.go_on) == existing.checksum
            )
    except BaseException:
        source.close()
        raise
    return source


def _same_stamp(stored: Stored | None, size_bytes: int, mtime_ns: int) -> bool:
    return stored is not None and (stored.size_bytes, stored.metadata.get(STAMP_KEY)) == (size_bytes, str(mtime_ns))


def is_small(source: SourceFile) -> bool:
    """Return whether the file is read whole and stored in a group."""
    return source.size_bytes < FROM_BYTES


def staging(job: Job, source: SourceFile) -> Callable[[Drive], StagedFile]:
    """Return how a drive stages the file: by a hard link if it is moved and lies on the drive's own file system."""
    if job.move and not source.found.is_link:
        return partial(_stage_link, source=source)
    return Drive.stage


def _stage_link(drive: Drive, source: SourceFile) -> StagedFile:
    staged = drive.stage_link(source.found.folder.fd, source.found.file_name) if source.may_be_linked() else None
    if staged is None:
        return drive.stage()
    if not source.is_same(staged.fd):
        staged.discard()
        raise SourceChanged("was replaced while it was promoted; nothing was stored of it")
    return staged


class PromoteMetrics:
    """Counters of promotions since the node started, written on the node's event loop only."""

    def __init__(self) -> None:
        # Present from the start: a rate needs the zero before the first event.
        self.files: dict[str, int] = dict.fromkeys(get_args(Transfer), 0)
        self.bytes_by_method = dict(self.files)
        self.skipped = 0
        self.errors = {kind.kind: 0 for kind in (SourceRefused, SourceUnreadable, SourceChanged, InvalidName)}

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.stored is None:
                kind = "internal" if outcome.error is None else outcome.error.kind
                self.errors[kind] = self.errors.get(kind, 0) + 1
            elif outcome.skipped:
                self.skipped += 1
            else:
                self.files[outcome.method] += 1
                self.bytes_by_method[outcome.method] += outcome.stored.size_bytes
