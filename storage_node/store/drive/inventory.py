"""Inventory of the files that a drive's catalog accounts for, in eight bytes of memory for each.

Used when every file has to be compared with every entry: after a power loss, and by the doctor. Paths are stored as
64-bit hashes. A collision (one in 2**64 for a pair) can hide an unnamed file, but never makes a named one look unnamed.
"""

from __future__ import annotations

import array
import re
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import xxhash

from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog
from storage_node.store.files.segment_format import file_of
from storage_node.store.format import CatalogEntry

_OURS = re.compile(
    rb"([0-3][0-9a-f]/[0-3][0-9a-f]/[0-9a-f]{28}\.[0-9a-f]+|segments/[0-3][0-9a-f]/segment\.[0-9a-f]+(/[0-9a-f]+\.[0-9a-f]+)?)\Z"
)
_AT_ONCE = 4096


def is_object_path(path: bytes) -> bool:
    """Whether a path below `objects` is one that the store could have generated."""
    return _OURS.match(path) is not None


class NamedFiles:
    """Paths that a catalog names: in entries, retained entries, intents and garbage keys."""

    def __init__(self, paths: Iterable[bytes]) -> None:
        hashes = array.array("Q", map(xxhash.xxh3_64_intdigest, paths))
        self._hashes = np.sort(np.frombuffer(hashes, np.uint64))

    def __len__(self) -> int:
        return len(self._hashes)

    def not_among(self, paths: Iterable[bytes]) -> Iterator[bytes]:
        """Iterate over those of `paths` that the catalog does not name."""
        paths = iter(paths)
        while some := list(islice(paths, _AT_ONCE)):
            asked = np.array([xxhash.xxh3_64_intdigest(path) for path in some], np.uint64)
            at = np.searchsorted(self._hashes, asked)
            known = np.zeros(len(some), bool)
            inside = at < len(self._hashes)
            known[inside] = self._hashes[at[inside]] == asked[inside]
            yield from (path for path, is_known in zip(some, known, strict=True) if not is_known)


def named_by(entry: CatalogEntry) -> tuple[bytes, ...]:
    """Return the object's path and, for a slot of a segment, the segment's, which is removed with its last object."""
    return (entry.path, file_of(entry.path)) if entry.offset else (entry.path,)


def named_paths(catalog: Catalog) -> Iterator[bytes]:
    """Iterate over every path that the catalog names, including segments that contain named objects.

    Raises StoreFormatError at an entry that cannot be read.
    """
    for prefix in (fmt.OBJECT_PREFIX, fmt.RETAINED_PREFIX):
        for _, value in catalog.scan(prefix):
            entry = fmt.decode_entry(value)
            if not entry.is_tombstone:
                yield from named_by(entry)
    for prefix in (fmt.INTENT_PREFIX, fmt.GARBAGE_PREFIX):
        for _, path in catalog.scan(prefix):
            yield path


def unnamed_files(catalog: Catalog, files: Iterable[bytes]) -> Iterator[bytes]:
    """Iterate over object files that no key of the catalog names. Raises StoreFormatError at a damaged entry, before
    the first."""
    named = NamedFiles(named_paths(catalog))
    return named.not_among(path for path in files if is_object_path(path))
