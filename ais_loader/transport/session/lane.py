"""Lane at the client: a stream socket beside gRPC that carries sessions, opened by what gRPC says of it.

A lane is taken where there is one. Where there is none - a node of a version before, a proxy in between, a port that
cannot be reached - sessions go by gRPC as they always can, and lanes are tried again after a while.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from ais_loader import errors
from ais_loader.transport.session import recycled
from ais_loader.wire.frame import FrameError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.lane import FAILED, GREETING, HEADER, MAGIC, MAX_RESPONSE_BYTES, MESSAGE, VERSION, WELCOME

CONNECT_TIMEOUT_S = 1.0
_TRY_AGAIN_S = 30.0
_UNTAKEN_MS = 20_000
"""For a request that the node's machine does not acknowledge."""
_RECYCLED_FROM_BYTES = 256 << 10
"""A smaller message has memory of its own: malloc has that at hand, and a recycled buffer would have much too much."""


class Lanes:
    """Opens lanes to one node. Thread-safe.

    Args:
        host: by which gRPC reaches the node.
        ask: asks the node for a place, by gRPC; None where it has none to offer.
    """

    def __init__(self, host: str, ask: Callable[[], pb.OpenLaneResponse | None]) -> None:
        self._host = host
        self._ask = ask
        self._not_before_s: dict[str, float] = {}
        """When lanes are tried again: for sessions (""), and for calls of a method."""
        self.kind = "grpc"
        """What sessions go by: "unix", "tcp", or "grpc" where there is no lane."""

    def open(self, method: str = "") -> Lane | None:
        """For a session, or for calls of a method. None where there is no lane now."""
        if time.monotonic() < self._not_before_s.get(method, 0.0):
            return None
        lane = self._opened(method)
        if lane is None:
            self._not_before_s[method] = time.monotonic() + _TRY_AGAIN_S
            if not method:
                self.kind = "grpc"
        return lane

    def _opened(self, method: str) -> Lane | None:
        offer = self._ask()
        if offer is None or not offer.token or (method and method not in offer.method):
            return None
        for kind, connect in (("unix", self._by_unix), ("tcp", self._by_tcp)):
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
        """The abstract name of a node on another machine, or in another network namespace, is nobody's here."""
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
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNTAKEN_MS)
        return sock


class Lane:
    """A `Stream` whose user waits at the socket itself, and the `Call` of a session. Owns the socket.

    Raises OSError when it cannot be opened.
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

    def tell(self, message: bytes) -> None:
        try:
            self._socket.sendall(HEADER.pack(len(message), MESSAGE) + message)
        except OSError as error:
            raise EOFError(str(error)) from error

    def ask(self, message: bytes) -> bytes | memoryview:
        self.tell(message)
        return self.receive()

    def ask_in_parts(self, message: bytes, cut: Callable[[int], int]) -> tuple[bytes, bytes]:
        """As `ask`. `cut` says of an answer of so many bytes where its first part ends: each has memory of its own."""
        self.tell(message)
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
        """From any thread, and never waits: what the node does not take at once is sent by a thread of its own."""
        data: bytes | memoryview = HEADER.pack(len(message), MESSAGE) + message
        with self._lock:
            if not self._backlog and self._sender is None:
                try:
                    sent = self._socket.send(data, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    return  # whoever reads finds out
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
        """What comes, until the session has ended. Raises OSError, FrameError, and why the node has ended it."""
        try:
            while (message := self._message()) is not None:
                yield message
                del message  # it is others' now, and its buffer the next one's when they are done
        finally:
            self._socket.close()

    # -- receiving

    def _message(self) -> bytes | memoryview | None:
        """The next one; None when the node has ended the session between two."""
        size_bytes = self._header()
        if size_bytes is None:
            return None
        return self._exactly(size_bytes) if size_bytes < _RECYCLED_FROM_BYTES else self._recycled(size_bytes)

    def _recycled(self, size_bytes: int) -> memoryview:
        view = recycled.take(size_bytes)
        missing = view
        while missing:  # once, unless a signal or a time-out ends such a call early
            count = self._socket.recv_into(missing, 0, socket.MSG_WAITALL)
            if not count:
                raise ConnectionError("the lane broke in the middle of a message")
            missing = missing[count:]
        return view.toreadonly()

    def _header(self) -> int | None:
        """The size of the next message. Raises why the node has ended the session."""
        # One call where all is there, which it is unless the connection has broken.
        header = self._socket.recv(HEADER.size, socket.MSG_WAITALL)
        if len(header) < HEADER.size:
            if header and not self._ended:
                raise ConnectionError("the lane broke in the middle of a header")
            return None
        size_bytes, kind = HEADER.unpack(header)
        if size_bytes > MAX_RESPONSE_BYTES or kind not in (MESSAGE, FAILED):
            raise FrameError(f"a header of kind {kind} that announces {size_bytes:,} bytes")
        if kind == FAILED:
            told = objects_pb.Error.FromString(self._exactly(size_bytes))
            raise errors.from_node(told.kind, told.message)
        return int(size_bytes)

    def _exactly(self, size_bytes: int) -> bytes:
        data = self._socket.recv(size_bytes, socket.MSG_WAITALL) if size_bytes else b""
        if len(data) == size_bytes:
            return data
        parts = [data]  # a signal, or a time-out, ends such a call early
        missing = size_bytes - len(data)
        while missing and parts[-1]:
            parts.append(self._socket.recv(missing, socket.MSG_WAITALL))
            missing -= len(parts[-1])
        if missing:
            raise ConnectionError("the lane broke in the middle of a message")
        return b"".join(parts)
