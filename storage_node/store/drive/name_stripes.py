"""Lock striping by name: changes of one object run one at a time; those of different ones nearly always in parallel."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence

import xxhash


class Stripes:
    """Locks that are always acquired in one order, which prevents deadlocks."""

    def __init__(self, count: int = 64) -> None:
        self._locks = [threading.Lock() for _ in range(count)]

    def of(self, keys: Sequence[bytes]) -> contextlib.AbstractContextManager[object]:
        """Return a context that holds the stripes of these keys until it is left. They are acquired at the latest on
        entering."""
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
