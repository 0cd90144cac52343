"""Preconditions of writes, checked under the lock of the commit: of several writers with the same condition one wins.

A writer that has not received the answer to a write sends it again. The retry must neither conflict with the first try
nor take effect twice. A write therefore carries an id, the same for all its tries, which the store remembers; see
`write_memory`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ais_loader.errors import InvalidRequest, OutcomeUnknown, VersionConflict, WriteTooLate
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.store.format import WRITE_ID, CatalogEntry, Version
from storage_node.store.write_memory import ID_BYTES, UNCERTAINTY_NS, find, forgotten_ns


class Condition(NamedTuple):
    """Requirements on a name at the moment of its write. Fields that are not set always hold."""

    if_absent: bool = False
    """There is no object, or only a deleted one."""
    if_version: Version | None = None
    """The object has this version."""
    not_above: Version | None = None
    """Nothing newer than this exists, neither an object nor a tombstone."""
    write_id: bytes = b""
    """Id of the write, the same for all its tries and stored with the object; empty if it will be tried only once."""
    began_ns: int = 0
    """Start of the first try that may have taken effect, by this node's clock; 0 if this is the first try."""
    after_cuts: bool = False
    """Its version was issued after all snapshots of the bucket: it is a write, not a copy of an older object."""

    known: Version | None = None
    """For a write with a given version: the newest version that an earlier try is known to have committed. A higher one
    comes from a try that this one does not know, and stays."""
    mends: bool = False
    """It replaces the same version if the bytes of that are damaged."""

    @property
    def is_empty(self) -> bool:
        """Whether it always holds. It may have an id nevertheless."""
        return not self.if_absent and self.if_version is None and self.not_above is None

    def fault(self, label: str, before: CatalogEntry | None) -> VersionConflict | None:
        """Return an error if the condition does not hold for the current entry; None if it does.

        Args:
            label: name of the object, for people.
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
    """Raise VersionConflict if the condition does not hold."""
    if condition is not None and (fault := condition.fault(label, before)) is not None:
        raise fault


def too_late(condition: Condition | None, label: str, version: Version, cut: int) -> WriteTooLate | None:
    """Return an error if the version was issued before the bucket's last snapshot, with this cut, was made."""
    if condition is None or not condition.after_cuts or version.counter > cut:
        return None
    return WriteTooLate(f"{label}: version {version} comes after a snapshot that it should be in; write it again")


def done_before(condition: Condition | None, before: CatalogEntry | None) -> CatalogEntry | None:
    """Return what an earlier try of this write has committed, even if it was replaced since. `before` is the current
    entry."""
    if condition is None or not condition.write_id or before is None or not before.writes:
        return None
    if before.writes[WRITE_ID] == condition.write_id:
        return before
    past = find(before.writes, condition.write_id)
    return past.entry() if past is not None else None


def undecided(
    condition: Condition | None, label: str, before: CatalogEntry | None, forgotten: int = 0
) -> OutcomeUnknown | None:
    """Return an error if it is unknown whether an earlier try, of which nothing is found, took effect.

    `forgotten`: time up to which writes may have been forgotten that `before` does not contain.
    """
    if condition is None or not condition.began_ns:
        return None
    forgotten = max(forgotten, forgotten_ns(before.writes) if before is not None else 0)
    if not forgotten or forgotten + UNCERTAINTY_NS < condition.began_ns:
        return None
    return OutcomeUnknown(
        f"{label}: so much was written there since the first try that nobody knows whether that was done; read what "
        "there is, and decide anew"
    )


def _described(entry: CatalogEntry | None) -> str:
    if entry is None:
        return "no object"
    if entry.is_tombstone:
        return f"none: it was deleted, as version {entry.version}"
    return f"version {entry.version} of {entry.size_bytes:,} bytes with CRC-32C {entry.checksum:08x}"


def parse_condition(if_absent: bool, if_version: str, write_id: bytes = b"", repeat_ms: int = 0) -> Condition | None:
    """Parse a request's condition; None if there is no requirement and no id. Raises InvalidRequest.

    `repeat_ms`: time since the start of the first try that may have taken effect; 0: there was none.
    """
    if if_absent and if_version:
        raise InvalidRequest("if_absent and if_version exclude each other")
    if write_id and (len(write_id) != ID_BYTES or not any(write_id)):
        raise InvalidRequest(f"the id of a write has {ID_BYTES} bytes that are not all 0, not {len(write_id)}")
    if repeat_ms and not write_id:
        raise InvalidRequest("a write without an id cannot be known again")
    if not if_absent and not if_version and not write_id:
        return None
    began_ns = max(1, time.time_ns() - repeat_ms * 10**6) if repeat_ms else 0
    version = parse_version(if_version) if if_version else None
    return Condition(if_absent, version, write_id=write_id, began_ns=began_ns)


def condition_of(request: pb.PutHeader | pb.SmallObject) -> Condition | None:
    """Return the condition and id of a PUT. Raises InvalidRequest."""
    one = request.condition
    return parse_condition(one.if_absent, one.if_version, one.write_id, one.repeat_ms)


def parse_version(text: str) -> Version:
    """Parse a version in the format of `str`. Raises InvalidRequest."""
    parts = text.split(".")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts):
        version = Version(*map(int, parts))
        if version.epoch < 1 << 32 and version.counter < 1 << 64 and version.node < 1 << 32:
            return version
    raise InvalidRequest(f"if_version={text[:80]!r}: need a version as ObjectInfo shows it, such as 1.42.0")
