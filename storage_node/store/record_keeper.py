"""Record keeper: holds the store record in memory, writes it to the drives, and defines when a change is committed.

A reader beside a writer reads the record again once a second, before it reports that something is missing, and after a
writer in its own process has changed it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ais_loader.errors import DriveFailed, LoaderError, StoreFormatError
from storage_node.store import store_record as records
from storage_node.store.drive.drive import READER_STALENESS_S, Drive
from storage_node.store.files.object_files import drive_error
from storage_node.store.pool.drive_set import DriveSet
from storage_node.store.pool.open import DriveOptions, newest_record, open_beside
from storage_node.store.store_record import StoreRecord


class RecordKeeper:
    """Store record of one open store. Thread-safe.

    Locks are acquired in this order, starting at any of them: the pool's lock, or the snapshots' trim lock; `lock`; the
    placement lock of the drive set, exclusively; the stripes of the drives.
    """

    def __init__(self, record: StoreRecord, drives: DriveSet, *, roots: Sequence[Path], options: DriveOptions) -> None:
        self._drives = drives
        self._roots = list(roots)
        self._options = options
        self.lock = threading.Lock()
        """Held during a change of the record, from reading it to the end of the commit."""
        self.quotas = options.quotas
        """Quotas of the record's buckets, if the store is open for writing."""
        self.quotas.follow(record)
        self.current = record  # guarded by lock for changes
        """The current record; replaced as a whole."""
        self.watches: frozenset[Callable[[], object]] = frozenset()
        """Called after each change of the record, on the thread that has made it, with the lock held."""
        self._read_at_s = time.monotonic()
        self._marks: list[object] = []
        """Readers only: the marks of the drives when the record was last read."""
        self.deleted_buckets: set[bytes] = set()  # guarded by lock
        """Buckets deleted since the store was opened. A drive that is added rejects uploads into them, as the others
        do."""

    # -- reading what a writer has changed

    def refresh(self, *, only_if_stale: bool) -> None:
        """Read the record from the drives, and use it if it is newer. For a store that is open for reading."""
        now_s, marks = time.monotonic(), [drive.record_mark.latest for drive in self._drives.live()]
        if only_if_stale and marks == self._marks and now_s - self._read_at_s < READER_STALENESS_S:
            return
        with contextlib.suppress(StoreFormatError):  # no drive can be read now: the known record stays in use
            newest = newest_record({drive.root: drive.identity for drive in self._drives.live()})
            with self.lock:
                if newest.order > self.current.order:
                    self._follow(newest)
        self._read_at_s, self._marks = now_s, marks

    # -- changing

    def change(self, change: Callable[[StoreRecord], StoreRecord]) -> None:
        """Commit a changed record. For the doctor. Raises StoreReadOnly, Closed, DriveFull, DriveFailed."""
        self._drives.require_writable()
        with self.lock:
            self.commit(change(self.current))

    def commit(self, record: StoreRecord, also: Sequence[Drive] = (), *, whoever: bool = False) -> None:
        """Write the record to every drive; the caller holds `lock`.

        It is committed once a majority has it, both of the drives before and of those after; with `whoever`, once all
        writable drives have it. `also`: drives that are new in it. Raises DriveFailed, DriveFull.
        """
        live = [*also, *self._drives.live()]
        sets = () if whoever else (self.current.drives, record.drives)

        def is_enough(drives: Sequence[Drive]) -> bool:
            present = {drive.identity.drive_uuid for drive in drives}
            return bool(present) and all(2 * len(present.intersection(uuids)) > len(uuids) for uuids in sets)

        if not is_enough(live):
            raise DriveFailed(
                f"only {len(live)} of {len(self.current.drives)} drives can be written; a change of buckets or drives "
                "needs a majority"
            )
        written: list[Drive] = []
        problem: LoaderError | None = None
        try:
            for drive in live:
                try:
                    records.write(drive.root, record)
                    written.append(drive)
                except OSError as error:
                    drive.faults.note(error, "writing the record")
                    problem = drive_error(error, drive.root, "writing the record of buckets")
            failed = {drive.identity.drive_uuid for drive in live if drive not in written}
            if problem is not None and (
                not is_enough(written) or failed & {drive.identity.drive_uuid for drive in also}
            ):
                raise problem
        except BaseException:
            self._take_back(record, live)
            raise
        finally:
            for drive in live:
                drive.note_change()
        self._follow(record, also)

    def _take_back(self, record: StoreRecord, drives: Sequence[Drive]) -> None:
        """Undo a failed change in memory and on the drives, under a higher revision. The next start uses the newest
        record that it finds, and everything acknowledged until then was based on the previous one. A revision is never
        used twice."""
        self.current = replace(self.current, revision=record.revision + 1)
        having = [drive for drive in drives if _may_have(drive, record)]
        for drive in drives if having else ():
            try:
                records.write(drive.root, self.current)
            except OSError as error:
                drive.faults.note(error, "taking the record back")
                if drive in having:
                    drive.doubt(
                        f"{drive.root}: a change of the store failed, and may be on this drive all the same "
                        f"({error.strerror or error}); the store has to be opened again"
                    )

    def note_trimming(self, bucket_uuid: str) -> None:
        """Note, for the next commit, that this bucket may have retained versions that no snapshot sees. The caller
        holds `lock`."""
        self.current = self.current.with_trimming(bucket_uuid)
        self._tell()

    def _follow(self, record: StoreRecord, also: Sequence[Drive] = ()) -> None:
        """Use this record from now on. The caller holds `lock`."""
        before, self.current = self.current, record
        self.quotas.follow(record)
        self._tell()
        if (before.drives, before.active, before.former) == (record.drives, record.active, record.former):
            return
        if not self._drives.writable:
            also = open_beside(record, before, self._roots, self._options)
        for drive in self._drives.follow(record, also):
            if not self._drives.writable:
                drive.give_up(f"drive {drive.identity.drive_uuid} has left the store")

    def _tell(self) -> None:
        for watch in self.watches:
            watch()

    def end(self) -> list[Drive]:
        """Reject new operations on the store. Returns the open drives."""
        self._drives.closed = True
        if self._drives.placement_lock.is_inherited:
            return self._drives.live()  # a thread that does not exist after the fork may hold the lock
        with self.lock:
            return self._drives.live()


def _may_have(drive: Drive, record: StoreRecord) -> bool:
    try:
        found = records.read(drive.root)
    except (StoreFormatError, OSError):
        return True
    return found is not None and found.order == record.order
