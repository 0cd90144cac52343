"""Saved table: the file of an EntryTable, of which processes map the same memory.

    header   magic, format, flags, number of entries, bytes of names and of versions, digest, length of the bucket
    bucket   its name, and the CRC-32C of the header up to here, then zeros up to a multiple of 64 bytes
    columns  the names' stops and the names; the versions' stops and the versions, if there are any

Numbers are little-endian. Stops are 64-bit numbers, and begin at a multiple of 8 bytes. The digest covers the bucket
and all columns, so that `EntryTable.verify` needs no other checksum.

The file appears complete or not at all, and is never changed: another table under its name is another file, and what
is mapped stays. So a mapped file does not lose pages, unless somebody truncates it in place, which each read looks for.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from typing import IO, Self

import numpy as np

from ais_loader.errors import InvalidRequest, StoreFormatError
from ais_loader.values.text_column import TextColumn
from ais_loader.values.whole_file import whole_file
from ais_loader.wire.checksum import crc32c

FORMAT = 1
_MAGIC = b"\x89AISENT\n"
_HEADER = struct.Struct("<8sIIQQQ16sI")
_CHECKSUM = struct.Struct("<I")
_HAS_VERSIONS = 1
_ALIGNMENT = 64
_MOST_HEADER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class SavedTable:
    """Path and header of a table's file. A pickled table is this, so that another process maps the same file."""

    path: str
    bucket: str
    count: int
    names_bytes: int
    versions_bytes: int
    has_versions: bool
    digest: bytes
    """16 bytes, of the bucket and all entries."""

    @classmethod
    def read(cls, path: str) -> Self:
        """Read the header, and check that the file has the size that it says.

        Raises StoreFormatError for a damaged file and for one of a later format, InvalidRequest for one that is no
        table, OSError.
        """
        with open(path, "rb") as file:
            return cls._of_file(path, file)

    @classmethod
    def _of_file(cls, path: str, file: IO[bytes]) -> Self:
        head = file.read(_MOST_HEADER_BYTES)
        size_bytes = os.fstat(file.fileno()).st_size
        if not head.startswith(_MAGIC):
            raise InvalidRequest(f"{path}: not a saved EntryTable")
        if len(head) < _HEADER.size:
            raise StoreFormatError(f"{path}: the file of a table ends after {len(head)} bytes")
        _, format_, flags, count, names_bytes, versions_bytes, digest, bucket_bytes = _HEADER.unpack_from(head)
        if format_ != FORMAT:
            raise StoreFormatError(f"{path}: a table of format {format_}; this version reads format {FORMAT}")
        end = _HEADER.size + bucket_bytes
        if len(head) < end + _CHECKSUM.size or _CHECKSUM.unpack_from(head, end)[0] != crc32c(head[:end]):
            raise StoreFormatError(f"{path}: the header of the table is damaged")
        bucket = head[_HEADER.size : end].decode()
        found = cls(path, bucket, count, names_bytes, versions_bytes, bool(flags & _HAS_VERSIONS), digest)
        if size_bytes != found.size_bytes:
            raise StoreFormatError(f"{path}: the table has {size_bytes:,} bytes of {found.size_bytes:,}")
        return found

    @classmethod
    def write(cls, path: str, bucket: str, names: TextColumn, versions: TextColumn | None, digest: bytes) -> Self:
        """Write a file, durably, in place of one that may be there. Raises OSError."""
        versions_bytes = 0 if versions is None else versions.size_bytes
        table = cls(path, bucket, len(names.stops), names.size_bytes, versions_bytes, versions is not None, digest)
        with whole_file(path, replace=True, durable=True) as file:
            file.write(table._header())
            for column in (names, versions):
                if column is not None:
                    file.writelines(column.parts())
                    file.write(bytes(-column.size_bytes % 8))
        return table

    @property
    def size_bytes(self) -> int:
        """Size of the whole file."""
        columns = 2 if self.has_versions else 1
        stops_bytes = 8 * self.count * columns
        return len(self._header()) + stops_bytes + _padded(self.names_bytes) + _padded(self.versions_bytes)

    def columns(self) -> tuple[TextColumn, TextColumn | None]:
        """Map the file, and return its names and versions. Only pages that are read are loaded.

        Raises InvalidRequest if another table has been saved there, StoreFormatError for a damaged file, OSError.
        """
        with open(self.path, "rb") as file:
            if self._of_file(self.path, file) != self:
                raise InvalidRequest(
                    f"{self.path}: another table has been saved there since this one was opened; open it again"
                )
            mapped = mmap.mmap(file.fileno(), self.size_bytes, access=mmap.ACCESS_READ)
        at = len(self._header())
        names = self._column(mapped, at, self.names_bytes)
        if not self.has_versions:
            return names, None
        return names, self._column(mapped, names.first + _padded(self.names_bytes), self.versions_bytes)

    def _column(self, mapped: mmap.mmap, at: int, size_bytes: int) -> TextColumn:
        column = TextColumn(mapped, np.frombuffer(mapped, "<i8", self.count, at), at + 8 * self.count)
        if column.size_bytes != size_bytes:
            raise StoreFormatError(f"{self.path}: the columns of the table are damaged")
        return column

    def _header(self) -> bytes:
        bucket = self.bucket.encode()
        flags = _HAS_VERSIONS if self.has_versions else 0
        numbers = (self.count, self.names_bytes, self.versions_bytes)
        head = _HEADER.pack(_MAGIC, FORMAT, flags, *numbers, self.digest, len(bucket)) + bucket
        head += _CHECKSUM.pack(crc32c(head))
        return head + bytes(-len(head) % _ALIGNMENT)


def _padded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % 8
