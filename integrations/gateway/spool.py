"""Spool: the bytes of a request until all of them have arrived, in memory while there is room, or in a file."""

from __future__ import annotations

import io
import logging
import os
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, cast

from ais_loader.wire.checksum import crc32c

from .request import S3Error

log = logging.getLogger(__name__)
AT_ONCE_BYTES = 1 << 20
"""Largest body that is kept in memory, and given to the store as bytes instead of a file."""
IN_MEMORY_BYTES = 256 << 10
"""Memory for an archive that is written before its answer begins. Beyond, it is a temporary file."""
_READ_BYTES = 256 << 10
"""Bytes that are read from a file at once. malloc keeps the memory for them, and they are sent while they are still in
the CPU's caches."""
_PIECES_AT_ONCE = 512
"""Below IOV_MAX."""
_SMALL_BYTES = 2 << 10
"""Pieces that are smaller together are joined: each takes some 50 bytes more than it has, which nothing counts."""


class BodyMemory:
    """Memory of all bodies together. May be used by any thread."""

    def __init__(self, limit_bytes: int) -> None:
        self.free_bytes = limit_bytes
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> bool:
        """Reserve bytes, and return whether there were as many."""
        with self._lock:
            if size_bytes > self.free_bytes:
                return False
            self.free_bytes -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self.free_bytes += size_bytes


class _Stored(io.FileIO):
    """A temporary file that is read in pieces of at most _READ_BYTES."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size if size is None or size < 0 else min(size, _READ_BYTES))


class BodySpool:
    """The bytes of a request, their number and CRC-32C. Always `close`."""

    def __init__(
        self, *, folder: str | None, most_bytes: int, memory: BodyMemory, announced_bytes: int | None = None
    ) -> None:
        """`announced_bytes`: the number that the client says. Large bodies go to a file at once, without using up the
        memory of others; fresh memory would also take longer to be filled than a file."""
        self.size_bytes = 0
        self.crc32c = 0
        self._most_bytes = most_bytes
        self._folder, self._memory = folder, memory
        self._taken_bytes = 0
        self._pieces: list[bytes] | None = []
        self._file: IO[bytes] | None = None
        self._is_large = announced_bytes is not None and announced_bytes > AT_ONCE_BYTES

    def write(self, *pieces: bytes) -> None:
        """Take what follows. Raises S3Error for more than `most_bytes`, and if there is no room for a file."""
        for piece in pieces:
            self.size_bytes += len(piece)
            if self.size_bytes > self._most_bytes:
                raise S3Error("EntityTooLarge", f"the body has more than {self._most_bytes:,} bytes")
            self.crc32c = crc32c(piece, self.crc32c)
        try:
            if self._pieces is not None and not self._fits(sum(map(len, pieces))):
                self._move_to_file(self._pieces)
            if self._pieces is not None:
                _append(self._pieces, pieces)
            elif self._file is not None:
                _write_all(self._file.fileno(), pieces)
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            log.warning("no file for a body in %s: %s", folder, error)
            raise S3Error("ServiceUnavailable", "the gateway cannot write temporary files; its log says why") from None

    def _fits(self, size_bytes: int) -> bool:
        is_large = (self._is_large and size_bytes) or self.size_bytes > AT_ONCE_BYTES
        if is_large or not self._memory.take(size_bytes):
            return False
        self._taken_bytes += size_bytes
        return True

    def _move_to_file(self, pieces: list[bytes]) -> None:
        self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - see close
        _write_all(self._file.fileno(), pieces)
        self._forget_memory()

    def _forget_memory(self) -> None:
        self._pieces = None
        self._memory.give_back(self._taken_bytes)
        self._taken_bytes = 0

    @property
    def is_in_memory(self) -> bool:
        return self._pieces is not None

    def file(self) -> IO[bytes]:
        """Return the bytes as a file at its beginning; one at a time can be read. Raises ValueError after `close`."""
        if self._pieces is not None:
            return io.BytesIO(self.read())
        if self._file is None:
            raise ValueError("the spool is closed")
        stored = _Stored(self._file.fileno(), closefd=False)
        stored.seek(0)
        return cast(IO[bytes], stored)

    def read(self) -> bytes:
        """Return the bytes."""
        return b"".join(self._pieces) if self._pieces is not None else self.file().read()

    def content(self) -> bytes | IO[bytes]:
        """Return the bytes as `Bucket.put` takes them: at once if they are in memory, else as a file."""
        return self.read() if self.is_in_memory else self.file()

    def close(self) -> None:
        """Remove the bytes. May be called again."""
        self._forget_memory()
        if self._file is not None:
            self._file.close()
            self._file = None


def _append(kept: list[bytes], pieces: Sequence[bytes]) -> None:
    for piece in pieces:
        if kept and len(piece) + len(kept[-1]) <= _SMALL_BYTES:
            piece = kept.pop() + piece
        kept.append(piece)


def _write_all(fd: int, pieces: Sequence[bytes]) -> None:
    """Append bytes to a file. Raises OSError."""
    for at in range(0, len(pieces), _PIECES_AT_ONCE):
        some = pieces[at : at + _PIECES_AT_ONCE]
        written = os.writev(fd, some)
        for piece in some:  # what did not go at once
            rest = memoryview(piece)[written:]
            written = max(0, written - len(piece))
            while rest:
                rest = rest[os.write(fd, rest) :]
