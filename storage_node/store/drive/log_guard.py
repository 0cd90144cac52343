"""Guard of a catalog's logs and manifest: detects damaged records before RocksDB reads them.

RocksDB (9.8.4) hangs on a record with a type of recycled logs if the log began with another type: it reads the same
record again and again, while it holds the GIL. One flipped bit in a type is enough. Catalogs here recycle no logs, so
such a record is damage. In other cases RocksDB stops at a damaged record and reports nothing, although acknowledged
records follow it.

Both kinds of file are sequences of records in blocks of 32 KiB (RocksDB's "Write Ahead Log File Format"). A record has
a masked CRC-32C of its type and payload, the payload's length, and the type. At the first bytes that are not a record,
one of three things is true:

- The file ends within a record. The writer was killed, or is writing it. RocksDB handles this case.
- No record follows. These bytes were left by a power failure and were never acknowledged. A writer truncates
  them; a reader, which changes nothing, leaves them to RocksDB if it can handle them.
- A record follows, or the bytes are a record except for their type. Commits would be lost silently, so the file
  is rejected.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ais_loader.errors import StoreFormatError
from ais_loader.wire.closing import closing_fd
from storage_node.store.checksum import crc32c

BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
"""Masked checksum, length of the payload, type."""
_TYPE_AT = 6
_TYPES = range(1, 5)
"""Full, first, middle and last: all types that these options write."""
_RECYCLED_TYPES = range(5, 12)
"""Types of recycled logs, and two between them that these options never write either."""
_TYPE = re.compile(rb"[\x01-\x04]")
_READ_BYTES = 128 * BLOCK_BYTES
log = logging.getLogger(__name__)

Bytes: TypeAlias = bytearray | memoryview


class _Damage(NamedTuple):
    path: Path
    at: int
    """Offset of the first byte that belongs to no record."""
    type: int
    is_followed: bool
    """Whether records follow, or these bytes are one except for their type."""
    is_harmless: bool
    """Whether RocksDB also treats it as the end of the file."""

    def refusal(self) -> StoreFormatError:
        what = f"{self.path}: damaged record at byte {self.at:,} (type {self.type})"
        rebuild = "`ais-loader doctor --rebuild` makes the catalog anew from the files"
        if self.is_followed:
            return StoreFormatError(f"{what}; what was committed with it or after it would be lost; {rebuild}")
        if self.path.suffix != ".log":
            return StoreFormatError(f"{what}; {rebuild}")
        return StoreFormatError(
            f"{what}, and no record follows, as after a power failure; opening the drive for writing "
            f"(`ais-loader serve`, `ais-loader doctor --repair`) cuts this off; or {rebuild}"
        )


class LogGuard:
    """Guard of one catalog. It remembers up to where each file is intact, so that the next check reads only what was
    added.

    Belongs to one thread at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sound: dict[tuple[str, int], int] = {}

    def require_sound(self, alone: Callable[[], AbstractContextManager[None]] | None = None) -> None:
        """Raise StoreFormatError for a log or manifest that RocksDB must not read. Raises OSError.

        `alone`: for a writer; keeps other writers away while the end of a log is truncated. Raises StoreLocked.
        """
        damages = self._damages()
        if alone is not None and any(_can_cut(damage) for damage in damages):
            with alone():
                damages = self._damages()  # another writer may have truncated it, and written more
                for damage in damages:
                    if not _can_cut(damage) and not damage.is_harmless:
                        raise damage.refusal()
                for damage in filter(_can_cut, damages):
                    _cut(damage)
            return
        for damage in damages:
            if damage.is_followed or not damage.is_harmless:
                raise damage.refusal()

    def _damages(self) -> list[_Damage]:
        """Return damage, newest log first."""
        found: list[_Damage] = []
        sound: dict[tuple[str, int], int] = {}
        is_newest = True
        for path in _files(self._folder):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:  # deleted by a writer
                continue
            with closing_fd(fd):
                status = os.fstat(fd)
                key = (path.name, status.st_ino)
                # What is appended later may be incomplete: nothing beyond this size is examined.
                at = _end_of_records(fd, self._sound.get(key, 0), status.st_size)
                damage = _damage(path, fd, at, status.st_size)
            sound[key] = at
            is_log = path.suffix == ".log"
            if damage is not None:
                found.append(damage if is_newest or not is_log else damage._replace(is_followed=True))
            if is_log and at:
                is_newest = False
        self._sound = sound
        return found


def _files(folder: Path) -> list[Path]:
    """Return all logs, the newest one first, and the current manifest. Raises OSError."""
    try:
        manifest = (folder / "CURRENT").read_bytes().decode("ascii", "replace").strip()
    except FileNotFoundError:
        return []  # a new catalog
    logs = [path for path in folder.glob("*.log") if path.stem.isdecimal()]
    found = sorted(logs, key=lambda path: int(path.stem), reverse=True)
    return [*found, folder / manifest] if re.fullmatch(r"MANIFEST-\d+", manifest) else found


