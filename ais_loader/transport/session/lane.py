"""Lane at the client: a stream socket beside gRPC that carries sessions. The node offers it through gRPC.

A lane is used wherever it is available. Where it is not (an older node, a proxy in between, an unreachable port),
sessions use gRPC, and lanes are tried again after a while.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from ais_loader import errors
from ais_loader.wire import recycled
from ais_loader.wire.channel_options import set_tcp_options
from ais_loader.wire.frame import FrameError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.lane import FAILED, GREETING, HEADER, MAGIC, MAX_RESPONSE_BYTES, MESSAGE, VERSION, WELCOME

CONNECT_TIMEOUT_S = 1.0
_TRY_AGAIN_S = 30.0
_RECYCLED_FROM_BYTES = 256 << 10
"""Smaller messages get memory of their own: malloc has it at hand, and a recycled buffer would be far too large."""


class Lanes:
    """Opens lanes to one node. Thread-safe.

    Args:
        host: address at which gRPC reaches the node.
        ask: requests an offer from the node through gRPC; returns None if the node has none.
    """

    def __init__(self, host: str, request_lane: Callable[[], pb.OpenLaneResponse | None]) -> None:
        self._host = host
        self._request_lane = request_lane
        self._not_before_s: dict[str, float] = {}
        """Time at which lanes are tried again: for sessions (""), and for calls of a method."""
        self.kind = "grpc"
        """Transport of the sessions: "unix", "tcp", or "grpc" if there is no lane."""

    def open(self, method: str = "") -> Lane | None:
        """Open a lane for a session, or for calls of a method. Returns None if none is available now."""
        if time.monotonic() < self._not_before_s.get(method, 0.0):
            return None
        lane = self._opened(method)
        if lane is None:
            self._not_before_s[method] = time.monotonic() + _TRY_AGAIN_S
            if not method:
                self.kind = "grpc"
        return lane

    def _opened(self, method: str) -> Lane | None:
        offer = self._request_lane()
        if offer is None or not offer.token or (method and method not in offer.method):
            return None
        for kind, connect in (("unix", self._by_unix), ("tcp", self._by_tcp)):
            if kind == "tcp" and not offer.tcp_port:
                return None  # the node uses TLS, and lanes do not leave its machine
            with contextlib.suppress(OSError):
                sock = connect(offer)
                try:
                    lane = Lane(sock, offer.token)
                except BaseException:
                    sock.close()
                    raise
                self.kind = kind
                return lane
        return None

    def _by_unix(self, offer: pb.OpenLaneResponse) -> socket.socket:
        """Connect by an abstract name. No socket has the name here if the node is on another machine or in another
        network namespace."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(CONNECT_TIMEOUT_S)
            sock.connect(f"\0{offer.unix_name}")
        except BaseException:
            sock.close()
            raise
        return sock

    def _by_tcp(self, offer: pb.OpenLaneResponse) -> socket.socket:
        sock = socket.create_connection((self._host, offer.tcp_port), timeout=CONNECT_TIMEOUT_S)
        set_tcp_options(sock)
        return sock


