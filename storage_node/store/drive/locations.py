"""Locations of objects: what reading a batch needs to know of each, without a Python object for every object.

`Locations` is a table from catalog keys to the file, offset, size, checksum and version of an object. `find` looks up a
whole batch in one call and fills the caller's columns. The tables of a process are bounded together; when they are
full, the one that grows forgets everything, unless it has less than an even share. A table is never asked whether an
object exists: what it does not know is read from the catalog. It takes the catalog's values as they are, from look-ups,
from commits and from the scan that fills it (entry_cache.py).

A `StoredFile` is a file that holds objects. It takes the place of the file's path in the batch reader's `paths`. The
native batch reader keeps a segment open that it reads without waiting for a drive. Once it has read as many bytes as
the segment has, it maps it, and from then on copies its objects out of the mapping. Locations in a file become void
when the file is dropped; so do its descriptor and mapping, which would otherwise keep the bytes of a removed file on
the drive. Processes share tables (shared_locations.py).

`_native.c` implements them. Threads: all calls are atomic.
"""

from __future__ import annotations

from storage_node.store.machine_memory import machine_memory_bytes
from storage_node.store.native import Locations, StoredFile, find

__all__ = ["Locations", "StoredFile", "find", "limit_bytes"]

_MIN_BYTES, _MAX_BYTES = 32 << 20, 768 << 20
_SHARE_OF_MEMORY = 32


def limit_bytes() -> int:
    """Return the memory that all locations of this process may take: a share of what it may use. An object takes 48 to
    53 bytes and its key, so that the maximum is enough for ten million objects with short names."""
    return min(max(machine_memory_bytes() // _SHARE_OF_MEMORY, _MIN_BYTES), _MAX_BYTES)
