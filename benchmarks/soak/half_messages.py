"""HTTP/2 client, by hand, that begins gRPC calls and leaves their messages incomplete. It keeps to flow control."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from types import TracebackType

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_FRAME_HEADER_BYTES = 9
_BUFFERED_BYTES = 1 << 20
_PREFIX = struct.Struct(">?I")
"""Prefix of a gRPC message: whether it is compressed, and its size."""


class HalfMessages:
    """A connection. `pump` sends and receives what is possible now, and never waits."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=10.0)
        self._socket.setblocking(False)
        self._out = bytearray(_PREFACE + _frame(_SETTINGS, 0, 0, b""))
        self._received = bytearray()
        self._window = self._initial_window = 65_535
        self._max_frame_bytes = 16_384
        self._windows: dict[int, int] = {}
        self._left: dict[int, bytearray] = {}
        self._next_stream = 1
        self.sent_bytes = 0
        """Bytes of messages that have been sent."""
        self.ended_calls = 0
        """Calls that the server has ended."""
        self.is_closed = False

    @property
    def has_sent_all(self) -> bool:
        """Whether everything has left that was to be sent."""
        return not self._out and not any(self._left.values())

    def call(self, path: str, announced_bytes: int, sent_bytes: int) -> None:
        """Begin a call of /package.Service/Method with a message of which only a part is sent."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        self._out += _frame(_HEADERS, _END_HEADERS, stream, b"".join(_literal(*field) for field in fields.items()))
        self._windows[stream] = self._initial_window
        self._left[stream] = bytearray(_PREFIX.pack(False, announced_bytes) + bytes(sent_bytes))

    def pump(self) -> None:
        """Send and receive what is possible now."""
        if self.is_closed:
            return
        for stream, left in self._left.items():
            while left and len(self._out) < _BUFFERED_BYTES:
                count = min(len(left), self._windows[stream], self._window, self._max_frame_bytes)
                if count <= 0:
                    break
                self._out += _frame(_DATA, 0, stream, left[:count])
                del left[:count]
                self._windows[stream] -= count
                self._window -= count
                self.sent_bytes += count
        try:
            with contextlib.suppress(BlockingIOError):
                while self._out:
                    del self._out[: self._socket.send(self._out)]
            with contextlib.suppress(BlockingIOError):
                while part := self._socket.recv(65_536):
                    self._received += part
                self.is_closed = True
        except OSError:
            self.is_closed = True
        self._take_frames()

    def _take_frames(self) -> None:
        while len(self._received) >= _FRAME_HEADER_BYTES:
            stop = _FRAME_HEADER_BYTES + int.from_bytes(self._received[:3], "big")
            if len(self._received) < stop:
                return
            kind, flags = self._received[3], self._received[4]
            stream = int.from_bytes(self._received[5:9], "big")
            payload = bytes(self._received[_FRAME_HEADER_BYTES:stop])
            del self._received[:stop]
            self._take(kind, flags, stream, payload)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW_SIZE:
                    more = value - self._initial_window
                    self._initial_window = value
                    self._windows = {one: window + more for one, window in self._windows.items()}
                elif name == _MAX_FRAME_SIZE:
                    self._max_frame_bytes = value
            self._out += _frame(_SETTINGS, _ACK, 0, b"")
        elif kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload, "big")
            if not stream:
                self._window += more
            elif stream in self._windows:
                self._windows[stream] += more
        elif kind == _PING and not flags & _ACK:
            self._out += _frame(_PING, _ACK, 0, payload)
        elif (kind == _RST_STREAM or (kind == _HEADERS and flags & _END_STREAM)) and stream in self._left:
            del self._left[stream], self._windows[stream]
            self.ended_calls += 1

    def __enter__(self) -> HalfMessages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()


def _frame(kind: int, flags: int, stream: int, payload: bytes | bytearray) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(name: str, value: str) -> bytes:
    """A header field without indexing or Huffman coding (RFC 7541, 6.2.2)."""
    return b"".join((b"\0", *(bytes((len(text),)) + text.encode() for text in (name, value))))


def pump_all(connections: Iterable[HalfMessages]) -> bool:
    """Send and receive what is possible now on all of these. Returns True, for conditions that are awaited."""
    for connection in connections:
        connection.pump()
    return True
