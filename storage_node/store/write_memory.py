"""Memory of writes: the id of the write that an entry came with, and the outcomes of those that it superseded. Pure.

A client that has lost the answer to a write sends it again, under the same id. The memory travels with the entry, in
the same commit and to other nodes, so whoever has a version knows which writes came before it. It is bounded: what was
dropped is bounded by a time (`forgotten_ns`), and an id that is not found proves that its write was not done only if it
began after that.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from ais_loader.errors import InvalidRequest
from storage_node.store.format import CatalogEntry

ID_BYTES = 16
NO_ID = bytes(ID_BYTES)
REMEMBERED = 32
"""Superseded writes of one name."""
REMEMBERED_NS = 900 * 10**9
"""So much older than an entry is what it does not remember any more; much longer than clients go on trying."""
UNCERTAINTY_NS = 61 * 10**9
"""A write began before another one was committed for certain only if it was so much earlier: the repeat that says how
long ago it began may be a minute on its way, and the clocks of nodes differ."""

SUPERSEDED = b"superseded"
"""In place of the path of an object that is no more."""

_UNKNOWN = 255
"""In place of how many nodes took no part."""
_HEAD = struct.Struct("<B16s")
_NODE = struct.Struct("<I")
_FORGOTTEN = struct.Struct("<Q")
_PAST = struct.Struct("<16sIQIQIQB")
_MODIFIED, _MODIFIED_FROM_END = struct.Struct("<Q"), 9


class PastWrite(NamedTuple):
    """The outcome of a write that a newer one has replaced."""

    write_id: bytes
    epoch: int
    counter: int
    node: int
    size_bytes: int
    checksum: int
    modified_ns: int
    is_deletion: int

    def entry(self, raw_metadata: bytes = b"") -> CatalogEntry:
        """As it was; its file is gone, and so is its metadata, which whoever tries again knows."""
        path = b"" if self.is_deletion else SUPERSEDED
        return CatalogEntry(*self[1:7], 0, path, raw_metadata)


def memory_of(write_id: bytes, missing: Collection[int] | None = None) -> bytes:
    """Of an entry that superseded nothing.

    Args:
        missing: the numbers of the owners that took no part in the write; None: nobody knows.
    """
    if missing is None or len(missing) >= _UNKNOWN:
        return _HEAD.pack(_UNKNOWN, write_id) if write_id else b""
    return _HEAD.pack(len(missing), write_id) + b"".join(map(_NODE.pack, sorted(missing)))


def _head_bytes(memory: bytes) -> int:
    return _HEAD.size + (_NODE.size * memory[0] if memory and memory[0] != _UNKNOWN else 0)


def checked(memory: bytes) -> bytes:
    """As it comes from another node. Raises InvalidRequest."""
    head = _head_bytes(memory)
    count, rest = divmod(len(memory) - head - _FORGOTTEN.size, _PAST.size)
    if len(memory) not in (0, head) and (rest or not 0 <= count <= REMEMBERED):
        raise InvalidRequest(f"a memory of writes of {len(memory):,} bytes")
    return memory


def id_of(memory: bytes) -> bytes:
    """Of the entry's own write; empty where it had none."""
    write_id = memory[1 : _HEAD.size]
    return write_id if any(write_id) else b""


def took_part(memory: bytes, node: int) -> bool:
    """Whether the write asked the node of this number what it had, or it was no owner then."""
    if not memory or memory[0] == _UNKNOWN:
        return False
    return all(missing != node for (missing,) in _NODE.iter_unpack(memory[_HEAD.size : _head_bytes(memory)]))


def forgotten_ns(memory: bytes) -> int:
    """When the newest write was committed that has been dropped; 0: none has."""
    head = _head_bytes(memory)
    return int(_FORGOTTEN.unpack_from(memory, head)[0]) if len(memory) > head else 0


def superseded(memory: bytes) -> list[PastWrite]:
    """Newest first."""
    start = _head_bytes(memory) + _FORGOTTEN.size
    return [PastWrite._make(fields) for fields in _PAST.iter_unpack(memory[start:])] if len(memory) > start else []


def find(memory: bytes, write_id: bytes) -> PastWrite | None:
    """The outcome of a write that was superseded."""
    if not write_id or len(memory) <= _HEAD.size or memory.find(write_id, _HEAD.size) < 0:
        return None
    return next((past for past in superseded(memory) if past.write_id == write_id), None)


def after(before: Sequence[CatalogEntry], brought: bytes, modified_ns: int, *, forgotten_before_ns: int = 0) -> bytes:
    """The memory of an entry that replaces those `before`, on one node or several, and brings some of its own.

    Args:
        forgotten_before_ns: up to when writes of the name may have been forgotten otherwise.
    """
    if not forgotten_before_ns and all(not entry.writes for entry in before):
        return brought
    head = brought[: _head_bytes(brought)] or _HEAD.pack(_UNKNOWN, NO_ID)
    if len(before) > 1 and all(_agree(entry, before[0]) for entry in before[1:]):
        before = [max(before, key=_modified_ns)]  # copies that agree, as they do
    if len(before) == 1 and before[0].writes.find(head[1 : _HEAD.size]) < 0:
        prepended = _prepended(head, before[0], modified_ns, forgotten_before_ns)
        # What a coordinator brings was made of the same entry, unless copies differ.
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
    """Whether two copies are of one write. Each owner dates a tombstone by its own clock."""
    return one == other or (one.is_tombstone and one._replace(modified_ns=other.modified_ns) == other)


def _modified_ns(entry: CatalogEntry) -> int:
    return entry.modified_ns


def _order(past: PastWrite) -> tuple[int, int, int, int]:
    """Of outcomes of one write, the one to be kept is last; by its time, so that all owners keep the same."""
    return past.epoch, past.counter, past.node, past.modified_ns


def _differs_by_a_later_time(brought: bytes, own: bytes, head_bytes: int) -> bool:
    """Whether what a coordinator brings is what this node makes of its own copy, but for the time of the last write: a
    deletion, which another owner has dated later."""
    at = head_bytes + _FORGOTTEN.size + _PAST.size - _MODIFIED_FROM_END
    end = at + _MODIFIED.size
    if len(brought) != len(own) or len(own) <= end or brought[:at] != own[:at] or brought[end:] != own[end:]:
        return False
    return bool(_MODIFIED.unpack_from(brought, at) >= _MODIFIED.unpack_from(own, at))


def _prepended(head: bytes, before: CatalogEntry, modified_ns: int, forgotten: int) -> bytes:
    """As `after` of one entry, which is the usual case, and without a look at all that it remembers."""
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
