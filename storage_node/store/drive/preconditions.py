"""Preconditions of writes, checked under the lock of the commit: of several writers with the same condition one wins.

A writer that has lost the answer to a write sends it again, and must neither lose against itself nor write twice. So a
write carries an id, the same for all its tries, which the store remembers; see `write_memory`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ais_loader.errors import InvalidRequest, OutcomeUnknown, VersionConflict, WriteTooLate
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.store.format import WRITE_ID, CatalogEntry, Version
from storage_node.store.write_memory import ID_BYTES, UNCERTAINTY_NS, find, forgotten_ns


class Condition(NamedTuple):
    """What has to be true of a name when it is written. Those that are not given hold of anything."""

    if_absent: bool = False
    """There is no object, or only a deleted one."""
    if_version: Version | None = None
    """The object has this version."""
    not_above: Version | None = None
    """Nothing newer than this is there, be it an object or a tombstone."""
    write_id: bytes = b""
    """The same for every try of one write, remembered with the object; empty where there will be one try only."""
    began_ns: int = 0
    """Of a write that an earlier try may have done already: when that began, by this node's clock; 0: it is the
    first."""
    after_cuts: bool = False
    """The version it brings was given after all snapshots of the bucket: it is a write, and no copy of what there was
    before."""

    known: Version | None = None
    """Of a write whose version is given: the newest that an earlier try of it is known to have made. One that is above
    is of a try that this one has not heard of, and stays."""
    mends: bool = False
    """The same version may be there with bytes that are damaged: these take their place."""

    @property
    def is_empty(self) -> bool:
        """Whether it holds of anything; it may have an id all the same."""
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


def done_before(condition: Condition | None, before: CatalogEntry | None) -> CatalogEntry | None:
    """What an earlier try of this write has made, be it replaced since; `before` is what there is of the name."""
    if condition is None or not condition.write_id or before is None or not before.writes:
        return None
    if before.writes[WRITE_ID] == condition.write_id:
        return before
    past = find(before.writes, condition.write_id)
    return past.entry() if past is not None else None


def undecided(
    condition: Condition | None, label: str, before: CatalogEntry | None, forgotten: int = 0
) -> OutcomeUnknown | None:
    """Why nobody knows any more whether an earlier try of a write, of which nothing is found, was done.

    `forgotten`: up to when writes may have been forgotten that `before` would not tell of.
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
    """As it comes with a request; None when nothing is required, and it has no id. Raises InvalidRequest.

    `repeat_ms`: how long ago the first try began that may have been done; 0: there was none.
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
    """What a PUT requires of what is there, and its id. Raises InvalidRequest."""
    one = request.condition
    return parse_condition(one.if_absent, one.if_version, one.write_id, one.repeat_ms)


def parse_version(text: str) -> Version:
    """Of what `str` makes of a version. Raises InvalidRequest."""
    parts = text.split(".")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts):
        version = Version(*map(int, parts))
        if version.epoch < 1 << 32 and version.counter < 1 << 64 and version.node < 1 << 32:
            return version
    raise InvalidRequest(f"if_version={text[:80]!r}: need a version as ObjectInfo shows it, such as 1.42.0")
