"""Object contents that `put` accepts, and their division into chunks."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeAlias

from ais_loader.errors import InvalidRequest

CHUNK_BYTES = 1 << 20
_COPIED_BYTES = 256 << 10
"""Size of a copied chunk: it is still in the CPU caches when the copy is read."""
Buffer: TypeAlias = bytes | bytearray | memoryview
Content: TypeAlias = Buffer | os.PathLike[str] | IO[bytes]


class Source:
    """Bytes that can be read as chunks. `replayable`: they can be read again after a failure."""

    def __init__(self, data: Content) -> None:
        if isinstance(data, str):
            raise TypeError("data is a str: pass bytes, or pathlib.Path(...) to store a file's contents")
        self._data = data
        self._position: int | None = None
        if isinstance(data, io.TextIOBase):
            raise TypeError("the file was opened in text mode: open it with 'rb'")
        if isinstance(data, (bytes, bytearray, memoryview)):
            self.size_bytes: int | None = _plain(memoryview(data)).nbytes
        elif isinstance(data, os.PathLike):
            path = Path(data)
            if not path.is_file():
                raise InvalidRequest(f"{path}: {'not a regular file' if path.exists() else 'no such file'}")
            self.size_bytes = path.stat().st_size
        elif hasattr(data, "read"):
            self.size_bytes = None
            if getattr(data, "seekable", lambda: False)():
                self._position = data.tell()
        else:
            try:
                # numpy arrays, mmap: anything that exports its bytes
                self._data = _plain(memoryview(data))  # type: ignore[arg-type]
                self.size_bytes = self._data.nbytes
            except (TypeError, ValueError):  # numpy's ValueError: times and dates, which it does not export
                need = "bytes, a path, or a binary file" + ("; try .numpy()" if hasattr(data, "numpy") else "")
                raise TypeError(f"data is a {type(data).__name__}: need {need}") from None

    @property
    def replayable(self) -> bool:
        return self.size_bytes is not None or self._position is not None

    @property
    def buffer_bytes(self) -> int | None:
        """Size of a buffer in memory, which cannot change meanwhile; None for a file."""
        return self.size_bytes if isinstance(self._data, (bytes, bytearray, memoryview)) else None

    def read(self) -> bytes:
        """Return all bytes, as they are now."""
        return self._data if type(self._data) is bytes else b"".join(self.chunks())

    def chunks(self, *, copied: bool = True) -> Iterator[Buffer]:
        """Yield the bytes, from the beginning. A second call needs `replayable`.

        The bytes are read several times on their way: to be written, for checksums, for the index of an archive. All
        readers have to see the same bytes, so each chunk of a buffer that other code can change is copied first.
        Without `copied` it is not: the receiver compares the chunks' checksum with the sender's.
        """
        data = self._data
        if isinstance(data, (bytes, bytearray, memoryview)):
            view = memoryview(data)
            if not view.c_contiguous or not view.nbytes:  # an empty view with several dimensions cannot be cast
                view = memoryview(view.tobytes())
            is_fixed, view = not copied or type(view.obj) is bytes, view.cast("B")
            step = CHUNK_BYTES if is_fixed else _COPIED_BYTES
            for at in range(0, len(view), step):
                chunk = view[at : at + step]
                yield chunk if is_fixed else bytes(chunk)
        elif isinstance(data, os.PathLike):
            with open(data, "rb") as file:
                yield from _read(file)
        else:
            if self._position is not None:
                data.seek(self._position)
            yield from _read(data)


def _plain(view: memoryview) -> memoryview:
    """Reject references to objects of this process, as in an array of objects. Raises TypeError."""
    if any("O" in kind for kind in view.format.split(":")[::2]):  # between them are the names of fields
        raise TypeError("references to objects are no bytes to be kept")
    return view


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while (chunk := file.read(CHUNK_BYTES)) != b"":
        if chunk is None:  # a file that does not block has no bytes at the moment, which is not its end
            raise InvalidRequest("the file is non-blocking, and had no bytes before its end: make it block")
        if not isinstance(chunk, bytes):
            raise TypeError("the file was opened in text mode: open it with 'rb'")
        yield chunk
