"""Pool membership: drives are added, retired, forgotten, disabled and enabled while their store is open.

Retiring a drive loses nothing: it leaves the store only after everything on it has moved. Forgetting a drive loses its
contents. Disabling one changes nothing durably: its names raise DriveFailed until it is enabled or forgotten.
`DriveState` is what a store tells of one drive.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ais_loader.errors import DriveFailed, InvalidRequest, LoaderError, StoreFormatError
from ais_loader.wire.block_device import DeviceCounts, device_counts
from storage_node.store import store_record as records
from storage_node.store.drive import identity as identities
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.identity import DriveIdentity
from storage_node.store.failpoints import failpoint
from storage_node.store.files.object_files import drive_error
from storage_node.store.permissions import close_to_others
from storage_node.store.pool.drive_set import DriveSet, Slot
from storage_node.store.pool.open import DriveOptions, find_drive, make_folder, new_drive_folder
from storage_node.store.pool.rebalance import Moved, Mover
from storage_node.store.record_keeper import RecordKeeper
from storage_node.store.store_record import StoreRecord


class DrivePool:
    """Drives of one open store. One change at a time; objects are read and written meanwhile. Thread-safe."""

    def __init__(
        self,
        drives: DriveSet,
        record: RecordKeeper,
        options: DriveOptions,
        roots: Sequence[Path],
        *,
        finish_deletions: Callable[[], None],
    ) -> None:
        """`finish_deletions` is called after a drive came back or was forgotten: it may contain objects that were
        deleted meanwhile."""
        self._drives = drives
        self._record = record
        self._options = options
        self._finish_deletions = finish_deletions
        self._lock = threading.Lock()
        """Held for the whole duration of a change of drives, outside all other locks of the store."""
        self._roots = list(roots)  # guarded by _lock
        self._mover = Mover(drives, lambda: record.current.purging)

    def states(self) -> list[DriveState]:
        """Return the drives' states in the order of the store record. Raises Closed."""
        self._drives.require_open()
        slots, record = self._drives.rows(), self._record.current  # in this order: a drive may leave in between
        return [
            drive_state(slot, retiring=slot.uuid in record.retiring) for slot in slots if slot.uuid in record.drives
        ]

    # -- coming

    def add_drive(self, path: str | os.PathLike[str]) -> str:
        """Add an empty or new folder as a drive of this store. It owns its share of the names from now on.

        Returns the drive's uuid. Objects of these names on other drives are moved to it by `move_some`. Raises
        StoreFormatError for a folder that is not empty, InvalidRequest for a drive of this store, StoreReadOnly,
        DriveFull, DriveFailed, Closed; the store is then unchanged.
        """
        self._drives.require_writable()
        root = Path(os.path.abspath(os.fspath(path)))
        with self._lock:
            self._require_no_snapshots()
            record = self._record.current
            identity = new_drive_folder(root, record) or identities.create(record.store_uuid)
            try:
                make_folder(root)
                close_to_others(root)
                identities.write(root, identity)
            except OSError as error:
                raise drive_error(error, root, "adding a drive") from error
            failpoint("drive.identity")
            drive = self._options.open(root, identity, record)
            try:
                drive.generations.take()  # fails now if the drive cannot write
                self._change_drives(lambda record: record.with_drive(identity.drive_uuid), [drive])
            except BaseException:
                drive.close()
                raise
            self._roots.append(root)
        return identity.drive_uuid

    def reinstate_drive(self, uuid: str) -> None:
        """Undo `retire_drive`: the drive owns its share of the names again. Raises as `retire_drive` does."""
        self._drives.require_writable()
        with self._lock:
            self._drives.slot(uuid)
            if uuid in self._record.current.retiring:
                self._change_drives(lambda record: record.with_reinstated(uuid))

    # -- going

    def retire_drive(self, uuid: str) -> None:
        """Remove a drive from placement. `move_some` moves its contents to the other drives; then it leaves the store.

        Its folder then records that it is no longer part of this store, and can be unmounted. Raises InvalidRequest for
        the last active drive and for one that is not in this store, DriveFailed for one that cannot be read,
        StoreReadOnly, DriveFull, Closed.
        """
        self._drives.require_writable()
        with self._lock:
            self._drives.at(self._drives.slot(uuid))
            if uuid in self._record.current.retiring:
                return
            if self._record.current.active == (uuid,):
                raise InvalidRequest(f"drive {uuid} is the last one that takes objects; add another one first")
            self._change_drives(lambda record: record.with_retiring(uuid))

    def forget_drive(self, uuid: str) -> None:
        """Remove a drive that is missing, broken or disabled. Its contents are no longer in this store.

        Its names belong to the other drives from now on. If an object was moved to it or overwritten on it shortly
        before a crash, an older version may reappear on the drive that had it before. Raises InvalidRequest for a drive
        that works and for the last one, DriveFailed, DriveFull, StoreReadOnly, Closed.
        """
        self._drives.require_writable()
        with self._lock:
            slot = self._drives.slot(uuid)
            if self._drives.slots[slot].drive is not None:
                raise InvalidRequest(f"drive {uuid} works: retire it, or disable it first if it does not deserve that")
            if set(self._record.current.active) <= {uuid}:
                raise InvalidRequest(f"drive {uuid} is the last one that takes objects; add another one first")
            self._change_drives(lambda record: record.without_drive(uuid), whoever=True)
            self._drives.slots[slot].problem = f"drive {uuid} was forgotten"
        self._finish_deletions()

    # -- failing, and coming back

    def disable_drive(self, uuid: str, reason: str, *, missing: bool = False) -> None:
        """Stop using a drive: for all other threads its names raise DriveFailed with this reason at once.

        This thread waits for the commits that are running on the drive, and closes it. Running reads finish. None of
        this is durable: reopening the store opens the drive again. Harmless if the drive is not open. Raises
        InvalidRequest, Closed.

        `missing`: the drive is gone; its status is missing rather than disabled.
        """
        self._drives.require_open()
        slot = self._drives.slot(uuid)
        drive = self._drives.take_out(slot, reason, disabled=not missing)
        if drive is not None:
            drive.give_up(reason)

    def enable_drive(
        self, uuid: str, path: str | os.PathLike[str] | None = None, opened: Callable[[], object] = bool
    ) -> None:
        """Open a drive that is disabled, or was missing. `path` is its folder; None stands for its last folder, or one
        beside the other drives.

        Harmless if it is open. `opened` is called before it is used. Raises InvalidRequest, DriveFailed if it is not
        found, StoreFormatError, DriveFull, StoreReadOnly, StoreLocked, Closed.
        """
        self._drives.require_open()
        with self._lock:
            slot = self._drives.slot(uuid)
            if self._drives.slots[slot].drive is not None:
                return
            root = self._where(slot, path)
            try:
                stored = records.read(root)
            except OSError as error:
                raise drive_error(error, root, "reading its record") from error
            if stored is not None and stored.order > self._record.current.order:
                raise StoreFormatError(
                    f"{root} knows of later changes of the store; close the store and open it with it"
                )
            drive = self._options.open(root, DriveIdentity(uuid, self._record.current.store_uuid), self._record.current)
            try:
                opened()
                self._admit(slot, drive)
            except BaseException:
                drive.close()
                raise
        if self._drives.writable:
            self._finish_deletions()

    def _admit(self, slot: int, drive: Drive) -> None:
        with self._record.lock, self._drives.placement_lock.alone():
            self._drives.require_open()
            if self._drives.writable:
                self._prepare(drive)
                drive.changes.set_cuts(self._record.current.cuts)
                with contextlib.suppress(OSError):  # other drives have it, and a full drive must open to be emptied
                    records.write(drive.root, self._record.current)
            self._drives.put_in(slot, drive)

    def _where(self, slot: int, path: str | os.PathLike[str] | None) -> Path:
        known = self._drives.slots[slot]
        if path is not None:
            roots = [Path(os.path.abspath(os.fspath(path)))]
        else:
            roots = [*([known.root] if known.root is not None else []), *self._roots]
        found = find_drive(roots, known.uuid, beside=path is None)
        if found is None:
            raise DriveFailed(f"drive {known.uuid} is not at {', '.join(map(str, roots))}, or not mounted")
        return found

    # -- moving

    @property
    def moving(self) -> bool:
        """Whether objects may be on drives that no longer own them."""
        return self._drives.placement.moving

    def move_some(self, max_objects: int = 256, max_bytes: int = 64 << 20) -> Moved:
        """Move some objects to the drives that own them; at least one, whatever its size.

        Call it until nothing is left, at any rate, from one thread or several, and also after a crash. If an object
        cannot be moved, `problem` gives the reason, and later calls try again. Raises StoreReadOnly, Closed,
        DriveFailed, DriveFull.
        """
        self._drives.require_writable()
        moved, settled = self._mover.step(max_objects, max_bytes)
        if settled is not None and not self._settle_drives(settled):
            moved = moved._replace(left_estimate=max(1, moved.left_estimate))
        return moved

    def _settle_drives(self, changes: int) -> bool:
        """Complete a change of drives after everything has moved under this state of the drives: remove the retiring
        ones."""
        with self._lock:
            leaving: list[Drive] = []
            with self._record.lock, self._drives.placement_lock.alone():
                if self._drives.changes != changes or not self._drives.all_live():
                    return False
                for uuid in self._record.current.retiring:
                    drive = self._drives.at(self._drives.slot(uuid))
                    if next(drive.entries(), None) is not None:
                        return False
                    leaving.append(drive)
                self._record.commit(self._record.current.settled())
            failpoint("drive.settled")
            for drive in leaving:
                with contextlib.suppress(LoaderError):  # no reader returns to these files
                    drive.reap(everything=True)
                drive.give_up(f"drive {drive.identity.drive_uuid} has left the store")
                with contextlib.suppress(OSError):  # the store record has it as well
                    identities.mark_left(drive.root, drive.identity)
        return True

    # -- shared by all changes of drives

    def _change_drives(
        self, change: Callable[[StoreRecord], StoreRecord], also: Sequence[Drive] = (), *, whoever: bool = False
    ) -> None:
        with self._record.lock, self._drives.placement_lock.alone():
            self._drives.require_open()
            self._require_no_snapshots(losing=whoever)
            for drive in also:
                self._prepare(drive)
            self._record.commit(change(self._record.current), also, whoever=whoever)
        failpoint("drive.recorded")

    def _require_no_snapshots(self, *, losing: bool = False) -> None:
        """Refuse to change drives while snapshots exist: retained versions stay on their drives and are not searched on
        others.

        `losing`: the contents of the drive are given up. For a cluster's buckets, other nodes have them.
        """
        named = [one for of_bucket in self._record.current.snapshots.values() for one in of_bucket.values()]
        if any(not (losing and one.of_cluster) for one in named):
            raise InvalidRequest("the store has snapshots: delete them before drives come or go")

    def _prepare(self, drive: Drive) -> None:
        """Refuse deleted buckets on a new drive, and count those that have got a quota since it was opened. The
        record's lock is held, and the drive has no commits yet."""
        self._options.count(drive, self._record.current)
        for bucket_uuid in self._record.deleted_buckets:
            drive.refuse_bucket(bucket_uuid)


