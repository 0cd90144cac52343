"""Tar indexer: one pass over the incoming chunks finds the offset and checksum of each member.

The parser holds at most one header (512 bytes, or an extended header up to its limit). Content is checksummed in place
and never copied. A caller that has only the headers passes over content with `skip`; its members have no checksums. A
tar ends at its first block of zeros, or where the stream ends between two members. In two tars joined by `cat` the
first one counts, as in `tarfile`; the files of the others are counted as hidden, unless their bytes were skipped.

Members are regular files (types `0`, NUL, `7`). A hard link is a member with the bytes of the file that it names, if
that exact name belongs to an earlier member; otherwise it is not a member. Directories, symbolic links, devices and
entries of unknown types are not members; the content of unknown types is skipped. Sparse files, and the rest of a file
of another volume, are members that cannot be read; their size is the number of bytes that they occupy.

Threads: an indexer belongs to one thread. After an error it cannot be used any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ais_loader.errors import ArchiveDamaged, ArchiveError, ArchiveTooLarge
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import CONTINUED, DEFAULT_LIMITS, SPARSE, ArchiveLimits
from storage_node.store.archives.table import MemberTable
from storage_node.store.archives.tar_header import (
    BLOCK_BYTES,
    CONTINUED_FILE,
    GNU_LONG_LINK,
    GNU_LONG_NAME,
    HARD_LINK,
    MAX_SIZE_BYTES,
    NO_CONTENT,
    PAX_GLOBAL,
    PAX_LOCAL,
    REGULAR,
    SPARSE_FILE,
    SPARSE_RECORDS,
    ZERO_BLOCK,
    padded,
    parse_header,
    parse_pax,
    parse_pax_size,
)
from storage_node.store.checksum import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MAX_OFFSET = 1 << 63
_SPARSE_NAME = SPARSE_RECORDS + b"name"
_USED_RECORDS = (b"path", b"linkpath", b"size", _SPARSE_NAME)
_MAP_GOES_ON, _MAP_GOES_ON_AGAIN = 482, 504
"""Place of the byte that says whether another block of a sparse file's map follows: in the header, and in a block."""


