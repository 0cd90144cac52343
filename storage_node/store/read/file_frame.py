"""File frame: a frame whose payload the kernel sends straight from the objects' files; nobody here touches its bytes.

What is not touched cannot be compared either: the frame carries the checksums that were stored, and says by the kind of
its entries, UNCHECKED, that whoever receives it has to compare. A file that turns out to be shorter, or cannot be read,
when the frame has been announced already is made up for with zeros: the receiver finds out, and asks for a checked
answer.

Files are opened before anything is sent, so that what is gone is found by whoever can look it up again.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

_PATIENCE_MS = 5
"""How long a thread waits for a reader that is about to make room."""
_ZEROS = bytes(64 << 10)
_OF_THE_SOCKET = frozenset((errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.EBADF, errno.ETIMEDOUT))


@dataclass(slots=True)
class FilePart:
    fd: int
    offset: int
    left_bytes: int
    owned: bool
    """To be closed with the frame."""


@dataclass(slots=True)
class FileFrame:
    """Belongs to one thread at a time. Has to be closed."""

    prefix: bytes
    """All of the message that stands before the payload."""
    payload_bytes: int
    parts: list[FilePart] = field(default_factory=list)
    cached: bool = False
    """As far as can be told, the page cache has all of it: sending it waits for no drive."""
    damaged: bool = False
    """Zeros were sent in the place of some of it."""
    _at: int = 0

    def __len__(self) -> int:
        """Of the message, in bytes."""
        return len(self.prefix) + self.payload_bytes

    @property
    def done(self) -> bool:
        return self._at == len(self.parts)

    def send(self, sock: socket.socket, patience_ms: int = _PATIENCE_MS) -> None:
        """Send of the payload what the socket takes, and wait for it a little; `done` when that was all.

        May wait for a drive. Raises OSError for what is wrong with the socket.
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
        """May be called again."""
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
    """A frame of the parts of these files; None where one cannot be opened, or is shorter than it has to be."""
    parts: list[FilePart] = []
    cached, room = True, bytearray(1)
    try:
        for folder, path, start, size in zip(folders, paths, starts, sizes, strict=True):
            if not size:
                continue
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder) if path else folder
            parts.append(FilePart(fd, start, size, owned=bool(path)))
            if os.fstat(fd).st_size < start + size:
                raise OSError("shorter than it has to be")
            cached = cached and _is_cached(fd, start, room) and _is_cached(fd, start + size - 1, room)
    except OSError:
        FileFrame(b"", 0, parts).close()
        return None
    return FileFrame(prefix, sum(sizes), parts, cached)


def _is_cached(fd: int, offset: int, room: bytearray) -> bool:
    """A file system that cannot tell is one to wait for."""
    try:
        return os.preadv(fd, [room], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False
