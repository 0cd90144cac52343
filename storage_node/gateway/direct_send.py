"""Direct sending: the thread that reads a body also sends it, on the connection's own socket.

Through the event loop, every byte would be copied into its buffers, and every chunk would cost two changes of threads.
A thread is held as long as the client takes its answer, as the request's turn is anyway.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
import sys
import termios
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from storage_node.gateway.server.client_pace import ClientPace
from storage_node.gateway.server.limits import Limits

if TYPE_CHECKING:
    from ais_loader.values.source import Buffer

_LOOKS = 8
"""How often a client is looked at within `idle_s`."""


class DirectSend:
    """Sends bytes on a connection, in any one thread. As a context manager, it closes its own handle at the end."""

    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        # A handle of its own: should the event loop close the connection, no other connection can get its number.
        self._socket = socket.socket(sock.family, sock.type, sock.proto, fileno=os.dup(sock.fileno()))
        self._cork(1)
        self._look_s = limits.idle_s / _LOOKS
        self._pace = ClientPace(limits)
        self.sent_bytes = 0

    @classmethod
    def on(cls, transport: asyncio.Transport | None, limits: Limits) -> DirectSend | None:
        """Return one for a connection; None if it is encrypted, closed, or has bytes of its own to send."""
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return None
        sock = transport.get_extra_info("socket")
        if sock is None or transport.get_extra_info("ssl_object") is not None:
            return None
        return cls(sock, limits)

    def _cork(self, value: int) -> None:
        """Have headers wait for the body, or send what waits."""
        with contextlib.suppress(OSError):  # there is no TCP, or no connection
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, value)

    def send_all(self, chunks: Iterable[Buffer]) -> None:
        """Send everything. Raises TimeoutError if the client takes it too slowly, OSError if it is gone."""
        for chunk in chunks:
            self._pace.rest()  # it was the store that took its time
            view = memoryview(chunk)
            while view:
                try:
                    count = self._socket.send(view)
                except BlockingIOError:  # the event loop has made the socket non-blocking
                    self._wait()
                    continue
                self.sent_bytes += count
                view = view[count:]

    def _wait(self) -> None:
        """Wait for room. Room is announced only once a third of the socket's buffer is free."""
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while True:
            self._require_pace()
            if poll.poll(1000 * self._look_s):
                return

    def _require_pace(self) -> None:
        if self._pace.is_slow(time.monotonic(), self.sent_bytes - self._queued_bytes()):
            raise TimeoutError("the client takes the answer too slowly")

    def _queued_bytes(self) -> int:
        """Return the number of bytes that the client has not taken."""
        found = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(found, sys.byteorder)

    def stop(self) -> None:
        """End the connection, so that `send_all` raises an error. Any thread may call it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._cork(0)
        self._socket.close()

    def __enter__(self) -> DirectSend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
