"""Drive set of an open store: which drives are open, and the placement of names on them.

A drive keeps its slot as long as the store is open, whatever drives are added or removed: slot numbers that a batch
holds stay valid. Thread-safe. Look-ups never wait here: the placement is replaced as a whole.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import xxhash

from ais_loader.errors import Closed, DriveFailed, InvalidRequest, LoaderError, StoreReadOnly
from ais_loader.wire.placement import Candidate, owners, ranked
from storage_node.store import format as fmt
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.transactions import Stripes
from storage_node.store.format import CatalogEntry
from storage_node.store.store_record import StoreRecord


class EntrySlots(NamedTuple):
    slots: tuple[int, ...]
    """Different drives, the owner first."""
    ordered: bool
    """Whether the first of them that has an entry has the newest one."""


class _Era(NamedTuple):
    slots: tuple[int, ...]
    candidates: tuple[Candidate, ...]

    def owners(self, bucket_uuid: bytes, names: Sequence[bytes]) -> list[int]:
        """Return the slot of the owner for each name, in UTF-8."""
        if len(self.slots) == 1:
            return [self.slots[0]] * len(names)
        return [self.slots[at] for at in owners(bucket_uuid, names, self.candidates)]

    def owner(self, bucket_uuid: bytes, name: str) -> int:
        if len(self.slots) == 1:
            return self.slots[0]
        return self.slots[ranked(bucket_uuid, name, self.candidates)[0]]


class DrivePlacement:
    """Immutable placement. Slots are the caller's numbers of drives."""

    def __init__(self, record: StoreRecord, slot_of: Mapping[str, int]) -> None:
        sets = (record.active, *reversed(record.former))
        self._eras = [
            _Era(tuple(slot_of[uuid] for uuid in drives), tuple(Candidate(bytes.fromhex(uuid)) for uuid in drives))
            for drives in sets
        ]
        self.slots = tuple(slot_of[uuid] for uuid in record.drives)
        """Slots of all drives of the store."""
        self.moving = len(sets) > 1
        """Whether names may have entries on a drive that no longer owns them."""
        self.digest = 0 if self.moving else xxhash.xxh3_64_intdigest(" ".join(record.active).encode()) or 1
        """Digest of the drives while no name has entries on other drives than its owner; otherwise 0."""
        self.ordered = all(_changes(uuid, sets) <= 1 for uuid in record.drives)
        """Whether an entry on the owner is always the newest."""
        self.owner = self._eras[0].owner
        """Function from (bucket uuid, name) to the slot of the drive that owns it."""
        self.owners = self._eras[0].owners
        """Function from (bucket uuid, names in UTF-8) to the slots of the drives that own them."""
        self.only = self._eras[0].slots[0] if len(self._eras[0].slots) == 1 else None
        """Slot of the drive that owns every name, if there is one."""

    def keeps(self, slot: int, keys: Sequence[bytes]) -> list[bool]:
        """Return which of these catalog keys are of objects that a drive owns. Keys of a bucket stand together."""
        if self.only is not None:
            return [slot == self.only] * len(keys)
        kept: list[bool] = []
        for bucket_uuid, of_bucket in itertools.groupby(keys, fmt.bucket_of_key):
            owners = self.owners(bucket_uuid, [key[fmt.NAME_AT :] for key in of_bucket])
            kept += [owner == slot for owner in owners]
        return kept

    def leaving(self, slot: int) -> float:
        """Estimate the share of a drive's entries that have to move, before any has."""
        now, before = self._eras[0].slots, self._eras[-1].slots
        if slot not in now:
            return 1.0
        return len(set(now) - set(before)) / len(now)

    def entry_slots(self, bucket_uuid: bytes, name: str) -> EntrySlots:
        owners = [era.owner(bucket_uuid, name) for era in self._eras]
        turns = [owner for at, owner in enumerate(owners) if at == 0 or owner != owners[at - 1]]
        slots = tuple(dict.fromkeys(turns))
        return EntrySlots(slots, len(slots) == len(turns))


def _changes(uuid: str, sets: Sequence[Sequence[str]]) -> int:
    """Count how often a drive was added or removed."""
    is_member = [uuid in drives for drives in sets]
    return sum(is_member[at] != is_member[at - 1] for at in range(1, len(is_member)))


