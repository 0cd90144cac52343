"""Preconditions of writes, checked under the lock of the commit: of several writers with the same condition one wins.

A writer that has lost the answer to a write sends it again, and must not lose against itself. So a write with a
condition carries an id, the same for all its tries. The store keeps it with the object, and for a while also in memory,
for writes that have been replaced since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from ais_loader.errors import InvalidRequest, VersionConflict, WriteTooLate
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.store.format import CatalogEntry, Version

WRITE_ID_BYTES = 16
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class Condition:
    """What has to be true of a name when it is written. Those that are not given hold of anything."""

    if_absent: bool = False
    """There is no object, or only a deleted one."""
    if_version: Version | None = None
    """The object has this version."""
    not_above: Version | None = None
    """Nothing newer than this is there, be it an object or a tombstone."""
    write_id: bytes = b""
    """The same for every try of one write, kept with the object; empty where there will be one try only."""
    after_cuts: bool = False
    """The version it brings was given after all snapshots of the bucket: it is a write, and no copy of what there was
    before."""

    @property
    def is_empty(self) -> bool:
        """Whether it holds of anything."""
        return not self.if_absent and self.if_version is None and self.not_above is None

    def fault(self, label: str, before: CatalogEntry | None) -> VersionConflict | None:
        """What is wrong with the entry that a name has; None when the condition holds.

        Args:
            label: what the object is called, for people.
        """
        there = before if before is not None and not before.is_tombstone else None
        if self.if_absent and there is not None:
            return VersionConflict(f"{label}: wanted none there, but there is {_described(before)}")
        if self.if_version is not None and (there is None or there.version != self.if_version):
            return VersionConflict(f"{label}: wanted version {self.if_version}, but there is {_described(before)}")
        if self.not_above is not None and before is not None and before.version > self.not_above:
            return VersionConflict(f"{label}: replaced meanwhile, there is {_described(before)}")
        return None


def require(condition: Condition | None, label: str, before: CatalogEntry | None) -> None:
    """Raises VersionConflict."""
    if condition is not None and (fault := condition.fault(label, before)) is not None:
        raise fault


def too_late(condition: Condition | None, label: str, version: Version, cut: int) -> WriteTooLate | None:
    """What is wrong with a version that was given before the bucket's last snapshot, with this cut, was made."""
    if condition is None or not condition.after_cuts or version.counter > cut:
        return None
    return WriteTooLate(f"{label}: version {version} comes after a snapshot that it should be in; write it again")


def _described(entry: CatalogEntry | None) -> str:
    if entry is None:
        return "no object"
    if entry.is_tombstone:
        return f"none: it was deleted, as version {entry.version}"
    return f"version {entry.version} of {entry.size_bytes:,} bytes with CRC-32C {entry.checksum:08x}"


def parse_condition(if_absent: bool, if_version: str, write_id: bytes = b"") -> Condition | None:
    """As it comes with a request; None when nothing is required. Raises InvalidRequest."""
    if if_absent and if_version:
        raise InvalidRequest("if_absent and if_version exclude each other")
    if write_id and len(write_id) != WRITE_ID_BYTES:
        raise InvalidRequest(f"the id of a write has {WRITE_ID_BYTES} bytes, not {len(write_id)}")
    if not if_absent and not if_version:
        return None
    return Condition(if_absent, parse_version(if_version) if if_version else None, write_id=write_id)


def condition_of(request: pb.PutHeader | pb.SmallObject) -> Condition | None:
    """What a PUT requires of what is there. Raises InvalidRequest."""
    condition = request.condition
    return parse_condition(condition.if_absent, condition.if_version, condition.write_id)


def parse_version(text: str) -> Version:
    """Of what `str` makes of a version. Raises InvalidRequest."""
    parts = text.split(".")
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidRequest(f"if_version={text[:80]!r}: need a version as ObjectInfo shows it, such as 1.42.0")
    return Version(*map(int, parts))


class EarlierCommits:
    """The last writes that came with an id, by that. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: OrderedDict[bytes, CatalogEntry] = OrderedDict()

    def add(self, writes: Iterable[tuple[bytes, CatalogEntry]]) -> None:
        """What was committed, each with its id, if it has one."""
        with self._lock:
            self._records.update((write_id, record) for write_id, record in writes if write_id)
            while len(self._records) > _REMEMBERED:
                self._records.popitem(last=False)

    def settled(
        self, condition: Condition | None, label: str, before: CatalogEntry | None
    ) -> CatalogEntry | VersionConflict | None:
        """What becomes of a write that is not to be committed: an earlier try of it was, or its condition fails."""
        fault = condition.fault(label, before) if condition is not None else None
        if condition is None or fault is None or condition.not_above is not None:
            return fault  # who says what must not be there any more has looked for earlier tries
        return self.find(condition.write_id, before) or fault

    def find(self, write_id: bytes, before: CatalogEntry | None) -> CatalogEntry | None:
        """What an earlier try of a write has stored; `before` is what there is of its name now."""
        if not write_id:
            return None
        if before is not None and before.write_id == write_id:
            return before
        with self._lock:
            return self._records.get(write_id)
