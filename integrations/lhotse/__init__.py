"""Lhotse over `ais://`: what its recipes, samplers and manifests read comes from a store.

`install()` has Lhotse, and NeMo on top of it, read through it everywhere; `python -m ais_loader.integrations.lhotse
TRAIN.py …` does that for a script as it is.
"""

from __future__ import annotations

from ais_loader.extras import needs

with needs("lhotse", "AISBatchLoader and ais:// in Lhotse"):
    import lhotse as _lhotse  # noqa: F401  # before what is made of its classes

from .batch_loader import AISBatchLoader
from .cut_batches import CutBatches
from .failures import AISBatchLoaderError, FetchFailed
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
    "install",
]
