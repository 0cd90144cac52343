"""One object as a read-only, seekable binary file, read in ranges of the one version it was opened in.

Every range is a batch of one, so a broken connection is retried and resumed as any batch is; an object that is replaced
or deleted meanwhile ends reading with ObjectNotFound, never with a mix of two versions.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from ais_loader.entry import Entry, ObjectInfo

if TYPE_CHECKING:
    from ais_loader.client import Client

BUFFER_BYTES = 1 << 20


class _Ranges(io.RawIOBase):
    """What io.BufferedReader reads from."""

    def __init__(self, client: Client, info: ObjectInfo, timeout_s: float) -> None:
        self._client = client
        self._info = info
        self._timeout_s = timeout_s
        self._position = 0
        self.name = f"ais://{info.bucket}/{info.name}"

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._info.size_bytes}.get(whence)
        if base is None:
            raise ValueError(f"whence={whence}: need io.SEEK_SET, io.SEEK_CUR or io.SEEK_END")
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}, before the beginning")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # any writable buffer
        view = memoryview(buffer).cast("B")
        info = self._info
        length = max(0, min(len(view), info.size_bytes - self._position, BUFFER_BYTES))
        if length:
            entry = Entry(info.bucket, info.name, start=self._position, length=length, version=info.version)
            with self._client.get_batch([entry], timeout_s=self._timeout_s) as batch:
                for item in batch:
                    view[:length] = item.data
            self._position += length
        return length


class ObjectFile(io.BufferedReader):
    """Read-only, buffered, seekable; for tarfile, zipfile, soundfile, PIL and whatever else wants a binary file.

    `info` describes the version that is being read. Reading raises what a batch raises: ObjectNotFound when that
    version is gone, NodeUnavailable, SilenceTimeout, CorruptObject. Belongs to one thread at a time.
    """

    def __init__(self, client: Client, info: ObjectInfo, *, timeout_s: float = 30.0) -> None:
        super().__init__(_Ranges(client, info, timeout_s), BUFFER_BYTES)
        self.info = info
