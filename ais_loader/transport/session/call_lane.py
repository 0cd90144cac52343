"""Call lanes at the client: lanes that carry gRPC methods with one answer, one call after another.

Idle lanes are kept for the next call, like connections. A lane on which a call failed is closed: a node or client that
stops in the middle of a call ends the connection.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from ais_loader import errors
from ais_loader.transport.session.lane import Lane, Lanes
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import CALL, FAILED, HEADER, LAST, MAX_RESPONSE_BYTES, MESSAGE, REFUSED

PUT = "Objects/Put"
SILENCE_TIMEOUT_S = 60.0
"""Longest time for a node to accept any bytes, and to answer."""
_MAX_IDLE = 16
_BUFFER_BYTES = 64 << 10
_SEND_BUFFER_BYTES = 4 << 20

Buffer = bytes | bytearray | memoryview


class CallLanes:
    """Call lanes of one connection to a node. Thread-safe. `lanes`: None disables them."""

    def __init__(self, lanes: Lanes | None) -> None:
        self._lanes = lanes
        self._lock = threading.Lock()
        self._idle: list[CallLane] = []  # guarded by _lock
        self._all: set[CallLane] = set()  # guarded by _lock
        self._closed = False  # guarded by _lock

    def take(self, method: str) -> CallLane | None:
        """Take a lane for exclusive use; the caller returns or closes it. Returns None if there is none."""
        if self._lanes is None:
            return None
        while True:
            with self._lock:
                if not self._idle:
                    break
                lane = self._idle.pop()
            if not lane.is_readable:
                return lane
            lane.close()
        opened = self._lanes.open(method)
        if opened is None:
            return None
        lane = CallLane(opened, self)
        with self._lock:
            if not self._closed:
                self._all.add(lane)
                return lane
        lane.close()
        return None

    def release(self, lane: CallLane) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(lane)
                return
        lane.close()

    def forget(self, lane: CallLane) -> None:
        with self._lock:
            self._all.discard(lane)

    def close(self) -> None:
        """Close all lanes; running calls break."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            in_use = self._all.difference(idle)
        for lane in in_use:
            lane.cancel()  # its user closes it
        for lane in idle:
            lane.close()


class CallLane:
    """A lane for calls. Belongs to the caller that took it."""

    def __init__(self, lane: Lane, lanes: CallLanes) -> None:
        self._lane = lane
        self._lanes = lanes
        self._socket = lane.socket
        if self._socket.family == socket.AF_UNIX:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._socket.settimeout(SILENCE_TIMEOUT_S)  # for each wait
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    @property
    def is_readable(self) -> bool:
        """Whether the node has answered a call; without one, whether it has ended the lane."""
        return bool(self._readable.poll(0))

    def call(self, method: str, failed: Callable[[Exception], errors.LoaderError]) -> LaneCall:
        """Begin a call. `failed` translates the error of a broken connection."""
        return LaneCall(self, self._socket, method, failed)

    def release(self) -> None:
        self._lanes.release(self)

    def cancel(self) -> None:
        """End the lane, from any thread: a thread that sends or receives on it gets an error."""
        self._lane.cancel()

    def close(self) -> None:
        self._lanes.forget(self)
        self._lane.close()


class LaneCall:
    """A running call, used as a context manager. Leaving the block with an error ends the connection.

    All methods raise LoaderError.
    """

    def __init__(
        self, lane: CallLane, sock: socket.socket, method: str, failed: Callable[[Exception], errors.LoaderError]
    ) -> None:
        self._lane = lane
        self._socket = sock
        self._failed = failed
        name = method.encode()
        self._held = HEADER.pack(len(name), CALL) + name
        """Bytes to be sent with the next message."""
        self._over = False

    @property
    def is_answered(self) -> bool:
        """Whether the node has answered before it received everything."""
        return self._lane.is_readable

    def send(self, message: Buffer, kind: int = MESSAGE, *, more: bool = False) -> None:
        """Send a message. `more`: another one follows at once, and small messages may be sent together with it."""
        header = self._held + HEADER.pack(len(message), kind)
        # Bounded together: without that, many small messages would be copied once for each that follows.
        if more and len(header) + len(message) <= _BUFFER_BYTES:
            self._held = header + message
            return
        self._held = b""
        try:
            sent = self._socket.sendmsg((header, message)) - len(header)
            if sent < 0:
                self._socket.sendall(header[sent:])
                sent = 0
            if sent < len(message):
                self._socket.sendall(memoryview(message)[sent:])
        except TimeoutError as error:
            raise errors.SilenceTimeout(f"the node took nothing for {SILENCE_TIMEOUT_S:g} s") from error
        except OSError as error:
            if self._lane.is_readable:
                self.answer()  # raises the reason, if the node has sent one
            raise self._failed(error) from error

    def answer(self) -> bytes:
        """Receive an answer. The call has ended then."""
        try:
            size_bytes, kind = HEADER.unpack(self._exactly(HEADER.size))
            if size_bytes > MAX_RESPONSE_BYTES or kind not in (MESSAGE, LAST, FAILED, REFUSED):
                raise ConnectionError(f"a header of kind {kind} that announces {size_bytes:,} bytes")
            message = self._exactly(size_bytes)
        except TimeoutError as error:
            raise errors.SilenceTimeout(f"the node said nothing for {SILENCE_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise self._failed(error) from error
        self._over = kind in (MESSAGE, REFUSED)
        if kind in (FAILED, REFUSED):
            refusal = pb.Error.FromString(message)
            raise errors.from_node(refusal.kind, refusal.message)
        return message

    def _exactly(self, size_bytes: int) -> bytes:
        parts: list[bytes] = []
        while size_bytes:
            parts.append(self._socket.recv(size_bytes))
            if not parts[-1]:
                raise ConnectionError("the node has ended the lane")
            size_bytes -= len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __enter__(self) -> LaneCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._over:
            self._lane.release()
        else:
            self._lane.close()
