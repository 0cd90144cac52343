"""Entry table, many entries in little memory: the names of one bucket's whole objects, end to end in one buffer.

Ten million entries as Python objects take gigabytes, and every worker that reads one copies its memory page, because
reading changes a reference count. Two flat buffers take the names' own bytes and 8 more for each, and forked workers
share them without copies. Processes that open a saved table share them in any case: they map the same file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ais_loader.errors import StoreFormatError
from ais_loader.values.entry import Entry, EntryLike, to_entry
from ais_loader.values.html import html_of_entries
from ais_loader.values.saved_table import SavedTable
from ais_loader.values.text_column import TextColumn
from ais_loader.values.urls import SCHEME, split_member

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