Status: TypeAlias = Literal["active", "retiring", "disabled", "missing"]


@dataclass(frozen=True, slots=True)
class DriveState:
    """State of one drive. `problem` is None while the drive works."""

    uuid: str
    path: str
    problem: str | None
    objects_estimate: int = 0
    free_bytes: int = 0
    size_bytes: int = 0
    status: Status = "active"
    io_errors: int = 0
    """Since the drive was opened; see `ErrorCounters`."""
    last_io_error: str = ""
    checksum_errors: int = 0
    device: DeviceCounts | None = None


def drive_state(slot: Slot, *, retiring: bool) -> DriveState:
    drive = slot.drive
    if drive is None:
        root = str(slot.root) if slot.disabled and slot.root is not None else ""
        return DriveState(slot.uuid, root, slot.problem, status="disabled" if slot.disabled else "missing")
    space: os.statvfs_result | None = None
    objects_estimate = 0
    problem: str | None = None
    try:
        objects_estimate = drive.catalog.estimated_keys()
        space = os.statvfs(drive.root)
    except OSError as error:
        problem = f"{error.strerror}"
    except LoaderError as error:
        problem = str(error)
    return DriveState(
        slot.uuid,
        str(drive.root),
        problem,
        objects_estimate if space is not None else 0,
        space.f_bavail * space.f_frsize if space is not None else 0,
        space.f_blocks * space.f_frsize if space is not None else 0,
        "retiring" if retiring else "active",
        drive.faults.io_errors,
        drive.faults.last_io_error,
        drive.faults.checksum_errors,
        device_counts(str(drive.root)) if space is not None else None,
    )
