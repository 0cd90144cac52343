"""Drive placement: maps a name to the drive that owns it, and to earlier owners, which may have entries until all have
moved.

Every change of a name is made on its owner and leaves nothing newer elsewhere. Among the successive owners of a name, a
later one therefore has the newer entry, unless a drive owned the name twice: then versions have to be compared.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple

from ais_loader.errors import Closed
from ais_loader.wire.placement import Candidate, ranked
from storage_node.store.store_record import StoreRecord


class EntrySlots(NamedTuple):
    slots: tuple[int, ...]
    """Different drives, the owner first."""
    ordered: bool
    """Whether the first of them that has an entry has the newest one."""


class _Era(NamedTuple):
    slots: tuple[int, ...]
    candidates: tuple[Candidate, ...]

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
        self.ordered = all(_changes(uuid, sets) <= 1 for uuid in record.drives)
        """Whether an entry on the owner is always the newest."""
        self.owner = self._eras[0].owner
        """Function from (bucket uuid, name) to the slot of the drive that owns it."""
        self.only = self._eras[0].slots[0] if len(self._eras[0].slots) == 1 else None
        """Slot of the drive that owns every name, if there is one."""

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
    there = [uuid in drives for drives in sets]
    return sum(there[at] != there[at - 1] for at in range(1, len(there)))


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