class Lane:
    """A `Stream` whose user waits on the socket itself, and the `Call` of a session. Owns the socket.

    Raises OSError if it cannot be opened.
    """

    def __init__(self, sock: socket.socket, token: bytes) -> None:
        self.socket = self._socket = sock
        self._lock = threading.Lock()
        self._backlog: deque[bytes | memoryview] = deque()  # guarded by _lock
        self._sender: threading.Thread | None = None  # guarded by _lock
        self._ended = False
        sock.sendall(GREETING.pack(MAGIC, VERSION, token))
        if HEADER.unpack(self._exactly(HEADER.size)) != (0, WELCOME):
            raise OSError("the node does not know the token of this lane")
        sock.settimeout(None)

    # -- one question at a time

    def write(self, message: bytes) -> None:
        try:
            self._socket.sendall(HEADER.pack(len(message), MESSAGE) + message)
        except OSError as error:
            raise EOFError(str(error)) from error

    def exchange(self, message: bytes) -> bytes | memoryview:
        self.write(message)
        return self.receive()

    def exchange_in_parts(self, message: bytes, cut: Callable[[int], int]) -> tuple[bytes, bytes]:
        """Like `exchange`. `cut` maps the answer's size to the end of its first part; each part has its own memory."""
        self.write(message)
        return self._in_parts(cut)

    def receive(self) -> bytes | memoryview:
        try:
            message = self._message()
        except (OSError, errors.LoaderError) as error:
            raise EOFError(str(error)) from error
        if message is None:
            raise EOFError("the stream has ended")
        return message

    def _in_parts(self, cut: Callable[[int], int]) -> tuple[bytes, bytes]:
        try:
            size_bytes = self._header()
            if size_bytes is None:
                raise EOFError("the stream has ended")
            at = min(cut(size_bytes), size_bytes)
            return self._exactly(at), self._exactly(size_bytes - at)
        except (OSError, errors.LoaderError) as error:
            raise EOFError(str(error)) from error

    def cancel(self) -> None:
        self._ended = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cancel()
        self._socket.close()

    # -- many questions and answers at the same time

    def send(self, message: bytes) -> None:
        """Send a message, from any thread, without blocking: a separate thread sends what the socket does not accept at
        once."""
        data: bytes | memoryview = HEADER.pack(len(message), MESSAGE) + message
        with self._lock:
            if not self._backlog and self._sender is None:
                try:
                    sent = self._socket.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    return  # the reading thread gets the error
                if sent == len(data):
                    return
                data = memoryview(data)[sent:]
            self._backlog.append(data)
            if self._sender is None:
                self._sender = threading.Thread(target=self._drain, name="ais-loader lane", daemon=True)
                self._sender.start()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._backlog:
                    self._sender = None
                    return
                data = self._backlog.popleft()
            try:
                self._socket.sendall(data)
            except OSError:
                with self._lock:
                    self._backlog.clear()

    def __iter__(self) -> Iterator[bytes | memoryview]:
        """Yield messages until the session ends. Raises OSError, FrameError, and the node's reason for ending it."""
        try:
            while (message := self._message()) is not None:
                yield message
                del message  # its consumers own it now; its buffer is recycled when they are done
        finally:
            self._socket.close()

    # -- receiving

    def _message(self) -> bytes | memoryview | None:
        """Return the next message; None if the node has ended the session between two messages."""
        size_bytes = self._header()
        if size_bytes is None:
            return None
        return self._exactly(size_bytes) if size_bytes < _RECYCLED_FROM_BYTES else self._recycled(size_bytes)

    def _recycled(self, size_bytes: int) -> memoryview:
        view = recycled.take(size_bytes)
        missing = view
        while missing:  # one iteration, unless a signal or a timeout interrupts the call
            count = self._socket.recv_into(missing, 0, socket.MSG_WAITALL)
            if not count:
                raise ConnectionError("the lane broke in the middle of a message")
            missing = missing[count:]
        return view.toreadonly()

    def _header(self) -> int | None:
        """Return the size of the next message. Raises the node's reason for ending the session."""
        # One call returns the whole header, unless the connection has broken.
        header = self._socket.recv(HEADER.size, socket.MSG_WAITALL)
        if len(header) < HEADER.size:
            if header and not self._ended:
                raise ConnectionError("the lane broke in the middle of a header")
            return None
        size_bytes, kind = HEADER.unpack(header)
        if size_bytes > MAX_RESPONSE_BYTES or kind not in (MESSAGE, FAILED):
            raise FrameError(f"a header of kind {kind} that announces {size_bytes:,} bytes")
        if kind == FAILED:
            error = objects_pb.Error.FromString(self._exactly(size_bytes))
            raise errors.from_node(error.kind, error.message)
        return int(size_bytes)

    def _exactly(self, size_bytes: int) -> bytes:
        data = self._socket.recv(size_bytes, socket.MSG_WAITALL) if size_bytes else b""
        if len(data) == size_bytes:
            return data
        parts = [data]  # a signal or a timeout interrupts such a call
        missing = size_bytes - len(data)
        while missing and parts[-1]:
            parts.append(self._socket.recv(missing, socket.MSG_WAITALL))
            missing -= len(parts[-1])
        if missing:
            raise ConnectionError("the lane broke in the middle of a message")
        return b"".join(parts)
