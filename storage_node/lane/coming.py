"""Bytes of an object that are still on their way: a thread that writes them takes them straight from the socket.

So they are in no buffer that is as large as they, what follows comes in while a piece is written, and a small object
costs one visit to a thread. A reader thread waits for a client for 10 ms at most, and only a few of the threads wait at
the same time. The event loop receives what comes later than that.
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
"""As are written and checked at once."""
WAIT_S = 0.01
"""That all of an object's bytes may be waited for, together: others need the thread, too."""
_MAX_ENDING_BYTES = 64 << 10
_of_thread = threading.local()


class ComingBytes:
    """As a PutRequest with data, whose bytes are to be taken by `each`. Belongs to one thread at a time.

    Args:
        sock: non-blocking; nobody else reads from it meanwhile.
        received: what has come already, of the bytes and of what follows; what is taken is removed.
        size_bytes: how many there will be.
        last: makes the last message of the call of its bytes. It is told of no other.
        waits: how many threads may wait for clients at the same time. If no more may, a thread takes only what has
            arrived.
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
        """Whether a thread has waited for them in vain."""
        self.left_bytes = size_bytes
        """That `each` has not taken."""

    def WhichOneof(self, group: str) -> str:
        return "data"

    def HasField(self, name: str) -> bool:
        return name == "data"

    def each(self, write: Callable[[memoryview], None]) -> Any | None:
        """Hand on the bytes in pieces, which are views that are good until the next one, as long as they keep coming.

        Returns the last message of the call, where all have been taken and that follows at once; else None. Raises what
        `write` raises, and InvalidRequest.
        """
        room = _room()
        self._wait_s = WAIT_S
        while self.left_bytes:
            wanted = min(self.left_bytes, len(room))
            filled = self._begin(room, wanted)
            while filled < wanted and (count := self._receive_into(room[filled:wanted])):
                filled += count
            self.left_bytes -= filled
            if filled:
                write(room[:filled])
            if filled < wanted:
                return None
        return self._ending()

    def _begin(self, room: memoryview, wanted: int) -> int:
        """Of what has been received already."""
        count = min(wanted, len(self._received))
        if count:
            room[:count] = memoryview(self._received)[:count]
            del self._received[:count]
        return count

    def _receive_into(self, room: memoryview) -> int:
        """How many bytes; 0 where none come for now, or ever: whoever waits for them finds out which."""
        try:
            return self._socket.recv_into(room)
        except BlockingIOError:
            pass
        except OSError:
            return 0
        if not self._has_come():
            return 0
        try:
            return self._socket.recv_into(room)
        except OSError:
            return 0

    def _has_come(self) -> bool:
        """Whether anything has, after waiting for as long as may still be waited."""
        if self._wait_s <= 0:
            self.was_late = True
            return False
        if not self._waits.acquire(blocking=False):
            return False
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            began_s = time.monotonic()
            come = bool(poll.poll(math.ceil(self._wait_s * 1000)))
        finally:
            self._waits.release()
        self._wait_s -= time.monotonic() - began_s
        self.was_late = self.was_late or not come
        return come

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
        """Whether so much has been received."""
        while (missing := size_bytes - len(self._received)) > 0:
            part = memoryview(bytearray(missing))
            if not (count := self._receive_into(part)):
                return False
            self._received += part[:count]
        return True


def _room() -> memoryview:
    """The same for all that one thread takes."""
    room: memoryview | None = getattr(_of_thread, "room", None)
    if room is None:
        room = _of_thread.room = memoryview(bytearray(PIECE_BYTES))
    return room
