"""Drive set of an open store: which drives are there, and where the entries of a name are.

A drive keeps its slot as long as the store is open, whatever comes or goes: what a batch has noted stays true.
Thread-safe. Readers of names never wait here: the placement is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ais_loader.errors import Closed, DriveFailed, InvalidRequest, LoaderError, StoreReadOnly
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.name_stripes import Stripes
from storage_node.store.format import CatalogEntry
from storage_node.store.pool.placement import DrivePlacement
from storage_node.store.pool.placement_lock import PlacementLock
from storage_node.store.store_record import StoreRecord


class Located(NamedTuple):
    slot: int
    """Where the entry is; the owner's, where there is none."""
    record: CatalogEntry | None


@dataclass(slots=True)
class Slot:
    """`drive` or `problem` is None."""

    uuid: str
    drive: Drive | None
    problem: str | None
    root: Path | None = None
    """Where the drive was seen last."""
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
        """`refresh` brings the placement up to date with what another process may have changed."""
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
        """Who changes objects holds it with others, who changes the placement holds it alone."""
        self.names = Stripes(512)
        """Of the names that are changed while entries may be on several drives; taken inside `placement_lock`."""
        self.changes = 0
        """Rises with every change of drives or placement."""
        self.placement = DrivePlacement(record, self._slot_of())

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
        """Of a drive of the store. Raises InvalidRequest."""
        for at in self.placement.slots:
            if self.slots[at].uuid == uuid:
                return at
        raise InvalidRequest(f"drive {uuid} is not one of this store")

    def rows(self) -> list[Slot]:
        """In the order of the record."""
        return [self.slots[at] for at in self.placement.slots]

    def in_record(self) -> list[Drive | None]:
        return [self.slots[at].drive for at in self.placement.slots]

    def live(self) -> list[Drive]:
        return [drive for drive in self.in_record() if drive is not None]

    def all_live(self) -> bool:
        return all(drive is not None for drive in self.in_record())

    def at(self, slot: int) -> Drive:
        """Raises DriveFailed for a drive that is missing, disabled, or not of the store any more, Closed."""
        if self.closed:
            self.require_open()
        found = self.slots[slot]
        drive = found.drive
        if drive is None:
            raise DriveFailed(f"{found.problem}")
        return drive

    # -- changing

    def follow(self, record: StoreRecord, also: Sequence[Drive] = ()) -> list[Drive]:
        """Place by this record from now on; returns the drives that are not of the store any more.

        Of the drives that are new, those that are open are in `also`.
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
        self.changes += 1

    def take_out(self, slot: int, problem: str, *, disabled: bool = True) -> Drive | None:
        """From now on its names answer DriveFailed; returns the drive, still open."""
        found = self.slots[slot]
        drive = found.drive
        found.problem, found.disabled = problem, disabled
        found.drive = None
        self.changes += 1
        return drive

    # -- finding

    def still(self, placement: DrivePlacement) -> bool:
        """Whether what was not found by this placement is not there: it is asked for once more by another one."""
        self._refresh()
        return self.placement is placement

    def owner(self, bucket_uuid: bytes, name: str) -> int:
        """The slot of the drive that owns the object; as long as none has come or gone, its place in the record."""
        return self.placement.owner(bucket_uuid, name)

    def cached(self, bucket_uuid: bytes, name: str) -> tuple[Drive, CatalogEntry] | None:
        """What is known of an object without asking a catalog; None means that it has to be looked up."""
        placement = self.placement
        drive = self.slots[placement.owner(bucket_uuid, name)].drive
        record = drive.cached(bucket_uuid, name) if drive is not None and placement.ordered else None
        return None if drive is None or record is None else (drive, record)

    def look_again(self, bucket_uuid: bytes, name: str, cut: int | None = None) -> Located:
        """Straight from the catalogs, after the file of an object was not there; with a `cut` as a snapshot sees it.

        Raises DriveFailed, StoreFormatError, Closed.
        """
        if cut is not None:
            return self.lookup_at(bucket_uuid, name, cut)
        return _without_tombstone(self.newest(bucket_uuid, name))

    def lookup(self, bucket_uuid: bytes, name: str) -> tuple[Drive, CatalogEntry | None]:
        """The object of a name, None for a tombstone too. Raises DriveFailed, StoreFormatError, Closed."""
        while True:
            placement = self.placement
            try:
                if not placement.moving or placement.ordered:
                    owner = self.at(placement.owner(bucket_uuid, name))
                    record = owner.lookup(bucket_uuid, [name])[0]
                    if record is not None:
                        return owner, record
                if placement.moving:
                    found = self._search(placement, bucket_uuid, name)
                    owner, record = self.at(found.slot), found.record
                    if record is not None:
                        return owner, None if record.is_tombstone else record
            except LoaderError:
                if self.still(placement):
                    raise
                continue
            if self.still(placement):
                return owner, None

    def lookup_at(self, bucket_uuid: bytes, name: str, cut: int) -> Located:
        """What a snapshot with this cut sees; nothing moves beside one. Raises DriveFailed, StoreFormatError."""
        slot = self.placement.owner(bucket_uuid, name)
        return Located(slot, self.at(slot).lookup_at(bucket_uuid, [name], cut)[0])

    def newest(self, bucket_uuid: bytes, name: str) -> Located:
        """The newest entry of a name, tombstones too, straight from the catalogs. Raises as `lookup` does."""
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

    def lookup_moving(
        self, placement: DrivePlacement, bucket_uuid: bytes, names: Sequence[str]
    ) -> list[Located | LoaderError | UnicodeEncodeError]:
        """Objects of many names while entries may be on several drives, None for a tombstone too."""
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
                continue  # each name meets it below, or is elsewhere by now
            for at, record in zip(mine, records, strict=True):
                if record is not None:
                    found[at] = Located(owner, record)
        return [self._object(bucket_uuid, names[at]) if one is None else one for at, one in enumerate(found)]

    def _object(self, bucket_uuid: bytes, name: str) -> Located | LoaderError:
        try:
            return _without_tombstone(self.newest(bucket_uuid, name))
        except LoaderError as error:
            return error

    def _search(self, placement: DrivePlacement, bucket_uuid: bytes, name: str) -> Located:
        """Objects are moved to the owner meanwhile, nowhere else: so it is asked last, or once more at the end."""
        slots, ordered = placement.entry_slots(bucket_uuid, name)
        if ordered:
            for slot in (*slots, slots[0]) if len(slots) > 1 else slots:
                record = self._entry(slot, bucket_uuid, name)
                if record is not None:
                    return Located(slot, record)
            return Located(slots[0], None)
        best = Located(slots[0], None)
        for slot in reversed(slots):
            record = self._entry(slot, bucket_uuid, name)
            if record is not None and (best.record is None or record.version >= best.record.version):
                best = Located(slot, record)
        return best

    def _entry(self, slot: int, bucket_uuid: bytes, name: str) -> CatalogEntry | None:
        drive = self.at(slot)
        if not drive.writable:
            drive.catch_up()
        return drive.newest(bucket_uuid, [name])[0]


def _without_tombstone(found: Located) -> Located:
    return found._replace(record=None) if found.record is not None and found.record.is_tombstone else found
