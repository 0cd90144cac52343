"""Buffered file: an object behind one of fsspec's own caches, such as that of `blockcache`."""

from __future__ import annotations

import threading
from typing import Any

from ais_loader import Bucket
from ais_loader.extras import needs
from ais_loader.objects.pinned import WHOLE_BYTES

from ..file_errors import as_files
from .path_expansion import file_row

with needs("fsspec", "ais:// in other libraries"):
    from fsspec.spec import AbstractBufferedFile


class BufferedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no annotations
    """One version of an object, in blocks of `blocksize` bytes that the cache asks for. Files that are opened without a
    `cache_type` read ahead by themselves, and are faster."""

    def __init__(
        self,
        files: Any,
        path: str,
        bucket: Bucket,
        name: str,
        *,
        block_size: int | None,
        cache_type: str,
        cache_options: dict[str, Any] | None,
    ) -> None:
        """Raises the errors of `Bucket.open`."""
        self._file = bucket.open(name, read_ahead_bytes=0)  # its bytes may have come with it
        self._bucket, self._name = bucket, name
        self._lock = threading.Lock()
        self._details = file_row(self._file.info)
        super().__init__(
            files,
            path,
            block_size=block_size,
            cache_type=cache_type,
            cache_options=cache_options,
            size=self._file.info.size_bytes,
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end` of the version that was opened, from any thread. Raises file errors
        and those of `Bucket.get`."""
        end = min(end, self.size)
        if start >= end:
            return b""
        with as_files(self.path):
            if self.size > WHOLE_BYTES:
                version = self._file.info.version
                return self._bucket.get(self._name, start=start, length=end - start, version=version)
            with self._lock:
                self._file.seek(start)
                return self._file.read(end - start)

    def close(self) -> None:
        super().close()
        if (file := getattr(self, "_file", None)) is not None:  # otherwise it was never opened
            file.close()
