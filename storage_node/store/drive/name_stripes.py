"""Lock striping by name: two changes of one object never run at once, changes of different ones nearly always may."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence

import xxhash


class Stripes:
    """Taken in one order by everybody, so that nobody waits in a circle."""

    def __init__(self, count: int = 64) -> None:
        self._locks = [threading.Lock() for _ in range(count)]

    def of(self, keys: Sequence[bytes]) -> contextlib.AbstractContextManager[object]:
        """Holds the stripes of these keys from when it is entered, or from now on, until it is left."""
        if len(keys) == 1:
            return self._locks[xxhash.xxh3_64_intdigest(keys[0]) % len(self._locks)]
        return self._hold(sorted({xxhash.xxh3_64_intdigest(key) % len(self._locks) for key in keys}))

    def all(self) -> contextlib.ExitStack:
        return self._hold(range(len(self._locks)))

    def _hold(self, numbers: Iterable[int]) -> contextlib.ExitStack:
        with contextlib.ExitStack() as held:
            for number in numbers:
                held.enter_context(self._locks[number])
            return held.pop_all()
