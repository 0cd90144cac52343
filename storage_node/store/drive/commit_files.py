"""Commit files: staged objects, the generations that a drive issues for them, and the files of one commit.

A commit has one file for each object, and one segment for all small ones, if there are several.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ais_loader.errors import OutcomeUnknown, StoreFormatError, VersionConflict
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import REBUILD_HINT, Catalog, WriteBatch
from storage_node.store.drive.preconditions import SUPERSEDED, Condition, done_before, undecided
from storage_node.store.drive.version_clock import VersionClock
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import RawFiles
from storage_node.store.files.segments import SegmentDraft
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.format import CatalogEntry, Version

_RESERVED_AT_ONCE = 1 << 16


@dataclass(slots=True)
class PendingObject:
    """Staged file with the name under which it will become visible."""

    bucket_uuid: bytes
    name: str
    file: StagedFile
    metadata: dict[str, str]
    version: Version | None = None
    """None: the drive issues one above what it has. Otherwise it has to be newer than what the drive has."""
    modified_ns: int = 0
    """0: the time of the commit."""
    damaged: CatalogEntry | None = None
    """Original entry of an object with damaged bytes. It is kept, so that the object remains detectable as damaged."""
    damaged_blocks: Sequence[int] = ()
    condition: Condition | None = None
    """Condition on the current object. If it does not hold, this object is not committed."""
    writes: bytes = b""
    """Write memory, in addition to what its drive knows of the name; see `write_memory`."""
    moved: CatalogEntry | None = None
    """Entry whose bytes it rewrites, with the same version. It is committed if the drive still has this very entry."""
    is_copy: bool = False
    """Whether it copies an object of another node or drive. It is then not a write that may have been done already."""
    durable: bool = False
    """Whether its commit is synced as with durability `power`: it replaces bytes that have been on disks for long."""

    def is_mended(self, before: CatalogEntry, entry: CatalogEntry) -> bool:
        """Whether the drive has exactly this version, and the write is to replace its damaged bytes."""
        if self.condition is None or not self.condition.mends or before.is_tombstone:
            return False
        return (before.version, before.size_bytes, before.checksum) == (entry.version, entry.size_bytes, entry.checksum)

    def is_outdated_copy(self, before: CatalogEntry, entry: CatalogEntry) -> bool:
        """Whether it is a fetched copy of a remote object that what the drive has is still to replace there."""
        if self.is_copy or not fmt.is_pending(before.raw_metadata):
            return False
        return fmt.is_remote_copy(entry.raw_metadata) and not fmt.is_pending(entry.raw_metadata)

    def settled(
        self, before: CatalogEntry | None, deleted: CatalogEntry | None, forgotten_ns: int
    ) -> CatalogEntry | VersionConflict | OutcomeUnknown | None:
        """Return the result of this object if it is not to be committed, because an earlier try was or its condition
        fails; None if it may be committed.

        For copies only versions count. A node that brings a version has looked for earlier tries: the object may have
        to be committed once more, but not over what has replaced it, nor over a try that was not found.

        Args:
            before: the current entry of its name.
            deleted: deletion of the object that had its name, if there is no entry.
            forgotten_ns: time of the newest deletion that was forgotten.
        """
        condition = self.condition
        if condition is None:
            return None
        remembering = deleted if before is None else before
        may_be_done = remembering is not None and condition.write_id in remembering.writes  # verified below
        if may_be_done and not self.is_copy and (done := done_before(condition, remembering)) is not None:
            if done is not remembering:
                return done._replace(raw_metadata=fmt.encode_metadata(self.metadata))
            if self.version is None:
                return done
            if done.version > (condition.known or Version(0, 0)):
                return done._replace(path=SUPERSEDED)
        if self.version is None and condition.began_ns:
            unknown = undecided(condition, self.name, remembering, 0 if before is not None else forgotten_ns)
            if unknown is not None:
                return unknown
        return condition.fault(self.name, before)


class SequenceNumbers:
    """Numbers that a drive issues only once, across all crashes: the generations of its files. Thread-safe.

    They are reserved in the catalog in large ranges, so that taking one is free. A crash skips numbers.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Raises LoaderError."""
        self._catalog = catalog
        self._lock = threading.Lock()
        stored = catalog.get(fmt.COUNTER_KEY)
        self.next = self._reserved = int.from_bytes(stored or b"\1", "big")  # guarded by _lock
        if self.next > fmt.MAX_GENERATION:
            raise StoreFormatError(
                f"{catalog.path}: {self.next} is no generation that a drive comes to; {REBUILD_HINT}"
            )

    def take(self, count: int = 1) -> int:
        """Return the first of `count` consecutive numbers. Raises LoaderError."""
        with self._lock:
            first = self.next
            if first + count > self._reserved:
                # Always synced, whatever the durability: a counter that went back would give two files the same name.
                batch = WriteBatch(raw_mode=True)
                reserved = first + count - 1 + _RESERVED_AT_ONCE
                batch.put(fmt.COUNTER_KEY, reserved.to_bytes(8, "big"))
                self._catalog.write(batch, sync=True)
                self._reserved = reserved
            self.next = first + count
            return first


class CommitFiles:
    """Files of one commit. Call `prepare`, then `publish`, then `discard` in any case. Belongs to one thread."""

    def __init__(
        self,
        files: RawFiles,
        generations: SequenceNumbers,
        clock: VersionClock,
        objects: Sequence[PendingObject],
        stage: Callable[[], StagedFile] | None,
        *,
        epoch: int,
        sync: bool,
    ) -> None:
        """`stage`: see `Drive.stage`; without it each object has a file of its own. Raises OSError, LoaderError."""
        self._files = files
        self._generations = generations
        self._clock = clock
        self._objects = objects
        self._epoch = epoch
        self.sync = sync
        """Whether the commit is to be durable."""
        self._now_ns = time.time_ns()
        small = [pending.file for pending in objects if _may_share(pending)] if len(objects) > 1 else []
        self._draft: SegmentDraft | None = None
        if stage is not None and len(small) > 1:
            generation = generations.take()  # before the file is created, because it may fail
            self._draft = SegmentDraft(stage(), generation, small)

    def prepare(self) -> list[CatalogEntry]:
        """Write the identities to the files, and sync them if the store is durable. Returns the tentative entries.

        Raises OSError, LoaderError.
        """
        objects, draft = self._objects, self._draft
        generation = self._generations.take(len(objects))
        unnumbered = sum(pending.version is None for pending in objects)
        counter = self._clock.take(unnumbered) if unnumbered else 0
        entries: list[CatalogEntry] = []
        for pending in objects:
            version = pending.version
            if version is None:
                version = Version(self._epoch, counter)
                counter += 1
            else:
                self._clock.advance_past(version.counter)
            entries.append(self._identify(pending, version, generation))
            generation += 1
        if draft is not None:
            draft.write()
            for at, pending in enumerate(objects):
                if (offset := draft.offset(pending.file)) is not None:
                    entry = entries[at]
                    # Like `_replace`, which would take as long as all other work for one object.
                    entries[at] = _new_tuple(CatalogEntry, (*entry[:6], offset, *entry[7:]))
        if self.sync:
            alone = [pending.file for pending in objects if not self._in_segment(pending)]
            self._files.sync_staged(alone if draft is None else [*alone, draft.file])
        return entries

    def _identify(self, pending: PendingObject, version: Version, generation: int) -> CatalogEntry:
        """Write the identity of an object to its file. Raises OSError."""
        content = pending.damaged or pending.file
        size_bytes, checksum = content.size_bytes, content.checksum
        modified_ns = pending.modified_ns or self._now_ns
        raw_metadata = fmt.encode_metadata(pending.metadata)
        identity = fmt.identity_of(
            pending.bucket_uuid, pending.name, version, generation, size_bytes, checksum, modified_ns, raw_metadata
        )
        described = self._draft.describe(pending.file, identity, generation) if self._draft is not None else None
        if described is None:
            self._files.set_identity(pending.file.fd, identity)
            described = fmt.file_path(pending.bucket_uuid, pending.name, generation), 0
        path, offset = described
        return _new_tuple(CatalogEntry, (*version, size_bytes, checksum, modified_ns, offset, path, raw_metadata, b""))

    def identify_anew(self, pending: PendingObject, version: Version) -> CatalogEntry:
        """Give an object another version after `prepare`: another write overtook it. Raises as `prepare` does."""
        self._clock.advance_past(version.counter)
        entry = self._identify(pending, version, self._generations.take())
        if self.sync and not self._in_segment(pending):  # `publish` syncs the segment
            pending.file.sync()
        return entry

    def _in_segment(self, pending: PendingObject) -> bool:
        return self._draft is not None and pending.file in self._draft

    def paths(self, chosen: Sequence[tuple[PendingObject, CatalogEntry]]) -> list[bytes]:
        """Return the paths that `publish` will create for these objects: the segment's once, and those with one object
        each."""
        draft = self._draft
        if draft is None:
            return [entry.path for _, entry in chosen]
        alone = [entry.path for pending, entry in chosen if pending.file not in draft]
        return alone if len(alone) == len(chosen) else [draft.path, *alone]

    def publish(self, chosen: Sequence[tuple[PendingObject, CatalogEntry]]) -> None:
        """Rename the files of these objects to their final names; other objects are dropped. Raises OSError."""
        if self.sync:
            self._files.make_lasting_folders(entry.path for _, entry in chosen)
        if self._draft is not None:
            self._publish_segment(self._draft, [pending.file for pending, _ in chosen if pending.file in self._draft])
        for pending, entry in chosen:
            if not self._in_segment(pending):
                self._files.publish(pending.file, entry.path)
            failpoint("put.renamed")

    def _publish_segment(self, draft: SegmentDraft, kept: Sequence[StagedFile]) -> None:
        if not kept:
            return
        if draft.keep_only(kept) and self.sync:
            draft.file.sync()
        self._files.publish(draft.file, draft.path)

    def discard(self) -> None:
        """Remove the segment unless it has been published. The objects' own files belong to their owners."""
        if self._draft is not None:
            self._draft.file.discard()


_new_tuple = tuple.__new__
"""Creates a named tuple from all its fields, in half the time: commits may contain hundreds of objects."""


def _may_share(pending: PendingObject) -> bool:
    """Whether it may be in a segment. An object whose size or checksum differs from its bytes may not."""
    return pending.file.held is not None and pending.damaged is None
