"""Direct sending: the thread that makes an answer also sends it, on the connection's own socket.

Through the event loop, every byte would be copied into its buffers, and every chunk would cost two changes of threads.
The headers leave with the first bytes of the body, so that an error before those still has a status. A thread is held
as long as the client takes its answer, as the request's turn is anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import select
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from storage_node.limits.pace import Pace

from .attributes import http_date
from .request import INLINE_BYTES, Response
from .server.options import LOOKS, Limits

if TYPE_CHECKING:
    from ais_loader.values.source import Buffer
    from storage_node.limits.call_slots import CallSlot

    from .request import Chunk

_MOST_BUFFERS = 1024
"""Most buffers that one call of the kernel takes."""
_MAX_LOOK_S = 0.5
"""The same, for what the client takes meanwhile to be known to others."""


_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def head(status: int, headers: Iterable[tuple[str, str]], *, size_bytes: int | None, keep_alive: bool) -> bytes:
    """Return everything that precedes the body.

    Args:
        size_bytes: Length of the body. None: it is sent in chunks.
        keep_alive: Another request may follow on the connection.

    Raises ValueError for a header with a control character.
    """
    lines = [f"{name}: {value}" for name, value in headers]
    lines.append("transfer-encoding: chunked" if size_bytes is None else f"content-length: {size_bytes}")
    lines.append(f"date: {http_date(int(time.time()))}")
    if not keep_alive:
        lines.append("connection: close")
    for line in lines:
        if _FORBIDDEN.search(line):
            raise ValueError(f"a header has a control character: {line[:80]!r}")
    return "\r\n".join([f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "\r\n"]).encode()


class DirectSend:
    """Makes and sends one answer on a connection, in any one thread."""

    def __init__(self, sock: socket.socket, limits: Limits, slots: Sequence[CallSlot] = ()) -> None:
        """`slots`: those that are held meanwhile. They learn when the client keeps them waiting."""
        # A handle of its own: should the event loop close the connection, no other connection can get its number.
        self._socket = socket.socket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))
        self._lock = threading.Lock()  # `stop` must not meet a number that was closed and is in use again
        self._look_s = min(limits.idle_s / LOOKS, _MAX_LOOK_S)
        self._slots = slots
        self._pace = Pace(limits)
        self.has_begun = False
        """Whether anything was sent, so that the answer cannot become another one."""
        self.is_slow = False
        """Whether the client took the answer too slowly."""
        self.sent_bytes = 0

    @classmethod
    def on(
        cls, transport: asyncio.Transport | None, limits: Limits, slots: Sequence[CallSlot] = ()
    ) -> DirectSend | None:
        """Return one for a connection; None if it is encrypted, closed, or has bytes of its own to send."""
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return None
        sock = transport.get_extra_info("socket")
        if sock is None or transport.get_extra_info("ssl_object") is not None:
            return None
        return cls(sock, limits, slots)

    def answer(self, make: Callable[[], Response], head_of: Callable[[Response], bytes]) -> Response:
        """Make an answer, and send it if it has a large body, which `has_begun` tells. Closes the handle.

        Raises what `make` raises and, also after the answer has begun, the errors of its body and of `send_all`.
        """
        try:
            response = make()
            body = response.body
            if isinstance(body, bytes):
                if len(body) > INLINE_BYTES:
                    self.send_all(head_of(response), (body,), len(body))
                return response
            with contextlib.ExitStack() as closing:
                if (close := getattr(body, "close", None)) is not None:
                    closing.callback(close)
                self.send_all(head_of(response), body, response.size_bytes)
            return response
        finally:
            self.close()

    def send_all(self, head: bytes, chunks: Iterable[Chunk], size_bytes: int | None) -> None:
        """Send headers and a body: of this size, or in HTTP's chunks if it is None.

        The last chunk is sent only if all others were. Raises TimeoutError if the client takes the answer too slowly,
        OSError if it is gone, and ValueError if the body has another size.
        """
        left = size_bytes or 0
        waiting: list[Buffer] = [head]
        for chunk in chunks:
            buffers: Sequence[Buffer] = chunk if isinstance(chunk, list) else [chunk]
            count = sum(len(memoryview(buffer)) for buffer in buffers)
            if not count:
                continue
            if size_bytes is None:
                buffers = [b"%x\r\n" % count, *buffers, b"\r\n"]
            elif (left := left - count) < 0:
                break
            self._pace.rest()  # it was the store that took its time
            self._send([*waiting, *buffers])
            waiting = []
        if left:
            raise ValueError(f"the body has not the {size_bytes:,} bytes that were announced")
        if size_bytes is None:
            waiting.append(b"0\r\n\r\n")
        if waiting:
            self._send(waiting)

    def _send(self, buffers: Sequence[Buffer]) -> None:
        self.has_begun = True
        views = [memoryview(buffer) for buffer in buffers]
        at = 0
        while at < len(views):
            try:
                count = self._socket.sendmsg(views[at : at + _MOST_BUFFERS])
            except BlockingIOError:  # the event loop has made the socket non-blocking
                self._wait()
                continue
            self.sent_bytes += count
            self._moved(count)
            while at < len(views) and count >= len(views[at]):
                count -= len(views[at])
                at += 1
            if count:
                views[at] = views[at][count:]

    def _wait(self) -> None:
        """Wait for room. Room is announced only once a third of the socket's buffer is free."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        queued_bytes = self._queued_bytes()
        with contextlib.ExitStack() as waits:
            for slot in self._slots:
                waits.enter_context(slot.waiting())
            while True:
                self._require_pace(queued_bytes)
                if poll.poll(1000 * self._look_s):
                    return
                before_bytes, queued_bytes = queued_bytes, self._queued_bytes()
                self._moved(before_bytes - queued_bytes)

    def _moved(self, size_bytes: int) -> None:
        for slot in self._slots:
            slot.moved(size_bytes)

    def _require_pace(self, queued_bytes: int) -> None:
        if self._pace.is_slow(time.monotonic(), self.sent_bytes - queued_bytes):
            self.is_slow = True
            raise TimeoutError("the client takes the answer too slowly")

    def _queued_bytes(self) -> int:
        """Return the number of bytes that the client has not taken."""
        found = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(found, sys.byteorder)

    def stop(self) -> None:
        """End the connection, so that sending raises an error. Any thread may call it."""
        with self._lock, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the handle. The connection stays open."""
        with self._lock:
            self._socket.close()
