"""File frame: a frame whose payload the kernel sends directly from the objects' files, without copying it to user
space.

The bytes cannot be verified here either. The frame carries the stored checksums and marks its entries UNCHECKED, so
that the receiver has to compare. If a file turns out to be shorter or unreadable after the frame was announced, zeros
are sent instead; the receiver detects that and requests a checked answer.

Files are opened before anything is sent, so that a missing one is found while it can still be looked up again.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from storage_node.store.native import pread_cached

_PATIENCE_MS = 5
"""Time for which a thread waits for a slow receiver to make room in the socket."""
_ZEROS = bytes(64 << 10)
_OF_THE_SOCKET = frozenset((errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF, errno.ETIMEDOUT))


@dataclass(slots=True)
class FilePart:
    fd: int
    offset: int
    left_bytes: int
    owned: bool
    """Whether it is closed with the frame."""


@dataclass(slots=True)
class FileFrame:
    """Frame that is being sent. Belongs to one thread at a time. Has to be closed."""

    prefix: bytes
    """Everything in the message before the payload."""
    payload_bytes: int
    parts: list[FilePart] = field(default_factory=list)
    cached: bool = False
    """Whether the page cache seems to have all of it, so that sending waits for no drive."""
    damaged: bool = False
    """Whether zeros were sent in place of some of it."""
    _at: int = 0

    def __len__(self) -> int:
        """Return the size of the message in bytes."""
        return len(self.prefix) + self.payload_bytes

    @property
    def done(self) -> bool:
        return self._at == len(self.parts)

    def send(self, sock: socket.socket, patience_ms: int = _PATIENCE_MS) -> None:
        """Send as much of the payload as the socket takes, waiting a little for it. `done` is then True if that was
        all.

        May wait for a drive. Raises OSError for errors of the socket.
        """
        while not self.done:
            part = self.parts[self._at]
            if not part.left_bytes:
                self._at += 1
                continue
            try:
                sent = os.sendfile(sock.fileno(), part.fd, part.offset, part.left_bytes) if not self.damaged else 0
            except BlockingIOError:
                if not _writable(sock, patience_ms):
                    return
                continue
            except OSError as error:
                if error.errno in _OF_THE_SOCKET:
                    raise
                sent = 0
            if not sent:
                self.damaged = True
                try:
                    sent = sock.send(_ZEROS[: part.left_bytes])
                except BlockingIOError:
                    if not _writable(sock, patience_ms):
                        return
                    continue
            part.offset += sent
            part.left_bytes -= sent

    def close(self) -> None:
        """Close the files. May be called again."""
        for part in self.parts:
            if part.owned:
                part.owned = False
                with suppress(OSError):
                    os.close(part.fd)


def _writable(sock: socket.socket, patience_ms: int) -> bool:
    if not patience_ms:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLOUT)
    return bool(poll.poll(patience_ms))


def opened(
    prefix: bytes, folders: Sequence[int], paths: Sequence[bytes], starts: Sequence[int], sizes: Sequence[int]
) -> FileFrame | None:
    """Open a frame of these parts of files; None if one cannot be opened, or is too short."""
    parts: list[FilePart] = []
    files: dict[tuple[int, bytes], tuple[int, int]] = {}
    cached, room = True, bytearray(1)
    try:
        for folder, path, start, size in zip(folders, paths, starts, sizes, strict=True):
            if not size:
                continue
            fd, size_bytes = files.get((folder, path), (-1, 0))
            if is_new := fd < 0:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder) if path else folder
            parts.append(FilePart(fd, start, size, owned=is_new and bool(path)))
            if is_new:
                files[folder, path] = fd, (size_bytes := os.fstat(fd).st_size)
                cached = cached and _is_cached(fd, start, room)
            if size_bytes < start + size:
                raise OSError("shorter than it has to be")
            cached = cached and _is_cached(fd, start + size - 1, room)
    except OSError:
        FileFrame(b"", 0, parts).close()
        return None
    return FileFrame(prefix, sum(sizes), parts, cached)


def _is_cached(fd: int, offset: int, room: bytearray) -> bool:
    """Whether a byte is in the page cache; False if the file system cannot tell."""
    return pread_cached(fd, room, offset) == 1
