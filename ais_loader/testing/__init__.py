"""Test kit for software built on ais_loader: throwaway stores, and real nodes that you can kill.

The rest of the package imports nothing from here.
"""

from __future__ import annotations

from ais_loader.testing.memory import peak_rss_bytes, reset_peak_rss, rss_bytes
from ais_loader.testing.node import NodeProcess
from ais_loader.testing.stores import SeededObjects, seeded_bytes, throwaway_folder, throwaway_node, throwaway_store
from ais_loader.testing.waiting import eventually

__all__ = [
    "NodeProcess",
    "SeededObjects",
    "eventually",
    "peak_rss_bytes",
    "reset_peak_rss",
    "rss_bytes",
    "seeded_bytes",
    "throwaway_folder",
    "throwaway_node",
    "throwaway_store",
]
