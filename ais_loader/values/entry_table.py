"""Entry table, many entries in little memory: the names of one bucket's whole objects, end to end in one buffer.

Ten million entries as Python objects take gigabytes, and every worker that reads one copies its memory page, because
reading changes a reference count. Two flat buffers take the names' own bytes and 8 more for each, and forked workers
share them without copies.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ais_loader.values.entry import Entry, EntryLike, to_entry
from ais_loader.values.html import html_of_entries
from ais_loader.values.urls import SCHEME, split_member


class EntryTable(Sequence[Entry]):
    """Immutable sequence of n entries of one bucket. `names` returns many at once. Created by `EntryTable.of`."""

    def __init__(self, bucket: str, encoded_names: Sequence[bytes]) -> None:
        self.bucket = bucket
        self._names = b"".join(encoded_names)
        self._stops: npt.NDArray[np.int64] = np.fromiter(map(len, encoded_names), np.int64, len(encoded_names)).cumsum()

    @classmethod
    def of(cls, entries: Sequence[EntryLike], names_of: str | None = None) -> EntryTable | None:
        """Return a table of these entries; None if one is of another bucket, not a whole object, or has an opaque
        value.

        `names_of`: the bucket of mere names. Raises InvalidRequest, TypeError for a value that is not an entry.
        """
        bucket = to_entry(entries[0], names_of).bucket if len(entries) else ""
        url_prefix = f"{SCHEME}{bucket}/"
        encoded: list[bytes] = []
        for entry in entries:
            # URLs of the same bucket are parsed without an Entry, whose creation would take most of the time for
            # millions.
            if isinstance(entry, str) and entry.startswith(url_prefix) and len(entry) > len(url_prefix):
                name, member = split_member(entry[len(url_prefix) :])
                plain = member is None
            else:
                entry = to_entry(entry, names_of)
                name, plain = entry.name, _is_whole_object(entry) and entry.bucket == bucket
            if not plain or not isinstance(name, str):
                return None
            try:
                encoded.append(name.encode())
            except UnicodeEncodeError:
                return None  # no object has such a name; the request for it reports the error
        return cls(bucket, encoded)

    @classmethod
    def of_columns(
        cls, bucket: str, lengths: Sequence[npt.NDArray[np.integer[Any]]], names: Sequence[bytes]
    ) -> EntryTable:
        """Return a table of names in UTF-8, one after another in `names`, with these lengths in bytes."""
        table = cls(bucket, ())
        table._names = b"".join(names)
        table._stops = np.concatenate([np.zeros(0, np.int64), *lengths]).cumsum(dtype=np.int64)
        return table

    def __repr__(self) -> str:
        return f"<EntryTable of {len(self):,} objects of bucket {self.bucket!r}>"

    def _repr_html_(self) -> str:
        return html_of_entries(repr(self).strip("<>"), self)

    def __len__(self) -> int:
        return len(self._stops)

    def names(self, indices: Iterable[int]) -> list[str]:
        """Return the objects' names at these indices, 0 <= index < n."""
        names, stops = self._names, self._stops
        return [names[stops.item(at - 1) if at else 0 : stops.item(at)].decode() for at in indices]

    def digest(self) -> str:
        """Return a digest of the bucket and of all names in their order, the same on every platform."""
        digest = hashlib.blake2b(repr((self.bucket, len(self))).encode("utf-8", "surrogatepass"), digest_size=16)
        digest.update(self._stops.astype("<i8", copy=False).data)
        digest.update(self._names)
        return digest.hexdigest()

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: Any) -> Any:
        indices = range(len(self))[index]
        if isinstance(indices, range):
            return [Entry(self.bucket, name) for name in self.names(indices)]
        return Entry(self.bucket, self.names((indices,))[0])


def _is_whole_object(entry: Entry) -> bool:
    return (
        entry.member is None
        and entry.start == 0
        and entry.length is None
        and entry.version is None
        and entry.opaque is None
        and entry.ranges is None
        and entry.etl is None
    )
