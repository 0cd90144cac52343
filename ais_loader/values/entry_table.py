"""Entry table, many entries in little memory: the names of one bucket's whole objects, end to end in one buffer.

Ten million entries as Python objects take gigabytes, and every worker that reads one copies its memory page, because
reading changes a reference count. Two flat buffers take the names' own bytes and 8 more for each, and forked workers
share them without copies. Processes that open a saved table share them in any case: they map the same file.

The file of a saved table:

    header   magic, format, flags, number of entries, bytes of names and of versions, digest, length of the bucket
    bucket   its name, and the CRC-32C of the header up to here, then zeros up to a multiple of 64 bytes
    columns  the names' stops and the names; the versions' stops and the versions, if there are any

Numbers are little-endian. Stops are 64-bit numbers, and begin at a multiple of 8 bytes. The digest covers the bucket
and all columns, so that `EntryTable.verify` needs no other checksum.

The file appears complete or not at all, and is never changed: another table under its name is another file, and what
is mapped stays. So a mapped file does not lose pages, unless somebody truncates it in place, which each read looks for.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Self, overload

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest, StoreFormatError
from ais_loader.values.entry import Entry, EntryLike, to_entry
from ais_loader.values.html import html_of_entries
from ais_loader.values.text_column import TextColumn
from ais_loader.values.urls import SCHEME, split_member
from ais_loader.values.whole_file import whole_file
from ais_loader.wire.checksum import crc32c

_TOGETHER = 1000


class EntryTable(Sequence[Entry]):
    """Immutable sequence of n entries of one bucket, all of them whole objects. `Bucket.entries` returns one.

    `save` writes it to a file, and `EntryTable.open` opens it again within milliseconds, whatever n is. All processes
    of a machine that open the file share its memory. Only the path of an opened table is pickled, so workers that are
    spawned open it too. On another machine, the same file must have the same path.
    """

    def __init__(self, bucket: str, names: TextColumn, versions: TextColumn | None = None) -> None:
        self.bucket = bucket
        self._names_here: TextColumn | None = names
        """The columns; None until a table that was pickled opens its file again."""
        self._versions_here = versions
        self._saved: SavedTable | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> EntryTable:
        """Open a saved table. Nothing but its header is read.

        The file must not be changed in place. `save` replaces it, which does not affect tables that are open.

        Raises OSError, InvalidRequest for a file that is no table, StoreFormatError for one that is damaged (`verify`
        checks all of it) or of a later version.
        """
        table = _opened(SavedTable.read(os.path.abspath(os.path.expanduser(os.fspath(path)))))
        table._map()
        return table

    @classmethod
    def of(cls, entries: Sequence[EntryLike], names_of: str | None = None) -> EntryTable | None:
        """Return a table of these entries; None if one is of another bucket, not a whole object, or has an opaque
        value, and if only some of them are pinned to a version.

        `names_of`: the bucket of mere names. Raises InvalidRequest, TypeError for a value that is not an entry.
        """
        first = to_entry(entries[0], names_of) if len(entries) else None
        bucket, pinned = ("", False) if first is None else (first.bucket, first.version is not None)
        url_prefix = f"{SCHEME}{bucket}/"
        encoded: list[bytes] = []
        versions: list[bytes] = []
        for entry in entries:
            # URLs of the same bucket are parsed without an Entry, whose creation would take most of the time for
            # millions.
            version = None
            if isinstance(entry, str) and entry.startswith(url_prefix) and len(entry) > len(url_prefix):
                name, member = split_member(entry[len(url_prefix) :])
                plain = member is None
            else:
                entry = to_entry(entry, names_of)
                name, version = entry.name, entry.version
                plain = _is_whole_object(entry) and entry.bucket == bucket
            if not plain or not isinstance(name, str) or (version is not None) != pinned:
                return None
            try:
                encoded.append(name.encode())
                if version is not None:
                    versions.append(version.encode())
            except UnicodeEncodeError:
                return None  # no object has such a name; the request for it reports the error
        return cls(bucket, TextColumn.of(encoded), TextColumn.of(versions) if pinned else None)

    @classmethod
    def of_columns(
        cls, bucket: str, lengths: Sequence[npt.NDArray[np.integer[Any]]], names: Sequence[bytes]
    ) -> EntryTable:
        """Return a table of names in UTF-8, one after another in `names`, with these lengths in bytes."""
        return cls(bucket, TextColumn.of_parts(lengths, names))

    def __repr__(self) -> str:
        return f"<EntryTable of {len(self):,} objects of bucket {self.bucket!r}>"

    def _repr_html_(self) -> str:
        return html_of_entries(repr(self).strip("<>"), self)

    def __len__(self) -> int:
        return len(self._names.stops) if self._saved is None else self._saved.count

    @property
    def is_pinned(self) -> bool:
        """Whether each entry is pinned to a version."""
        return self._versions_here is not None if self._saved is None else self._saved.has_versions

    def names(self, indices: Iterable[int]) -> list[str]:
        """Return the objects' names at these indices, 0 <= index < n. Raises StoreFormatError for a damaged file."""
        return self._names.at(indices)

    def versions(self, indices: Iterable[int]) -> list[str]:
        """Return the versions at these indices, as `names` does; none if the entries are not pinned."""
        return [] if self._versions is None else self._versions.at(indices)

    def save(self, path: str | os.PathLike[str]) -> EntryTable:
        """Write the table to a file, and return the table that `open` returns for it.

        The file takes the bytes of the names, and 8 more for each; the same again for versions. It replaces a file of
        the same name only when it is complete and synced, so that a crash leaves one of the two.

        Raises OSError.
        """
        where = os.path.abspath(os.path.expanduser(os.fspath(path)))
        digest = bytes.fromhex(self.digest())
        table = _opened(SavedTable.write(where, self.bucket, self._names, self._versions, digest))
        table._map()
        return table

    def digest(self) -> str:
        """Return a digest of the bucket and of all entries in their order, the same on every platform.

        That of an opened table is read from its file.
        """
        return self._computed_digest() if self._saved is None else self._saved.digest.hex()

    def verify(self) -> None:
        """Read all of an opened table, which takes about a second for a gigabyte. Raises StoreFormatError if it is
        damaged."""
        if self._saved is not None and self._computed_digest() != self._saved.digest.hex():
            raise StoreFormatError(f"{self._saved.path}: the entries of the table are damaged")

    def __getstate__(self) -> dict[str, Any]:
        if self._saved is None:
            return self.__dict__
        return self.__dict__ | {"_names_here": None, "_versions_here": None}

    @property
    def _names(self) -> TextColumn:
        names = self._names_here
        return self._map() if names is None else names

    @property
    def _versions(self) -> TextColumn | None:
        if self._names_here is None:
            self._map()
        return self._versions_here

    def _map(self) -> TextColumn:
        assert self._saved is not None
        names, self._versions_here = self._saved.columns()
        self._names_here = names  # last: another thread takes it as the sign that both are there
        return names

    def _computed_digest(self) -> str:
        columns = [self._names] if self._versions is None else [self._names, self._versions]
        head = (self.bucket, len(self), "versions")[: len(columns) + 1]
        digest = hashlib.blake2b(repr(head).encode("utf-8", "surrogatepass"), digest_size=16)
        for column in columns:
            for part in column.parts():
                digest.update(part)
        return digest.hexdigest()

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: Any) -> Any:
        indices = range(len(self))[index]
        if not isinstance(indices, range):
            return self._entries((indices,))[0]
        return self._entries(indices)

    def __iter__(self) -> Iterator[Entry]:
        for first in range(0, len(self), _TOGETHER):  # one by one would take twice as long
            yield from self[first : first + _TOGETHER]

    def _entries(self, indices: Sequence[int]) -> list[Entry]:
        names, versions = self._names.at(indices), self._versions
        if versions is None:
            return [Entry(self.bucket, name) for name in names]
        pairs = zip(names, versions.at(indices), strict=True)
        return [Entry(self.bucket, name, version=version) for name, version in pairs]


def _opened(saved: SavedTable) -> EntryTable:
    table = EntryTable.__new__(EntryTable)
    table.bucket, table._saved, table._names_here, table._versions_here = saved.bucket, saved, None, None
    return table


def _is_whole_object(entry: Entry) -> bool:
    return (
        entry.member is None
        and entry.start == 0
        and entry.length is None
        and entry.opaque is None
        and entry.ranges is None
        and entry.etl is None
    )


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
