"""Zip central directory: its entry for each member, checked against the member's local header.

The directory is read from the end by positioned reads, in pieces. zip64, a program in front (self-extracting) and a
comment at the end are supported. Members may not overlap each other or the directory: small zips claim huge contents in
that way.

Source: APPNOTE.TXT 6.3.10, sections 4.3 to 4.6 and appendix D.
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge, ArchiveUnsupported
from storage_node.store.archives.member import ENCRYPTED, PATCHED, STORED, ArchiveLimits
from storage_node.store.archives.source import CHUNK_BYTES, ByteSource, read_exactly

_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_COMMENT_BYTES = 65535
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_ENCRYPTED, _DESCRIPTOR, _PATCH, _STRONG, _UTF8 = 0x1, 0x8, 0x20, 0x40, 0x800
_EXTRA_ZIP64, _EXTRA_UNICODE_PATH = 0x0001, 0x7075
_UNIX, _MACOS = 3, 19
_SIGNATURE = b"PK\5\5"  # a digital one, behind the entries


class ZipEntry(NamedTuple):
    name: bytes
    """UTF-8, converted from the encoding in the zip if necessary."""
    is_file: bool
    method: int
    crc32: int
    packed_bytes: int
    size_bytes: int
    header_at: int
    at: int
    """Offset of its entry in the directory, for messages."""
    raw_name: bytes
    flags: int


class Directory(NamedTuple):
    at: int
    size_bytes: int
    entries: int
    shift: int
    """Number of bytes before the zip that its own offsets do not count."""


def find_directory(source: ByteSource, limits: ArchiveLimits) -> Directory:
    size = source.size_bytes
    tail_at = max(0, size - _END.size - _MAX_COMMENT_BYTES)
    tail = read_exactly(source, size - tail_at, tail_at)
    at = len(tail)
    while (at := tail.rfind(b"PK\5\6", 0, at + 3 if at < len(tail) else at)) >= 0:
        if len(tail) - at >= _END.size and len(tail) - at - _END.size >= _END.unpack_from(tail, at)[7]:
            break
    if at < 0:
        raise ArchiveDamaged(f"byte {size}: the zip ends without a central directory; it is truncated, or no zip")
    end_at = tail_at + at
    _, disk, first_disk, _, entries, length, offset, _ = _END.unpack_from(tail, at)
    behind = end_at
    if end_at >= _LOCATOR.size and (_FULL_16 in (disk, first_disk, entries) or _FULL_32 in (length, offset)):
        signature, disk64, end64_at, _ = _LOCATOR.unpack(read_exactly(source, _LOCATOR.size, end_at - _LOCATOR.size))
        if signature == b"PK\6\7":
            # It is where the locator says or, with a program in front, right before the locator.
            for behind in (end64_at, end_at - _LOCATOR.size - _END64.size):
                record = source.pread(_END64.size, behind) if behind >= 0 else b""
                if len(record) == _END64.size and record[:4] == b"PK\6\6":
                    break
            else:
                raise ArchiveDamaged(f"byte {end_at - _LOCATOR.size}: no zip64 directory is where it should be")
            *_, disk, first_disk, _, entries, length, offset = _END64.unpack(record)
            disk = max(disk, disk64)
    if disk or first_disk:
        raise ArchiveUnsupported(f"byte {end_at}: part of a multi-volume zip; join the volumes first")
    shift = behind - length - offset
    if shift < 0 or length < entries * _ENTRY.size:
        raise ArchiveDamaged(
            f"byte {end_at}: the zip announces {entries} entries in a directory of {length} bytes from byte {offset}"
        )
    if entries > limits.members:
        raise ArchiveTooLarge(f"a zip of {entries} entries; at most {limits.members} are served")
    if length > limits.directory_bytes:
        raise ArchiveTooLarge(f"a zip directory of {length} bytes; at most {limits.directory_bytes} are read")
    return Directory(offset + shift, length, entries, shift)


def read_entries(source: ByteSource, directory: Directory) -> Iterator[ZipEntry]:
    """Iterate over the entries in the order of the directory, with names and extra fields parsed. Local headers are not
    read."""
    window, window_at = b"", directory.at
    at, end = directory.at, directory.at + directory.size_bytes
    found = 0
    while at < end:
        if at - window_at + _ENTRY.size + 3 * _FULL_16 > len(window) and window_at + len(window) < end:
            window, window_at = read_exactly(source, min(CHUNK_BYTES, end - at), at), at
        here = at - window_at
        if window[here : here + 4] == _SIGNATURE:
            break
        if here + _ENTRY.size > len(window):
            raise ArchiveDamaged(f"byte {at}: the zip directory ends after {found} of {directory.entries} entries")
        (
            signature,
            made_by,
            _,
            flags,
            method,
            _,
            _,
            crc32,
            packed,
            size,
            name_bytes,
            extra_bytes,
            comment_bytes,
            disk,
            _,
            attributes,
            header_at,
        ) = _ENTRY.unpack_from(window, here)
        name_at = here + _ENTRY.size
        extra_at = name_at + name_bytes
        here = extra_at + extra_bytes + comment_bytes
        if signature != b"PK\1\2" or here > len(window):
            raise ArchiveDamaged(f"byte {at}: entry {found} of the zip directory is none")
        raw_name = window[name_at:extra_at]
        extra = _extra_fields(window[extra_at : extra_at + extra_bytes], at)
        longs = extra.get(_EXTRA_ZIP64, b"")
        size, longs = _long(size, longs, at)
        packed, longs = _long(packed, longs, at)
        header_at, _ = _long(header_at, longs, at)
        if disk not in (0, _FULL_16):
            raise ArchiveUnsupported(f"byte {at}: part of a multi-volume zip; join the volumes first")
        mode = attributes >> 16 if made_by >> 8 in (_UNIX, _MACOS) else 0
        is_file = not raw_name.endswith(b"/") and (stat.S_IFMT(mode) in (0, stat.S_IFREG))
        name = _name(raw_name, flags, extra)
        yield ZipEntry(name, is_file, method, crc32, packed, size, header_at + directory.shift, at, raw_name, flags)
        found, at = found + 1, window_at + here
    # The size counts: writers without zip64 store the number modulo 65,536.
    if (found - directory.entries) & _FULL_16:
        raise ArchiveDamaged(f"byte {at}: the zip announces {directory.entries} entries, its directory has {found}")


class LocalHeader(NamedTuple):
    """Header of a member right before its packed bytes."""

    raw_name: bytes
    name: bytes
    """UTF-8, converted from the encoding in the zip if necessary."""
    method: int
    crc32: int
    packed_bytes: int
    size_bytes: int
    is_encrypted: bool
    has_sizes: bool
    """Whether `crc32`, `packed_bytes` and `size_bytes` are known here, and not only behind the packed bytes."""
    data_at: int
    """Offset of the packed bytes."""


def read_local(source: ByteSource, at: int, where: str) -> LocalHeader:
    """Read the local header at byte `at`. `where` begins the messages. Raises ArchiveDamaged."""
    name_bytes: int
    extra_bytes: int
    signature, _, flags, method, _, _, crc32, packed, size, name_bytes, extra_bytes = _LOCAL.unpack(
        read_exactly(source, _LOCAL.size, at)
    )
    if signature != b"PK\3\4":
        raise ArchiveDamaged(f"{where} has no header here, but {signature!r}")
    name_at = at + _LOCAL.size
    raw_name = read_exactly(source, name_bytes, name_at)
    extra = _extra_fields(read_exactly(source, extra_bytes, name_at + name_bytes), at)
    has_sizes = not flags & _DESCRIPTOR
    if has_sizes:
        longs = extra.get(_EXTRA_ZIP64, b"")
        size, longs = _long(size, longs, at)
        packed, _ = _long(packed, longs, at)
    encrypted = bool(flags & (_ENCRYPTED | _STRONG))
    data_at = name_at + name_bytes + extra_bytes
    return LocalHeader(
        raw_name, _name(raw_name, flags, extra), method, crc32, packed, size, encrypted, has_sizes, data_at
    )


def method_of(entry: ZipEntry, directory: Directory) -> int:
    """Return the method to note in the index, which may be a reason why the member cannot be read. Raises
    ArchiveDamaged if what the directory says of the member cannot be true."""
    if entry.header_at + _LOCAL.size > directory.at:
        raise ArchiveDamaged(f"{_where(entry)} has no header before the zip directory")
    if entry.flags & (_ENCRYPTED | _STRONG):
        return ENCRYPTED
    if entry.flags & _PATCH:
        return PATCHED
    return min(entry.method, PATCHED)


def data_offset(source: ByteSource, entry: ZipEntry, directory: Directory, method: int) -> int:
    """Return the offset of the member's packed bytes. Raises ArchiveDamaged if its local header contradicts the
    directory."""
    where = _where(entry)
    local = read_local(source, entry.header_at, where)
    if local.data_at + entry.packed_bytes > directory.at:
        raise ArchiveDamaged(f"{where} would end after byte {directory.at}, where the zip directory begins")
    if local.method != entry.method or local.is_encrypted != bool(entry.flags & (_ENCRYPTED | _STRONG)):
        raise ArchiveDamaged(f"{where}: its header and the zip directory say different methods")
    if local.raw_name != entry.raw_name:
        raise ArchiveDamaged(f"{where} has another name in its own header")
    if local.has_sizes:
        found = local.crc32, local.packed_bytes, local.size_bytes
        if found != (entry.crc32, entry.packed_bytes, entry.size_bytes):
            raise ArchiveDamaged(f"{where}: its header and the zip directory say different sizes or checksums")
    if method == STORED and entry.packed_bytes != entry.size_bytes:
        raise ArchiveDamaged(f"{where} is stored, but takes {entry.packed_bytes} bytes for {entry.size_bytes}")
    return local.data_at


def _where(entry: ZipEntry) -> str:
    return f"byte {entry.header_at}: {entry.raw_name[:200]!r}"


def _extra_fields(extra: bytes, at: int) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    position = 0
    while position + 4 <= len(extra):  # some writers pad with a few odd bytes
        tag, length = struct.unpack_from("<HH", extra, position)
        position += 4
        if position + length > len(extra):
            if tag == _EXTRA_ZIP64:
                raise ArchiveDamaged(f"byte {at}: a zip64 field of {length} bytes does not fit into its entry")
            break
        fields.setdefault(tag, extra[position : position + length])
        position += length
    return fields


def _long(short: int, longs: bytes, at: int) -> tuple[int, bytes]:
    """Return the number, taken from the zip64 field if the 32-bit field is full, and the rest of the zip64 field."""
    if short != _FULL_32:
        return short, longs
    if len(longs) < 8:
        raise ArchiveDamaged(f"byte {at}: a number of the zip entry is in a zip64 field that is not there")
    return int.from_bytes(longs[:8], "little"), longs[8:]


def _name(raw: bytes, flags: int, extra: dict[int, bytes]) -> bytes:
    if flags & _UTF8:
        return raw
    unicode_path = extra.get(_EXTRA_UNICODE_PATH, b"")
    if unicode_path[:1] == b"\1" and unicode_path[1:5] == zlib.crc32(raw).to_bytes(4, "little"):
        return unicode_path[5:]
    return raw.decode("cp437").encode()