class PlacementLock:
    """Readers-writer lock: shared by object writes, exclusive for placement changes.

    Not reentrant, in either mode. Thread-safe. In a forked child it raises Closed.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside = 0  # guarded by _lock
        self._closed = False  # guarded by _lock

    def shared(self) -> PlacementLock:
        """Return the context manager of the shared mode, the same one for all: a generator for every write would be
        slower. Entering it raises Closed in a process that inherited the lock."""
        return self

    def __enter__(self) -> None:
        self._require_own_process()
        with self._lock:
            while self._closed:
                self._changed.wait()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._closed and not self._inside:
                self._changed.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for all holders, and exclude new ones. Raises Closed as `shared` does."""
        self._require_own_process()
        with self._changed:
            while self._closed:
                self._changed.wait()
            self._closed = True
            while self._inside:
                self._changed.wait()
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()

    @property
    def is_inherited(self) -> bool:
        """Whether this process has it through a fork."""
        return self._pid != os.getpid()

    def _require_own_process(self) -> None:
        if self.is_inherited:
            raise Closed("the store was opened before a fork; open it again in the child")


class Located(NamedTuple):
    slot: int
    """Slot of the drive with the entry, or the owner's if there is no entry."""
    record: CatalogEntry | None


@dataclass(slots=True)
class Slot:
    """Place of one drive in the set. Either `drive` or `problem` is None."""

    uuid: str
    drive: Drive | None
    problem: str | None
    root: Path | None = None
    """Last known folder of the drive."""
    disabled: bool = False


