"""Installation: Lhotse, and NeMo on top of it, use this integration wherever they would use AIStore's.

Lhotse's classes look up `AISBatchLoader` and `AISRangeReader` when they need one, so replacing them is enough. Paths
are opened by an IO backend that precedes Lhotse's own. Processes that this one spawns, directly or through a fork
server, receive the installation in the first data that multiprocessing sends them.
"""

from __future__ import annotations

import importlib
import multiprocessing.spawn
import os
from collections.abc import Callable
from typing import Any

from ..shared_store import StoreReference
from .batch_loader import AISBatchLoader
from .io_backend import install_io_backend
from .needs import MEMORY_TYPES
from .range_reader import install_range_reader


def install(store: str | os.PathLike[str] | None = None) -> None:
    """Let Lhotse and NeMo read `ais://` from a store, in this process and those that it starts later.

    This replaces `lhotse.ais.AISBatchLoader`, which `AudioSamples(use_batch_loader=True)` and, with
    USE_AIS_GET_BATCH=true, NeMo's datasets use. It also replaces Lhotse 2's `AISRangeReader`, and opens `ais://` URLs
    wherever Lhotse opens a path. Objects that were created before are not affected. The call opens nothing, and may be
    repeated.

    Args:
        store: The store's URL. None means the value of AIS_LOADER_URL at each use.
    """
    AISBatchLoader.store = StoreReference(store)
    for name in ("lhotse.ais", "lhotse.ais.batch_loader"):
        module: Any = importlib.import_module(name)
        module.AISBatchLoader = AISBatchLoader
    module.FILE_TO_MEMORY_TYPE.update(MEMORY_TYPES)
    install_io_backend(store)
    install_range_reader(store)
    prepare = multiprocessing.spawn.get_preparation_data
    before = prepare.of_others if isinstance(prepare, _Preparation) else prepare
    multiprocessing.spawn.get_preparation_data = _Preparation(before, AISBatchLoader.store.url)


class _Preparation:
    """The data that a spawned process receives first, with the installation added."""

    def __init__(self, of_others: Callable[[str], dict[str, Any]], store: str | None) -> None:
        self.of_others = of_others
        self._store = store

    def __call__(self, name: str) -> dict[str, Any]:
        return {**self.of_others(name), "ais_loader": _Installed(self._store)}


class _Installed:
    """Installs when it is unpickled."""

    def __init__(self, store: str | None) -> None:
        self._store = store

    def __reduce__(self) -> tuple[Any, ...]:
        return install, (self._store,)