class TarIndexer:
    def __init__(self, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._table = MemberTable(limits)
        self._at = 0  # bytes of the tar seen so far
        self._head = bytearray()  # of a header block split across chunks
        self._content_left = 0  # of the member whose checksum is being computed
        self._skip_left = 0  # padding, and content of non-members
        self._file: tuple[bytes, int, int] | None = None  # name, offset, size of that member
        self._checksum = 0
        self._extended: bytearray | None = None
        self._extended_left = 0
        self._extended_type = self._extended_at = 0
        self._long_name: bytes | None = None
        self._long_link: bytes | None = None
        self._local: dict[bytes, bytes] = {}
        self._global: dict[bytes, bytes] = {}
        self._promised = False  # an extended header was read and its member was not yet
        self._ended = False
        self._behind = 0  # files of tars that follow the end
        self._sparse_bytes = 0  # content of a sparse file, behind its map
        self.border_bytes = 0
        """Start of the latest member, including all of its headers: a good position to cut the tar."""

    @property
    def needed_bytes(self) -> int:
        """Number of the next bytes that have to be fed: the rest of a header. 0: the next bytes can be skipped."""
        if self._ended or self._skip_left or self._file is not None:
            return 0
        return BLOCK_BYTES - len(self._head) if self._extended is None else self._extended_left

    @property
    def skippable_bytes(self) -> int:
        """Number of the next bytes that can be skipped: content or padding, or everything behind the end of the tar."""
        if self._ended:
            return _MAX_OFFSET
        return self._skip_left or (self._content_left if self._file is not None else 0)

    def skip(self, length: int) -> None:
        """Pass over `length` of the `skippable_bytes`. A member whose bytes are skipped has the checksum 0."""
        if not self._ended and self._skip_left:
            self._skip_left -= length
        elif not self._ended:
            self._checksum, self._content_left = 0, self._content_left - length
            if not self._content_left:
                self._end_file()
        self._at += length

    def feed(self, chunk: Buffer) -> None:
        """Index the next bytes of the tar, any number of them.

        Raises:
            ArchiveDamaged, ArchiveUnsupported, ArchiveTooLarge: no index can be built; the object itself is not
                affected.
        """
        view = memoryview(chunk).cast("B")
        size = len(view)
        position = 0
        while position < size:
            if self._skip_left:
                step = min(self._skip_left, size - position)
                self._skip_left -= step
            elif self._file is not None:
                step = min(self._content_left, size - position)
                self._checksum = crc32c(view[position : position + step], self._checksum)
                self._content_left -= step
                if not self._content_left:
                    self._end_file()
            elif self._extended is not None:
                step = min(self._extended_left, size - position)
                self._extended += view[position : position + step]
                self._extended_left -= step
                if not self._extended_left:
                    self._end_extended()
            else:
                step = min(BLOCK_BYTES - len(self._head), size - position)
                block = bytes(view[position : position + step])
                if step < BLOCK_BYTES:
                    self._head += block
                    block = bytes(self._head)
                if len(block) == BLOCK_BYTES:
                    self._head.clear()
                    self._take_header(block, self._at + step - BLOCK_BYTES)
            self._at += step
            position += step

    def finish(self) -> MemberIndex:
        """Return the index of all input. It is not yet bound to a shard (see MemberIndex.save).

        Raises ArchiveDamaged if the stream ended within a member or a header.
        """
        if self._file is not None:
            name, offset, size = self._file
            raise ArchiveDamaged(
                f"byte {self._at}: the tar ends {self._content_left} bytes before the end of a member of {size} "
                f"bytes that began at byte {offset}: {name[:200]!r}"
            )
        is_cut = self._head or self._skip_left or self._extended is not None
        if not self._at or (is_cut and not self._ended):
            raise ArchiveDamaged(f"byte {self._at}: the tar ends within a header or padding, or before the first")
        if self._promised:
            raise ArchiveDamaged(f"byte {self._at}: the tar ends after an extended header, before its member")
        columns = self._table.finish()
        return MemberIndex.of(columns._replace(hidden=columns.hidden + self._behind), ArchiveKind.TAR, self._at)

    def _count_behind(self, block: bytes, at: int) -> None:
        """Pass over an entry after the end of the tar. What is no entry ends the search."""
        try:
            header = parse_header(block, at)
            self._skip_left = padded(header.size_bytes)
        except ArchiveError:
            self._skip_left = _MAX_OFFSET
        else:
            self._behind += header.type in REGULAR

    def _take_header(self, block: bytes, at: int) -> None:
        if block == ZERO_BLOCK:
            self._ended = True
            return
        if self._ended:
            self._count_behind(block, at)
            return
        if not self._promised:
            self.border_bytes = at
        header = parse_header(block, at)
        content_at = at + BLOCK_BYTES
        if header.type == PAX_GLOBAL or header.type in PAX_LOCAL or header.type in (GNU_LONG_NAME, GNU_LONG_LINK):
            if header.size_bytes > self._limits.header_bytes:
                raise ArchiveTooLarge(
                    f"byte {at}: an extended header of {header.size_bytes} bytes; "
                    f"at most {self._limits.header_bytes} are read"
                )
            self._promised = self._promised or header.type != PAX_GLOBAL
            self._extended, self._extended_left = bytearray(), header.size_bytes
            self._extended_type, self._extended_at = header.type, content_at
            if not header.size_bytes:
                self._end_extended()
            return
        records = {**self._global, **self._local} if self._global or self._local else {}
        is_sparse = header.type == SPARSE_FILE or any(key.startswith(SPARSE_RECORDS) for key in self._local)
        name = (records.get(_SPARSE_NAME) or records.get(b"path", b"")).rstrip(b"/")
        if not name:
            name = header.name if self._long_name is None else self._long_name
        size = header.size_bytes
        if header.type not in NO_CONTENT and records.get(b"size"):
            size = parse_pax_size(records[b"size"], at)
        if content_at + padded(size) > _MAX_OFFSET:
            raise ArchiveDamaged(f"byte {at}: a member of {size} bytes would end after byte {MAX_SIZE_BYTES}")
        if is_sparse or header.type == CONTINUED_FILE:
            self._table.add_file(name, content_at, size, 0, size, SPARSE if is_sparse else CONTINUED)
            self._skip_left = padded(size)
            if header.type == SPARSE_FILE and block[_MAP_GOES_ON]:
                self._begin_map()
        elif header.type in REGULAR:
            self._file, self._content_left, self._checksum = (name, content_at, size), size, 0
            if not size:
                self._end_file()
        else:
            if header.type == HARD_LINK:
                self._table.add_link(name, records.get(b"linkpath") or self._long_link or header.link)
            else:
                self._table.add_other(name.rstrip(b"/"))
            self._skip_left = padded(size)
        self._long_name = self._long_link = None
        self._local = {}
        self._promised = False

    def _begin_map(self) -> None:
        """Read another block of the map of a sparse file, which comes before its content."""
        self._sparse_bytes, self._skip_left = self._skip_left, 0
        self._extended, self._extended_left, self._extended_type = bytearray(), BLOCK_BYTES, SPARSE_FILE

    def _end_file(self) -> None:
        assert self._file is not None
        name, offset, size = self._file
        self._table.add_file(name, offset, size, self._checksum)
        self._file = None
        self._skip_left = -size % BLOCK_BYTES

    def _end_extended(self) -> None:
        assert self._extended is not None
        data = bytes(self._extended)
        self._extended = None
        self._skip_left = -len(data) % BLOCK_BYTES
        at = self._extended_at
        if self._extended_type == SPARSE_FILE:
            self._skip_left = self._sparse_bytes
            if data[_MAP_GOES_ON_AGAIN]:
                self._begin_map()
        elif self._extended_type == GNU_LONG_NAME:
            self._long_name = data.partition(b"\0")[0]
        elif self._extended_type == GNU_LONG_LINK:
            self._long_link = data.partition(b"\0")[0]
        else:
            # Other records are dropped: an endless series of headers, each with new records, would exhaust the memory.
            records = dict[bytes, bytes]()
            for key, value in parse_pax(data, at):
                if key in _USED_RECORDS:
                    records[key] = value
                elif key.startswith(SPARSE_RECORDS):
                    records[SPARSE_RECORDS] = b""
            if self._extended_type == PAX_GLOBAL:
                self._global |= records
            else:
                self._local |= records
