"""Native module: what `_native.c` offers, or an error that says how to get it. `_native.pyi` has the contracts."""

from __future__ import annotations

from ais_loader.extras import compiled

with compiled("storage_node.store._native"):
    from storage_node.store._native import *  # noqa: F403 - its contracts are the list
