"""Preconditions of writes, checked under the lock of the commit: of several writers with the same condition one wins.

A writer that has not received the answer to a write sends it again. The retry must neither conflict with the first try
nor take effect twice. A write therefore carries an id, the same for all its tries, which the store remembers.

The memory of writes holds the id of an entry's own write and the outcomes of the writes that it superseded. It travels
with the entry, in the same commit and to other nodes, so every replica of a version knows which writes came before it.
It is bounded. `forgotten_ns` is the time of the newest write that was dropped. A missing id proves that its write did
not take effect only if that write began after this time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from ais_loader.errors import InvalidRequest, OutcomeUnknown, VersionConflict, WriteTooLate
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.store.format import WRITE_ID, CatalogEntry, Version

ID_BYTES = 16
NO_ID = bytes(ID_BYTES)
REMEMBERED = 32
"""Maximum number of superseded writes of one name."""
REMEMBERED_NS = 900 * 10**9
"""Age relative to an entry at which it drops a write; much longer than clients retry."""
UNCERTAINTY_NS = 61 * 10**9
"""Margin for "began after": a repeat, which tells how long ago its write began, may be delayed by a minute, and the
clocks of nodes differ."""

SUPERSEDED = b"superseded"
"""Replaces the path of an object that no longer exists."""

_UNKNOWN = 255
"""Replaces the number of nodes that took no part."""
_HEAD = struct.Struct("<B16s")
_NODE = struct.Struct("<I")
_FORGOTTEN = struct.Struct("<Q")
_PAST = struct.Struct("<16sIQIQIQB")
_MODIFIED, _MODIFIED_FROM_END = struct.Struct("<Q"), 9


class PastWrite(NamedTuple):
    """Outcome of a write that a newer one has replaced."""

    write_id: bytes
    epoch: int
    counter: int
    node: int
    size_bytes: int
    checksum: int
    modified_ns: int
    is_deletion: int

    def entry(self, raw_metadata: bytes = b"") -> CatalogEntry:
        """Return its former entry. File and metadata are gone; a client that retries knows the metadata."""
        path = b"" if self.is_deletion else SUPERSEDED
        return CatalogEntry(*self[1:7], 0, path, raw_metadata)


def memory_of(write_id: bytes, missing: Collection[int] | None = None) -> bytes:
    """Return the memory of an entry that superseded nothing.

    Args:
        missing: numbers of the owners that took no part in the write; None if unknown.
    """
    if missing is None or len(missing) >= _UNKNOWN:
        return _HEAD.pack(_UNKNOWN, write_id) if write_id else b""
    return _HEAD.pack(len(missing), write_id) + b"".join(map(_NODE.pack, sorted(missing)))


def _head_bytes(memory: bytes) -> int:
    return _HEAD.size + (_NODE.size * memory[0] if memory and memory[0] != _UNKNOWN else 0)


def checked(memory: bytes) -> bytes:
    """Check the memory of writes that another node sent. Raises InvalidRequest."""
    head = _head_bytes(memory)
    count, rest = divmod(len(memory) - head - _FORGOTTEN.size, _PAST.size)
    if len(memory) not in (0, head) and (rest or not 0 <= count <= REMEMBERED):
        raise InvalidRequest(f"a memory of writes of {len(memory):,} bytes")
    return memory


def id_of(memory: bytes) -> bytes:
    """Return the id of the entry's own write; empty if it had none."""
    write_id = memory[1 : _HEAD.size]
    return write_id if any(write_id) else b""


def took_part(memory: bytes, node: int) -> bool:
    """Whether the node with this number took part in the write, or was not an owner then."""
    if not memory or memory[0] == _UNKNOWN:
        return False
    return all(missing != node for (missing,) in _NODE.iter_unpack(memory[_HEAD.size : _head_bytes(memory)]))


def forgotten_ns(memory: bytes) -> int:
    """Return the time of the newest write that was dropped; 0 if none was."""
    head = _head_bytes(memory)
    return int(_FORGOTTEN.unpack_from(memory, head)[0]) if len(memory) > head else 0


def superseded(memory: bytes) -> list[PastWrite]:
    """Return superseded writes, newest first."""
    start = _head_bytes(memory) + _FORGOTTEN.size
    return [PastWrite._make(fields) for fields in _PAST.iter_unpack(memory[start:])] if len(memory) > start else []


def find(memory: bytes, write_id: bytes) -> PastWrite | None:
    """Return the outcome of a write that was superseded."""
    if not write_id or len(memory) <= _HEAD.size or memory.find(write_id, _HEAD.size) < 0:
        return None
    return next((past for past in superseded(memory) if past.write_id == write_id), None)


