"""Eviction order of one bucket's copies: S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for
cache eviction", SOSP 2023), with sizes in bytes.

New copies enter a small queue, which has a tenth of the bytes. Those that are read at least twice before they reach its
end move to the main queue; the others leave, and their hashes are remembered. A copy that comes back while it is
remembered enters the main queue at once. At the end of the main queue, a copy that was read stays for another round,
for up to three reads. So one pass over everything goes through the small queue, and what is read often stays.

Plain data in memory, about 150 bytes for a copy beside its name, and about 75 for one that is remembered: at most as
many as there are copies. Not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

NeededAt = Callable[[bytes, str], "int | None"]
"""The step at which a plan needs an object (the bucket's uuid, its name) next; None if no plan needs it."""
SMALL_SHARE = 10
"""The small queue has one part in this many of all bytes."""
MOST_READS = 3
PROMOTED_READS = 2
LOOKED_AT = 10_000
"""Number of copies that one call looks at, so that others wait for it some milliseconds at most."""
_MAIN, _READ, _READS, _SIZE_SHIFT = 1, 2, MOST_READS << 1, 3
"""An entry is one number, which takes less memory than an object: the queue, the reads, and the size above them."""


class EvictionOrder:
    """
    Args:
        needed_at: None if there are no plans.
    """

    def __init__(self, bucket_uuid: bytes, needed_at: NeededAt | None = None) -> None:
        self._bucket_uuid = bucket_uuid
        self._needed_at = needed_at
        self._entries: dict[str, int] = {}
        self._small: deque[str] = deque()
        self._main: deque[str] = deque()
        """Both may have names that were removed, or are in the other queue: these are skipped at the end."""
        self._ghosts: dict[int, None] = {}
        self._ghost_queue: deque[int] = deque()
        self.size_bytes = 0
        """Bytes of all copies."""
        self._small_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def add(self, name: str, size_bytes: int) -> None:
        """Add a copy, or set the size of one that is known."""
        known = self._entries.get(name)
        if known is not None:
            self._entries[name] = size_bytes << _SIZE_SHIFT | known & (_READS | _MAIN)
            grown = size_bytes - (known >> _SIZE_SHIFT)
            self.size_bytes += grown
            self._small_bytes += 0 if known & _MAIN else grown
            return
        in_main = self._ghosts.pop(hash(name), False) is None
        self._enter(name, size_bytes, in_main=in_main)
        self.size_bytes += size_bytes
        if len(self._small) + len(self._main) > 2 * len(self._entries) + 1000:
            self._compact()

    def _enter(self, name: str, size_bytes: int, *, in_main: bool) -> None:
        self._entries[name] = size_bytes << _SIZE_SHIFT | (_MAIN if in_main else 0)
        (self._main if in_main else self._small).append(name)
        if not in_main:
            self._small_bytes += size_bytes

    def note_read(self, name: str) -> None:
        """Note that a copy was read. Ignores an unknown name."""
        known = self._entries.get(name)
        if known is not None and known & _READS != _READS:
            self._entries[name] = known + _READ

    def remove(self, name: str) -> None:
        """Remove a copy that is no longer stored. Ignores an unknown name."""
        known = self._entries.pop(name, None)
        if known is not None:
            self.size_bytes -= known >> _SIZE_SHIFT
            if not known & _MAIN:
                self._small_bytes -= known >> _SIZE_SHIFT

    def take(self, size_bytes: int, may_go: Callable[[str], bool] = lambda name: True) -> list[tuple[str, int]]:
        """Choose and remove victims with at least this many bytes together, if there are enough; return their names and
        sizes in order.

        First come those that no plan needs, then those that a plan needs last. Returns fewer if it has looked at
        `LOOKED_AT` copies: it can be called again.

        Args:
            may_go: Whether a copy may be evicted now.
        """
        victims: list[tuple[str, int]] = []
        needed: dict[str, int] = {}
        kept = [0, 0]  # copies of each queue that had to stay, one after another: all of it, if as many as it has
        for _ in range(LOOKED_AT):
            in_main = self._queue_due(kept)
            if size_bytes <= 0 or in_main is None:
                break
            queue = self._main if in_main else self._small
            name = queue.popleft()
            known = self._entries.get(name)
            if known is None or bool(known & _MAIN) != in_main:
                continue  # it was removed, or is in the other queue
            step = self._needed_at(self._bucket_uuid, name) if self._needed_at is not None else None
            if not may_go(name):
                queue.append(name)
                kept[in_main] += 1
            elif step is not None:
                needed[name] = step
                queue.append(name)
                kept[in_main] += 1
            elif self._reads_on(name):
                kept[True] = 0
            else:
                victims.append(self._take(name))
                size_bytes -= victims[-1][1]
        for name in sorted(needed, key=lambda name: -needed[name]):
            if size_bytes <= 0:
                break
            victims.append(self._take(name))
            size_bytes -= victims[-1][1]
        return victims

    def _queue_due(self, kept: list[int]) -> bool | None:
        """Return whether the next victim comes from the main queue; None if all copies have to stay."""
        main_first = self._small_bytes * SMALL_SHARE < self.size_bytes
        for in_main in (main_first, not main_first):
            if kept[in_main] < len(self._main if in_main else self._small):
                return in_main
        return None

    def _reads_on(self, name: str) -> bool:
        """Whether a copy has been read often enough to stay for another round, which begins."""
        known = self._entries[name]
        if known & _MAIN:
            if known & _READS:
                self._entries[name] = known - _READ
                self._main.append(name)
                return True
            return False
        if known & _READS >= PROMOTED_READS * _READ:
            self._small_bytes -= known >> _SIZE_SHIFT
            self._enter(name, known >> _SIZE_SHIFT, in_main=True)
            return True
        return False

    def _take(self, name: str) -> tuple[str, int]:
        known = self._entries[name]
        self.remove(name)
        if not known & _MAIN:
            self._remember(name)
        return name, known >> _SIZE_SHIFT

    def _remember(self, name: str) -> None:
        number = hash(name)
        if number not in self._ghosts:
            self._ghosts[number] = None
            self._ghost_queue.append(number)
        while len(self._ghost_queue) > len(self._entries) + 1:
            self._ghosts.pop(self._ghost_queue.popleft(), None)

    def _compact(self) -> None:
        """Remove names from the queues that are not in them any more."""
        for queue, flag in ((self._small, 0), (self._main, _MAIN)):
            names = dict.fromkeys(queue)
            queue.clear()
            queue.extend(name for name in names if name in self._entries and self._entries[name] & _MAIN == flag)
