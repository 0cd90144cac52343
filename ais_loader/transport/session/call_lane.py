"""Call lanes at the client: lanes that carry calls with one answer of gRPC's methods, one after another.

They are kept for the next call, as connections are. A lane on which anything has gone wrong is not: whoever broke off
in the middle of a call ends the connection.
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
"""For a node to take anything of what is sent to it, and to answer."""
_KEPT = 16
_HELD_BYTES = 64 << 10
_SEND_BUFFER_BYTES = 4 << 20

Buffer = bytes | bytearray | memoryview


class CallLanes:
    """Those of one connection to a node. Thread-safe. `lanes`: None where none are to be opened."""

    def __init__(self, lanes: Lanes | None) -> None:
        self._lanes = lanes
        self._lock = threading.Lock()
        self._idle: list[CallLane] = []  # guarded by _lock
        self._all: set[CallLane] = set()  # guarded by _lock
        self._closed = False  # guarded by _lock

    def take(self, method: str) -> CallLane | None:
        """One that nobody else uses; its user gives it back, or closes it. None where there is none."""
        if self._lanes is None:
            return None
        while True:
            with self._lock:
                if not self._idle:
                    break
                lane = self._idle.pop()
            if not lane.has_ended:
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

    def give_back(self, lane: CallLane) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _KEPT:
                self._idle.append(lane)
                return
        lane.close()

    def forget(self, lane: CallLane) -> None:
        with self._lock:
            self._all.discard(lane)

    def close(self) -> None:
        """Calls under way break."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            in_use = self._all.difference(idle)
        for lane in in_use:
            lane.cancel()  # and its user closes it
        for lane in idle:
            lane.close()


class CallLane:
    """Belongs to whoever has taken it."""

    def __init__(self, lane: Lane, lanes: CallLanes) -> None:
        self._lane = lane
        self._lanes = lanes
        self._socket = lane.socket
        if self._socket.family == socket.AF_UNIX:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._socket.settimeout(SILENCE_TIMEOUT_S)  # of each wait
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)

    @property
    def has_ended(self) -> bool:
        """Of one without a call: whether the node has ended it."""
        return self.is_readable

    @property
    def is_readable(self) -> bool:
        return bool(self._readable.poll(0))

    def call(self, method: str, failed: Callable[[Exception], errors.LoaderError]) -> LaneCall:
        """Begin a call. `failed`: the error of a connection that breaks."""
        return LaneCall(self, self._socket, method, failed)

    def give_back(self) -> None:
        self._lanes.give_back(self)

    def cancel(self) -> None:
        """From any thread: whoever sends or receives finds out."""
        self._lane.cancel()

    def close(self) -> None:
        self._lanes.forget(self)
        self._lane.close()


class LaneCall:
    """A call under way. Used as a context manager: left with an error, it ends the connection.

    Everything raises LoaderError.
    """

    def __init__(
        self, lane: CallLane, sock: socket.socket, method: str, failed: Callable[[Exception], errors.LoaderError]
    ) -> None:
        self._lane = lane
        self._socket = sock
        self._failed = failed
        name = method.encode()
        self._held = HEADER.pack(len(name), CALL) + name
        """What leaves with the next message."""
        self._over = False

    @property
    def is_answered(self) -> bool:
        """Whether the node has said something before it has heard all."""
        return self._lane.is_readable

    def send(self, message: Buffer, kind: int = MESSAGE, *, more: bool = False) -> None:
        """`more`: another one follows at once, and if this one is small it may leave with that."""
        header = self._held + HEADER.pack(len(message), kind)
        if more and len(message) <= _HELD_BYTES:
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
                self.answer()  # raises why, if the node has said so
            raise self._failed(error) from error

    def answer(self) -> bytes:
        """The call is over then."""
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
            told = pb.Error.FromString(message)
            raise errors.from_node(told.kind, told.message)
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
            self._lane.give_back()
        else:
            self._lane.close()