def after(before: Sequence[CatalogEntry], brought: bytes, modified_ns: int, *, forgotten_before_ns: int = 0) -> bytes:
    """Return the memory of an entry that replaces those in `before`, on one node or several, and brings some of its
    own.

    Args:
        forgotten_before_ns: time up to which writes of the name may have been forgotten otherwise.
    """
    if not forgotten_before_ns and all(not entry.writes for entry in before):
        return brought
    head = brought[: _head_bytes(brought)] or _HEAD.pack(_UNKNOWN, NO_ID)
    if len(before) > 1 and all(_agree(entry, before[0]) for entry in before[1:]):
        before = [max(before, key=attrgetter("modified_ns"))]  # replicas that agree, the usual case
    if len(before) == 1 and before[0].writes.find(head[1 : _HEAD.size]) < 0:
        prepended = _prepended(head, before[0], modified_ns, forgotten_before_ns)
        # A coordinator builds it from the same entry, unless replicas differ.
        if len(brought) <= len(head) or brought == prepended:
            return prepended
        if _differs_by_a_later_time(brought, prepended, len(head)):
            return brought
    write_id = head[1 : _HEAD.size]
    oldest_ns = modified_ns - REMEMBERED_NS
    found: dict[bytes, PastWrite] = {}
    forgotten = max([forgotten_before_ns, forgotten_ns(brought), *(forgotten_ns(entry.writes) for entry in before)])
    for past in _all_past(before, brought):
        known = found.get(past.write_id)
        if past.write_id != write_id and (known is None or _order(known) < _order(past)):
            found[past.write_id] = past
    newest_first = sorted(found.values(), key=lambda past: past[1:4], reverse=True)
    kept = [past for past in newest_first if past.modified_ns >= oldest_ns][:REMEMBERED]
    forgotten = max([forgotten, *(past.modified_ns for past in newest_first if past not in kept)])
    if not kept and not forgotten:
        return brought[: _head_bytes(brought)]
    return b"".join((head, _FORGOTTEN.pack(forgotten), *(_PAST.pack(*past) for past in kept)))


def _agree(one: CatalogEntry, other: CatalogEntry) -> bool:
    """Whether two replicas are of one write. Each owner dates a tombstone by its own clock."""
    return one == other or (one.is_tombstone and one._replace(modified_ns=other.modified_ns) == other)


def _order(past: PastWrite) -> tuple[int, int, int, int]:
    """Sort key of outcomes of one write; the last one is kept. It has the time, so all owners keep the same one."""
    return past.epoch, past.counter, past.node, past.modified_ns


def _differs_by_a_later_time(brought: bytes, own: bytes, head_bytes: int) -> bool:
    """Whether a coordinator's memory of writes equals this node's, except that its last write is later: a deletion to
    which another owner gave a later time."""
    at = head_bytes + _FORGOTTEN.size + _PAST.size - _MODIFIED_FROM_END
    end = at + _MODIFIED.size
    if len(brought) != len(own) or len(own) <= end or brought[:at] != own[:at] or brought[end:] != own[end:]:
        return False
    return bool(_MODIFIED.unpack_from(brought, at) >= _MODIFIED.unpack_from(own, at))


def _prepended(head: bytes, before: CatalogEntry, modified_ns: int, forgotten: int) -> bytes:
    """Return the memory after one entry, as `after` does. This is the usual case: remembered writes stay encoded."""
    writes = before.writes
    start = _head_bytes(writes)
    past = writes[start + _FORGOTTEN.size :]
    if len(writes) > start:
        forgotten = max(forgotten, _FORGOTTEN.unpack_from(writes, start)[0])
    if write_id := before.write_id:
        past = _PAST.pack(write_id, *before[:6], not before.path) + past
    while past:
        (last_ns,) = _MODIFIED.unpack_from(past, len(past) - _MODIFIED_FROM_END)
        if len(past) <= REMEMBERED * _PAST.size and last_ns >= modified_ns - REMEMBERED_NS:
            break
        forgotten = max(forgotten, last_ns)
        past = past[: -_PAST.size]
    return head + _FORGOTTEN.pack(forgotten) + past if past or forgotten else head


def _all_past(before: Iterable[CatalogEntry], brought: bytes) -> Iterable[PastWrite]:
    for entry in before:
        if entry.write_id:
            yield PastWrite(entry.write_id, *entry[:6], entry.is_tombstone)
        yield from superseded(entry.writes)
    yield from superseded(brought)


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
        existing = before if before is not None and not before.is_tombstone else None
        if self.if_absent and existing is not None:
            return VersionConflict(f"{label}: wanted none there, but there is {_described(before)}")
        if self.if_version is not None and (existing is None or existing.version != self.if_version):
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
    if text.startswith(ETAG_VERSION):
        raise InvalidRequest(
            f"if_version={text[:80]!r}: an ETag is the version of a cold object; this bucket has no remote storage"
        )
    parts = text.split(".")
    if len(parts) == 3 and all(part.isascii() and part.isdigit() and len(part) <= 20 for part in parts):
        version = Version(*map(int, parts))
        if version.epoch < 1 << 32 and version.counter < 1 << 64 and version.node < 1 << 32:
            return version
    raise InvalidRequest(f"if_version={text[:80]!r}: need a version as ObjectInfo shows it, such as 1.42.0")


def condition_of_deletion(request: pb.DeleteRequest) -> Condition | None:
    """Parse the condition of a deletion. Raises InvalidRequest."""
    return parse_condition(False, request.if_version, request.write_id, request.repeat_ms)
