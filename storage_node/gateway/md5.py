"""MD5 of bodies that arrive at the same time, computed side by side.

Each step of an MD5 waits for the one before, so that a single one leaves most of a core idle: eight take the time of
one. Threads that update a body while another thread does so give their bytes to that thread. Without the native module,
or on a processor that it cannot use, hashlib computes each alone.
"""

from __future__ import annotations

import hashlib
import struct
import threading
from collections import deque
from collections.abc import Iterable

try:
    from storage_node.store._native import MD5_LANES as LANES
    from storage_node.store._native import md5_advance
except ImportError:
    LANES = 0

_STATE = struct.Struct("<4IQ64s")
"""Words of the digest, size of what was hashed, and the bytes of its last, incomplete block."""
_BEGINNING = _STATE.pack(0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0, b"")
_BLOCK_BYTES = 64
_STEP_BYTES = 128 << 10
"""Bytes by which a body advances before others may join."""
_ALONE_BYTES = 64 << 10
"""Largest update that does not wait for others."""


class _Update:
    """Bytes that a thread waits for to be hashed."""

    def __init__(self, state: bytearray, pieces: list[bytes]) -> None:
        self._state = state
        self._left = deque(memoryview(piece) for piece in pieces)
        self.turn = threading.Lock()
        """Released when the thread that waits has to go on."""
        self.turn.acquire()
        self.error: Exception | None = None

    @property
    def is_done(self) -> bool:
        return not self._left

    def step(self) -> tuple[bytearray, tuple[memoryview, ...]]:
        """Return the next bytes to be hashed."""
        taken: list[memoryview] = []
        room = _STEP_BYTES
        while self._left and room:
            piece = self._left.popleft()
            taken.append(piece[:room])
            if len(piece) > room:
                self._left.appendleft(piece[room:])
            room -= len(taken[-1])
        return self._state, tuple(taken)


class _Together:
    """Runs the updates of all threads. One of the threads that wait does the work of all, until its own is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._updates: list[_Update] = []  # guarded by _lock
        """Updates that are not done. The thread of the first one works."""

    def run(self, update: _Update) -> None:
        with self._lock:
            self._updates.append(update)
            is_first = len(self._updates) == 1
        if not is_first:
            update.turn.acquire()
        while not update.is_done and update.error is None:
            with self._lock:
                together = self._updates[:LANES]
            try:
                md5_advance([one.step() for one in together])
            except Exception as error:  # noqa: BLE001 - raised by each of the threads that wait
                for one in together:
                    one.error = error
            self._let_go(update, together)
        if update.error is not None:
            raise update.error

    def _let_go(self, update: _Update, together: list[_Update]) -> None:
        """Have the threads go on whose updates are done, and another one work if this one's update is."""
        ended = [one for one in together if one.is_done or one.error is not None]
        with self._lock:
            self._updates = [one for one in self._updates if one not in ended]
            following = self._updates[0] if update in ended and self._updates else None
        for one in ended:
            if one is not update:
                one.turn.release()
        if following is not None:
            following.turn.release()


_together = _Together()


class Md5:
    """MD5 of bytes that arrive in pieces. Belongs to one thread at a time."""

    def __init__(self) -> None:
        self._alone = None if LANES else hashlib.md5(usedforsecurity=False)
        self._state = bytearray(_BEGINNING)

    def update(self, pieces: Iterable[bytes]) -> None:
        """Append bytes."""
        pieces = [piece for piece in pieces if piece]
        if self._alone is not None:
            for piece in pieces:
                self._alone.update(piece)
        elif sum(map(len, pieces)) <= _ALONE_BYTES:
            md5_advance([(self._state, tuple(pieces))])
        else:
            _together.run(_Update(self._state, pieces))

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""
        if self._alone is not None:
            return self._alone.hexdigest()
        state = bytearray(self._state)
        size_bytes: int = _STATE.unpack(state)[4]
        # A one, and zeros, until the size in bits ends a block.
        padding = b"\x80" + bytes((_BLOCK_BYTES - 9 - size_bytes) % _BLOCK_BYTES)
        md5_advance([(state, (padding, struct.pack("<Q", 8 * size_bytes % 2**64)))])
        return state[:16].hex()
