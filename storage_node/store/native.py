"""Native module: what `_native.c` offers, or an error that says how to get it. `_native.pyi` has the contracts."""

from __future__ import annotations

from ais_loader.extras import compiled

with compiled("storage_node.store._native"):
    from storage_node.store._native import (
        MAX_LOCATED_BYTES,
        NODE_BITS,
        Locations,
        StoredFile,
        announce,
        copy_into,
        find,
        pread_cached,
        read_cached,
        read_frame,
        read_into,
        read_list,
        write_counted,
    )

__all__ = [
    "MAX_LOCATED_BYTES",
    "NODE_BITS",
    "Locations",
    "StoredFile",
    "announce",
    "copy_into",
    "find",
    "pread_cached",
    "read_cached",
    "read_frame",
    "read_into",
    "read_list",
    "write_counted",
]
