"""Spool: the bytes of a request until all of them have arrived, in memory or, beyond 256 KiB, in a temporary file."""

from __future__ import annotations

import tempfile
from typing import IO

from ais_loader.wire.checksum import crc32c
from storage_node.gateway.errors import S3Error

IN_MEMORY_BYTES = 256 << 10


class Spool:
    """The bytes of a request, their number and CRC-32C. Always `close`."""

    def __init__(self, *, folder: str | None, most_bytes: int) -> None:
        self.size_bytes = 0
        self.crc32c = 0
        self._most_bytes = most_bytes
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=folder)  # noqa: SIM115 - see close

    def write(self, data: bytes) -> None:
        """Take what follows. Raises S3Error for more than `most_bytes`."""
        self.size_bytes += len(data)
        if self.size_bytes > self._most_bytes:
            raise S3Error("EntityTooLarge", f"the body has more than {self._most_bytes:,} bytes")
        self.crc32c = crc32c(data, self.crc32c)
        self._file.write(data)

    @property
    def is_in_memory(self) -> bool:
        return self.size_bytes <= IN_MEMORY_BYTES

    def file(self) -> IO[bytes]:
        """Return the bytes as a file at its beginning."""
        self._file.seek(0)
        return self._file

    def read(self) -> bytes:
        """Return the bytes."""
        return self.file().read()

    def content(self) -> bytes | IO[bytes]:
        """Return the bytes, or the file if they are not in memory, as `Bucket.put` takes them."""
        return self.read() if self.is_in_memory else self.file()

    def close(self) -> None:
        """Remove the bytes. May be called again."""
        self._file.close()
