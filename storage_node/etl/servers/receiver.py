"""Receiver of what a server makes: counted, summed and held to its limits while it comes.

In memory as long as it is small; beyond that in a file of the spool that has no name, so that nothing of it is left
whatever happens to the node.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ais_loader.errors import TransformFailed
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content
from storage_node.store.checksum import crc32c


class Receiver:
    """One output; `take` its chunks, then `content`, or `discard`."""

    def __init__(self, max_bytes: int, reason: str, new_file: Callable[[], int]) -> None:
        """
        Args:
            max_bytes: more fails.
            reason: which limit that is, for the message.
            new_file: the spool's: a descriptor of a file without a name.
        """
        self._max_bytes, self._reason, self._new_file = max_bytes, reason, new_file
        self._parts: list[bytes] = []
        self._fd = -1
        self.size_bytes = self.checksum = 0

    async def take(self, chunk: bytes) -> None:
        """Raises TransformFailed when it is too much, or when the spool does not take it."""
        size_bytes = self.size_bytes + len(chunk)
        if size_bytes > self._max_bytes:
            raise TransformFailed(f"it makes more than {self._max_bytes:,} bytes, {self._reason}")
        self.size_bytes, self.checksum = size_bytes, crc32c(chunk, self.checksum)
        if self._fd < 0 and size_bytes <= MAX_IN_MEMORY_BYTES:
            self._parts.append(chunk)
            return
        self._parts.append(chunk)
        try:
            await asyncio.to_thread(self._spool)
        except OSError as error:
            raise TransformFailed(f"its output could not be spooled: {error}") from error

    def _spool(self) -> None:
        if self._fd < 0:
            self._fd = self._new_file()
        parts, self._parts = self._parts, []
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(self._fd, view) :]

    def content(self) -> Content:
        """The output, which becomes the caller's."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            return Content(self.size_bytes, self.checksum, fd=fd)
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        return Content(self.size_bytes, self.checksum, memoryview(data))

    def discard(self) -> None:
        """May be called again."""
        self._parts = []
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
