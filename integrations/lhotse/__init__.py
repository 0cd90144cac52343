"""Lhotse over `ais://`: its recipes, samplers and manifests read from a store.

After `install()`, Lhotse, and NeMo on top of it, read through this integration everywhere. To do so for an unmodified
script, run `python -m ais_loader.integrations.lhotse TRAIN.py …`.
"""

from __future__ import annotations

from ais_loader.extras import needs

with needs("lhotse", "AISBatchLoader and ais:// in Lhotse"):
    import lhotse as _lhotse  # noqa: F401  # before what is made of its classes

from .batch_loader import AISBatchLoader
from .cut_batches import CutBatches
from .failures import AISBatchLoaderError, FetchFailed
from .fetched import Fetched
from .install import install
from .io_backend import AISIOBackend
from .range_reader import AISRangeReader

__all__ = [
    "AISBatchLoader",
    "AISBatchLoaderError",
    "AISIOBackend",
    "AISRangeReader",
    "CutBatches",
    "FetchFailed",
    "Fetched",
    "install",
]
