"""Object bytes that a reader thread receives directly from the socket while it writes them.

They need no buffer of their size, the next bytes arrive while a piece is written, and a small object costs one switch
to a thread. A reader thread waits for a client for 10 ms at most, and only a limited number of threads wait at the same
time. Bytes that arrive later are received by the event loop.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ais_loader.wire.lane import HEADER, LAST

PIECE_BYTES = 256 << 10
"""Size of the pieces that are written and checksummed at once."""
WAIT_S = 0.01
"""Total time that a thread may wait for the bytes of one object; others need the thread as well."""
_MAX_ENDING_BYTES = 64 << 10
_of_thread = threading.local()


class SocketPayload:
    """A substitute for a PutRequest with data, whose bytes are received with `each`. Belongs to one thread at a time.

    Args:
        sock: Non-blocking socket, from which nothing else reads meanwhile.
        received: Bytes that have been received already, of this object and of what follows; consumed bytes are removed.
        size_bytes: Size of the object.
        last: Parses the last message of the call. It is called for no other message.
        waits: Limits the number of threads that wait for clients at the same time. At the limit, a thread takes only
            what has arrived.
    """

    __slots__ = ("_last", "_received", "_socket", "_wait_s", "_waits", "left_bytes", "was_late")

    def __init__(
        self,
        sock: socket.socket,
        received: bytearray,
        size_bytes: int,
        last: Callable[[bytes], Any],
        waits: threading.Semaphore,
    ) -> None:
        self._socket = sock
        self._received = received
        self._last = last
        self._waits = waits
        self._wait_s = WAIT_S
        self.was_late = False
        """Whether a thread has waited for bytes that did not arrive in time."""
        self.left_bytes = size_bytes
        """Number of bytes that `each` has not passed on."""

    def WhichOneof(self, group: str) -> str:
        return "data"

    def HasField(self, name: str) -> bool:
        return name == "data"

    def each(self, write: Callable[[memoryview], None]) -> Any | None:
        """Pass on the bytes in pieces, as long as they keep arriving. Each piece is a view that is valid until the next
        one.

        Returns the last message of the call if all bytes have been passed on and it follows at once; otherwise None.
        Raises what `write` raises, and InvalidRequest.
        """
        room = _room()
        self._wait_s = WAIT_S
        while self.left_bytes:
            wanted = min(self.left_bytes, len(room))
            filled = self._copy_received(room, wanted)
            while filled < wanted and (count := self._receive_into(room[filled:wanted])):
                filled += count
            self.left_bytes -= filled
            if filled:
                write(room[:filled])
            if filled < wanted:
                return None
        return self._ending()

    def _copy_received(self, room: memoryview, wanted: int) -> int:
        """Copy from the bytes that have been received already."""
        count = min(wanted, len(self._received))
        if count:
            room[:count] = memoryview(self._received)[:count]
            del self._received[:count]
        return count

    def _receive_into(self, room: memoryview) -> int:
        """Return the number of received bytes; 0 if none are available now or at all. The event loop, which then waits
        for them, finds out which."""
        try:
            return self._socket.recv_into(room)
        except BlockingIOError:
            pass
        except OSError:
            return 0
        if not self._wait_readable():
            return 0
        try:
            return self._socket.recv_into(room)
        except OSError:
            return 0

    def _wait_readable(self) -> bool:
        """Return whether bytes have arrived, waiting for the rest of the permitted time."""
        if self._wait_s <= 0:
            self.was_late = True
            return False
        if not self._waits.acquire(blocking=False):
            return False
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            began_s = time.monotonic()
            is_readable = bool(poll.poll(math.ceil(self._wait_s * 1000)))
        finally:
            self._waits.release()
        self._wait_s -= time.monotonic() - began_s
        self.was_late = self.was_late or not is_readable
        return is_readable

    def _ending(self) -> Any | None:
        if not self._has(HEADER.size):
            return None
        size_bytes, kind = HEADER.unpack_from(self._received)
        if kind != LAST or not 0 < size_bytes <= _MAX_ENDING_BYTES or not self._has(HEADER.size + size_bytes):
            return None
        message = bytes(memoryview(self._received)[HEADER.size : HEADER.size + size_bytes])
        del self._received[: HEADER.size + size_bytes]
        return self._last(message)

    def _has(self, size_bytes: int) -> bool:
        """Return whether `size_bytes` have been received."""
        while (missing := size_bytes - len(self._received)) > 0:
            part = memoryview(bytearray(missing))
            if not (count := self._receive_into(part)):
                return False
            self._received += part[:count]
        return True


def _room() -> memoryview:
    """Return a buffer that all calls on one thread share."""
    room: memoryview | None = getattr(_of_thread, "room", None)
    if room is None:
        room = _of_thread.room = memoryview(bytearray(PIECE_BYTES))
    return room