def _end_of_records(fd: int, at: int, size_bytes: int) -> int:
    """Return the end of the records, the first of which begins at `at`. Raises OSError."""
    while at < size_bytes:
        base = at - at % BLOCK_BYTES
        data = memoryview(os.pread(fd, min(_READ_BYTES, size_bytes - base), base))
        at = base + _end_in(data, at - base)
        if at < base + _READ_BYTES:
            break
    return at


def _end_in(data: Bytes, at: int) -> int:
    """Return the end of the records in data that begins with a block."""
    unpack, checksum, header_bytes, size_bytes = _HEADER.unpack_from, crc32c, _HEADER.size, len(data)
    while True:
        room = BLOCK_BYTES - at % BLOCK_BYTES
        if room < header_bytes:  # no header fits: padding
            at += room
            continue
        if at + header_bytes > size_bytes:
            return at
        masked, length, kind = unpack(data, at)
        end = at + header_bytes + length
        if kind not in _TYPES or end > size_bytes or end - at > room:
            return at
        if _masked(checksum(data[at + _TYPE_AT : end])) != masked:
            return at
        at = end


def _masked(crc: int) -> int:
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def _damage(path: Path, fd: int, at: int, size_bytes: int) -> _Damage | None:
    """Examine the bytes after the last record. Returns None if the file just ends there. Raises OSError."""
    base = at - at % BLOCK_BYTES
    block = memoryview(os.pread(fd, max(0, min(BLOCK_BYTES, size_bytes - base)), base))
    rest, is_last = block[at - base :], base + BLOCK_BYTES >= size_bytes
    if not rest or (is_last and len(rest) < _HEADER.size):
        return None
    _, length, kind = _HEADER.unpack_from(rest)
    is_beyond = _HEADER.size + length > len(rest)
    is_followed = _type_of(rest) is not None or _has_record(rest[1:])
    for next_base in range(base + BLOCK_BYTES, size_bytes, BLOCK_BYTES):
        is_followed = is_followed or _has_record(os.pread(fd, min(BLOCK_BYTES, size_bytes - next_base), next_base))
    if is_last and is_beyond and kind in _TYPES and not is_followed:
        return None  # an incomplete record
    is_end = is_last and kind not in _RECYCLED_TYPES and (is_beyond or (kind, length) == (0, 0))
    return _Damage(path, at, kind, is_followed, is_harmless=is_end and not is_followed)


def _type_of(data: Bytes) -> int | None:
    """Return the type for which these bytes begin with a valid record; None if there is none."""
    masked, length, _ = _HEADER.unpack_from(data)
    if _HEADER.size + length > len(data):
        return None
    for kind in _TYPES:
        if _masked(crc32c(data[_HEADER.size : _HEADER.size + length], crc32c(bytes((kind,))))) == masked:
            return kind
    return None


def _has_record(data: bytes | memoryview) -> bool:
    """Whether there is a record anywhere in a part of a block."""
    view = memoryview(data)
    for found in _TYPE.finditer(view, _TYPE_AT):
        at = found.start() - _TYPE_AT
        masked, length, _ = _HEADER.unpack_from(view, at)
        end = at + _HEADER.size + length
        if end <= len(view) and _masked(crc32c(view[at + _TYPE_AT : end])) == masked:
            return True
    return False


def _can_cut(damage: _Damage) -> bool:
    """Whether damage may be truncated. A log may end anywhere, since its writer may; a manifest without its end may
    make RocksDB remove tables."""
    return damage.path.suffix == ".log" and not damage.is_followed


def _cut(damage: _Damage) -> None:
    size_bytes = damage.path.stat().st_size
    with closing_fd(os.open(damage.path, os.O_WRONLY | os.O_CLOEXEC)) as fd:
        os.ftruncate(fd, damage.at)
        os.fsync(fd)
    log.warning("%s: cut off its last %d bytes, which are no records", damage.path, size_bytes - damage.at)


def copy_for_salvage(folder: Path, target: Path) -> None:
    """Fill an empty folder with a catalog's files, from which RocksDB can read whatever is left. Raises OSError.

    Logs and the manifest are copied without their damaged records, so that RocksDB does not stop at them; other files
    are links.
    """
    copied = set()
    for path in _files(folder):
        data = bytearray(path.read_bytes())
        at = 0
        while (at := _end_in(data, at)) + _HEADER.size <= len(data):
            end = min(at + BLOCK_BYTES - at % BLOCK_BYTES, len(data))
            with memoryview(data)[at:end] as rest:
                kind = _type_of(rest)
            if kind is not None:
                data[at + _TYPE_AT] = kind
            else:
                data[at:end] = bytes(end - at)  # RocksDB continues with the next block
                at = end
        (target / path.name).write_bytes(data[:at])
        copied.add(path.name)
    for entry in os.scandir(folder):
        if entry.name not in copied and entry.name != "LOCK":
            (target / entry.name).symlink_to(os.path.abspath(entry.path))