class DriveSet:
    def __init__(
        self,
        record: StoreRecord,
        drives: Sequence[Drive | None],
        problems: Sequence[str | None],
        refresh: Callable[[], None],
        *,
        writable: bool,
    ) -> None:
        """`refresh` updates the placement of a reader with what another process may have changed."""
        self.writable = writable
        self.closed = False
        """Set once, by `RecordKeeper.end`."""
        self.slots = [
            Slot(uuid, drive, problem, drive.root if drive is not None else None)
            for uuid, drive, problem in zip(record.drives, drives, problems, strict=True)
        ]
        """Only ever grows."""
        self._refresh = refresh
        self.placement_lock = PlacementLock()
        """Shared by changes of objects, held exclusively by changes of the placement."""
        self.names = Stripes(512)
        """Locks of the names that are changed while entries may be on several drives. Acquired inside `placement_lock`.
        """
        self.changes = 0
        """Increases with every change of drives or placement."""
        self.placement = DrivePlacement(record, self._slot_of())
        self._share_locations()

    def _share_locations(self) -> None:
        """Let the drives share their locations as far as each has those of its own objects only."""
        for slot in self.placement.slots:
            if (drive := self.slots[slot].drive) is not None:
                with contextlib.suppress(LoaderError):  # whoever reads gets it
                    drive.share_locations(self.placement.digest)

    def require_open(self) -> None:
        if self.closed:
            raise Closed("the store has been closed")

    def require_writable(self) -> None:
        self.require_open()
        if not self.writable:
            raise StoreReadOnly('the store is open for reading only; connect with mode="a" to write')

    def _slot_of(self) -> dict[str, int]:
        return {slot.uuid: at for at, slot in enumerate(self.slots)}

    def slot(self, uuid: str) -> int:
        """Return the slot of a drive of the store. Raises InvalidRequest."""
        for at in self.placement.slots:
            if self.slots[at].uuid == uuid:
                return at
        raise InvalidRequest(f"drive {uuid} is not one of this store")

    def rows(self) -> list[Slot]:
        """Return the drives' slots in the order of the store record."""
        return [self.slots[at] for at in self.placement.slots]

    def in_record(self) -> list[Drive | None]:
        return [self.slots[at].drive for at in self.placement.slots]

    def live(self) -> list[Drive]:
        return [drive for drive in self.in_record() if drive is not None]

    def all_live(self) -> bool:
        return all(drive is not None for drive in self.in_record())

    def at(self, slot: int) -> Drive:
        """Return an open drive. Raises DriveFailed if it is missing, disabled, or no longer in the store; Closed."""
        if self.closed:
            self.require_open()
        found = self.slots[slot]
        drive = found.drive
        if drive is None:
            raise DriveFailed(f"{found.problem}")
        return drive

    # -- changing

    def follow(self, record: StoreRecord, also: Sequence[Drive] = ()) -> list[Drive]:
        """Place names by this store record from now on. Returns the drives that are no longer in the store.

        `also` contains the open ones of the drives that are new.
        """
        known = self._slot_of()
        new = {drive.identity.drive_uuid: drive for drive in also}
        for uuid in record.drives:
            if uuid not in known:
                drive = new.get(uuid)
                problem = f"drive {uuid} was added to the store, and is not open here" if drive is None else None
                self.slots.append(Slot(uuid, drive, problem, drive.root if drive is not None else None))
        gone: list[Drive] = []
        self.placement = DrivePlacement(record, self._slot_of())
        self._share_locations()
        self.changes += 1
        for slot in self.slots:
            if slot.uuid not in record.drives and slot.drive is not None:
                gone.append(slot.drive)
                slot.problem = f"drive {slot.uuid} has left the store"
                slot.drive = None
        return gone

    def put_in(self, slot: int, drive: Drive) -> None:
        found = self.slots[slot]
        found.root, found.disabled = drive.root, False
        found.drive = drive
        found.problem = None
        self._share_locations()
        self.changes += 1

    def take_out(self, slot: int, problem: str, *, disabled: bool = True) -> Drive | None:
        """Take a drive out of use: its names raise DriveFailed from now on. Returns the drive, still open."""
        found = self.slots[slot]
        drive = found.drive
        found.problem, found.disabled = problem, disabled
        found.drive = None
        self.changes += 1
        return drive

    # -- finding

    def refresh(self) -> None:
        """Refresh the placement in a reader: a missing object may be on a drive that the writer has added since. Does
        nothing in the writer."""
        if not self.writable and not self.closed:
            self._refresh()

    def still(self, placement: DrivePlacement) -> bool:
        """Whether the placement is still this one after a refresh. If not, a failed look-up has to be repeated."""
        self.refresh()
        return self.placement is placement

    def fill_locations(self) -> None:
        """Start to fill the table of locations of each drive; see entry_cache.py."""
        placement = self.placement
        for slot in placement.slots:
            if (drive := self.slots[slot].drive) is not None:
                drive.fill.start(partial(placement.keeps, slot))

    def cached(self, bucket_uuid: bytes, name: str, *, coded: bool = False) -> tuple[Drive, CatalogEntry] | None:
        """Return the cached entry of an object that has a file, or is coded; None if the catalog has to be read."""
        placement = self.placement
        drive = self.slots[placement.owner(bucket_uuid, name)].drive
        entry = drive.cached(bucket_uuid, name, coded=coded) if drive is not None and placement.ordered else None
        return None if drive is None or entry is None else (drive, entry)

    def look_again(self, bucket_uuid: bytes, name: str, cut: int | None = None) -> Located:
        """Read the entry from the catalogs after an object's file was missing; with a `cut`, the entry that a snapshot
        sees.

        Raises DriveFailed, StoreFormatError, Closed.
        """
        if cut is not None:
            return self.lookup_at(bucket_uuid, name, cut)
        return _without_tombstone(self.newest(bucket_uuid, name))

    def lookup(self, bucket_uuid: bytes, name: str) -> tuple[Drive, CatalogEntry | None]:
        """Look up an object; None also for a tombstone. Raises DriveFailed, StoreFormatError, Closed."""
        while True:
            placement = self.placement
            try:
                if not placement.moving or placement.ordered:
                    owner = self.at(placement.owner(bucket_uuid, name))
                    entry = owner.lookup(bucket_uuid, [name])[0]
                    if entry is not None:
                        return owner, entry
                if placement.moving:
                    found = self._search(placement, bucket_uuid, name)
                    owner, entry = self.at(found.slot), found.record
                    if entry is not None:
                        return owner, None if entry.is_tombstone else entry
            except LoaderError:
                if self.still(placement):
                    raise
                continue
            if self.still(placement):
                return owner, None

    def lookup_at(self, bucket_uuid: bytes, name: str, cut: int) -> Located:
        """Look up what a snapshot with this cut sees. Nothing moves while snapshots exist. Raises DriveFailed,
        StoreFormatError."""
        slot = self.placement.owner(bucket_uuid, name)
        return Located(slot, self.at(slot).lookup_at(bucket_uuid, [name], cut)[0])

    def newest(self, bucket_uuid: bytes, name: str) -> Located:
        """Return the newest entry of a name, including tombstones, from the catalogs. Raises as `lookup` does."""
        while True:
            placement = self.placement
            try:
                found = self._search(placement, bucket_uuid, name)
            except LoaderError:
                if self.still(placement):
                    raise
                continue
            if found.record is not None or self.still(placement):
                return found

    def newest_of(self, bucket_uuid: bytes, names: Sequence[str]) -> list[CatalogEntry | None]:
        """Return the newest entry of each name as `newest` does, with one read of each drive that owns some."""
        placement, found = self.placement, dict[int, CatalogEntry | None]()
        by_owner: dict[int, list[int]] = {}
        for at, name in enumerate(names) if not placement.moving else ():
            by_owner.setdefault(placement.owner(bucket_uuid, name), []).append(at)
        try:
            for owner, mine in by_owner.items():
                entries = self._current(owner).newest(bucket_uuid, [names[at] for at in mine])
                found.update(zip(mine, entries, strict=True))
        except LoaderError:
            if self.still(placement):
                raise
        if len(found) < len(names) or not self.still(placement):  # entries may have moved meanwhile
            return [self.newest(bucket_uuid, name).record for name in names]
        return [found[at] for at in range(len(names))]

    def lookup_moving(
        self, placement: DrivePlacement, bucket_uuid: bytes, names: Sequence[str]
    ) -> list[Located | LoaderError | UnicodeEncodeError]:
        """Look up many objects while entries may be on several drives; None also for tombstones."""
        found: list[Located | LoaderError | UnicodeEncodeError | None] = [None] * len(names)
        by_owner: dict[int, list[int]] = {}
        for at, name in enumerate(names):
            try:
                by_owner.setdefault(placement.owner(bucket_uuid, name), []).append(at)
            except UnicodeEncodeError as error:
                found[at] = error
        for owner, mine in by_owner.items() if placement.ordered else ():
            try:
                records = self.at(owner).lookup(bucket_uuid, [names[at] for at in mine])
            except LoaderError:
                continue  # raised below for each name, unless it has moved
            for at, entry in zip(mine, records, strict=True):
                if entry is not None:
                    found[at] = Located(owner, entry)
        return [self._object(bucket_uuid, names[at]) if one is None else one for at, one in enumerate(found)]

    def _object(self, bucket_uuid: bytes, name: str) -> Located | LoaderError:
        try:
            return _without_tombstone(self.newest(bucket_uuid, name))
        except LoaderError as error:
            return error

    def _search(self, placement: DrivePlacement, bucket_uuid: bytes, name: str) -> Located:
        """Read the entry from the drives that may have it. Entries move only to the owner meanwhile, so the owner is
        read last, or once more at the end."""
        slots, ordered = placement.entry_slots(bucket_uuid, name)
        if ordered:
            for slot in (*slots, slots[0]) if len(slots) > 1 else slots:
                entry = self._entry(slot, bucket_uuid, name)
                if entry is not None:
                    return Located(slot, entry)
            return Located(slots[0], None)
        best = Located(slots[0], None)
        for slot in reversed(slots):
            entry = self._entry(slot, bucket_uuid, name)
            if entry is not None and (best.record is None or entry.version >= best.record.version):
                best = Located(slot, entry)
        return best

    def _entry(self, slot: int, bucket_uuid: bytes, name: str) -> CatalogEntry | None:
        return self._current(slot).newest(bucket_uuid, [name])[0]

    def _current(self, slot: int) -> Drive:
        """Return a drive, which knows by now what its writer has committed. Raises DriveFailed, Closed."""
        drive = self.at(slot)
        if not drive.writable:
            drive.catch_up()
        return drive


def _without_tombstone(found: Located) -> Located:
    return found._replace(record=None) if found.record is not None and found.record.is_tombstone else found
