"""Range reader: a tar shard or a manifest as the seekable file that Lhotse 2 reads through its index.

It replaces `lhotse.ais.AISRangeReader`, which Lhotse looks up when it opens a URL for `IndexedJsonlReader`,
`IndexedTarReader` or a Shar pointer. A reader that jumps requests little more than it reads. For a sequential reader,
data is read ahead. All data is from the version that the object had at the first read.
"""

from __future__ import annotations

import importlib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ais_loader import errors
from ais_loader.values.urls import split_url
from ais_loader.wire.closing import Closing

from ..shared_store import StoreReference
from .io_backend import ObjectMissing, ais_url, open_bytes


class AISRangeReader(Closing):
    """A read-only file. It is opened at the first read, and again in another process. It pickles as URL and position.

    Reading raises ObjectMissing, and the errors of reading an object: ObjectNotFound if it has been replaced.
    """

    store = StoreReference()
    """The store of all readers in this process. `install` sets it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._position = 0
        self._file: io.BufferedIOBase | None = None
        self._pid = 0

    def _opened(self) -> io.BufferedIOBase:
        if self._file is None or self._pid != os.getpid():
            self._file = open_bytes(self._url, self.store.reader())
            self._pid = os.getpid()
        return self._file

    @property
    def size(self) -> int:
        file = self._opened()
        return file.seek(0, io.SEEK_END)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position}.get(whence)
        if base is None:
            if whence != io.SEEK_END:
                raise ValueError(f"whence={whence}: need io.SEEK_SET, io.SEEK_CUR or io.SEEK_END")
            base = self.size
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the beginning")
        self._position = base + int(offset)
        return self._position

    def read(self, n: int = -1) -> bytes:
        """Read up to `n` bytes, and fewer only at the end."""
        file = self._opened()
        file.seek(self._position)
        found = file.read(n)
        self._position += len(found)
        return found

    def close(self) -> None:
        if self._file is not None and self._pid == os.getpid():
            self._file.close()
        self._file = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_file": None}


def install_range_reader(store: str | os.PathLike[str] | None = None) -> None:
    """Let Lhotse 2 read by index through this reader in this process. Lhotse 1 does not. May be called again."""
    ais: Any = importlib.import_module("lhotse.ais")
    if not hasattr(ais, "AISRangeReader"):
        return
    AISRangeReader.store = StoreReference(store)
    module: Any = importlib.import_module("lhotse.ais.range_reader")
    ais.AISRangeReader = module.AISRangeReader = AISRangeReader
    _keep_indexes_by_version()


def _keep_indexes_by_version() -> None:
    """Let copies of indexes be kept by store and version.

    Lhotse keeps copies of remote indexes in the temporary folder, forever and by URL alone. For a shard that was
    rewritten, or one in another store, it would use the old index.
    """
    indexing: Any = importlib.import_module("lhotse.indexing")
    cache_path = indexing._remote_index_cache_path
    if not isinstance(cache_path, _IndexCachePath):
        indexing._remote_index_cache_path = _IndexCachePath(cache_path)


class _IndexCachePath:
    def __init__(self, of_others: Callable[[Any], Path]) -> None:
        self._of_others = of_others

    def __call__(self, index_path: Any) -> Path:
        """Return the path of the cached index. Raises ObjectMissing."""
        url = ais_url(index_path)
        if url is None:
            return self._of_others(index_path)
        client = AISRangeReader.store.reader()
        bucket, name = split_url(url)
        try:
            info = client.bucket(bucket).head(name)
        except errors.NotFound as error:
            raise ObjectMissing(f"{url}: {error}") from error
        return self._of_others(f"{client.url}\0{url}\0{info.version}\0{info.checksum}")
