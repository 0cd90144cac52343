"""Eviction order of one bucket's copies: S3-FIFO (Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for
cache eviction", SOSP 2023), with sizes in bytes.

New copies enter a small queue, which has a tenth of the bytes. Those that are read at least twice before they reach its
end move to the main queue; the others leave, and their hashes are remembered. A copy that comes back while it is
remembered enters the main queue at once. At the end of the main queue, a copy that was read stays for another round,
for up to three reads. So one pass over everything goes through the small queue, and what is read often stays.

Plans know more. A loader reads each object once in an epoch, in an order that is new each time. What it has *passed*
is therefore needed later than all that it has not reached yet, and goes first, the last one first: then the same copies
stay, and each of them is read once per epoch. LRU would evict every copy shortly before it is needed. Copies that have
not been read during a whole pass go before those; they are of data that nobody trains on any more.

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
_MAIN, _READ, _READS, _PASSED, _PASS_SHIFT, _SIZE_SHIFT = 1, 2, MOST_READS << 1, 8, 4, 20
_PASSES = (1 << _SIZE_SHIFT - _PASS_SHIFT) - 1
"""An entry is one number, which takes less memory than an object: the queue, the reads, whether it was passed, the pass
in which it was last used (counted modulo `_PASSES`), and the size above them."""


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
        self._passed: list[str] = []
        """May have names twice, and names that were removed or needed again."""
        self._passes = self._over = 0
        """Number of passes that have begun, and the number of the last one that was over."""
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
            self._entries[name] = size_bytes << _SIZE_SHIFT | known & ((1 << _SIZE_SHIFT) - 1)
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
        self._entries[name] = size_bytes << _SIZE_SHIFT | self._used() | (_MAIN if in_main else 0)
        (self._main if in_main else self._small).append(name)
        if not in_main:
            self._small_bytes += size_bytes

    def note_read(self, name: str) -> None:
        """Note that a copy was read. Ignores an unknown name."""
        known = self._entries.get(name)
        if known is not None:
            known += _READ if known & _READS != _READS else 0
            self._entries[name] = known & ~(_PASSES << _PASS_SHIFT) | self._used()

    # -- passes of loaders

    def begin_pass(self) -> int:
        """Note that a loader begins an epoch; return the number of its pass."""
        self._passes += 1
        return self._passes

    def end_pass(self, number: int) -> None:
        """Note that the loader has ended its epoch."""
        self._over = max(self._over, number)

    def note_passed(self, name: str) -> None:
        """Note that a loader has read a copy, and is past it. Ignores an unknown name."""
        known = self._entries.get(name)
        if known is None:
            return
        self._entries[name] = known & ~(_PASSES << _PASS_SHIFT) | self._used() | _PASSED
        self._passed.append(name)
        if len(self._passed) > 2 * len(self._entries) + 1000:
            latest = dict.fromkeys(reversed(self._passed))
            self._passed = [name for name in reversed(latest) if self._entries.get(name, 0) & _PASSED]

    def _used(self) -> int:
        return (self._passes & _PASSES) << _PASS_SHIFT

    def _is_left_over(self, known: int) -> bool:
        """Whether a copy was last used before the last pass that is over had begun."""
        used = self._passes - ((self._passes - (known >> _PASS_SHIFT)) & _PASSES)
        return used < self._over

    # -- victims

    def remove(self, name: str) -> None:
        """Remove a copy that is no longer stored. Ignores an unknown name."""
        known = self._entries.pop(name, None)
        if known is not None:
            self.size_bytes -= known >> _SIZE_SHIFT
            if not known & _MAIN:
                self._small_bytes -= known >> _SIZE_SHIFT

    def take(
        self, size_bytes: int, may_go: Callable[[str], bool] = lambda name: True, *, spare_needed: bool = False
    ) -> list[tuple[str, int]]:
        """Choose and remove victims with at least this many bytes together, if there are enough; return their names and
        sizes in order.

        First come those that no plan needs, then those that a plan needs last. Returns fewer if it has looked at
        `LOOKED_AT` copies: it can be called again.

        Args:
            may_go: Whether a copy may be evicted now.
            spare_needed: Whether those stay that a plan needs.
        """
        victims = self._take_passed(size_bytes, may_go)
        size_bytes -= sum(size for _, size in victims)
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
            step = self._needs(name)
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
            if size_bytes <= 0 or spare_needed:
                break
            victims.append(self._take(name))
            size_bytes -= victims[-1][1]
        return victims

    def _take_passed(self, size_bytes: int, may_go: Callable[[str], bool]) -> list[tuple[str, int]]:
        """Take what is left over from earlier passes, as far as the queues begin with it, then what loaders have
        passed."""
        victims: list[tuple[str, int]] = []
        for queue in (self._main, self._small) if self._over else ():
            while size_bytes > 0 and queue and len(victims) < LOOKED_AT:
                known = self._entries.get(queue[0])
                if known is not None:
                    if not self._is_left_over(known) or self._needs(queue[0]) is not None or not may_go(queue[0]):
                        break
                    victims.append(self._take(queue[0]))
                    size_bytes -= victims[-1][1]
                queue.popleft()
        kept: list[str] = []
        while size_bytes > 0 and self._passed and len(kept) + len(victims) < LOOKED_AT:
            name = self._passed.pop()
            if not self._entries.get(name, 0) & _PASSED:
                continue
            if not may_go(name) or self._needs(name) is not None:
                kept.append(name)
                continue
            victims.append(self._take(name))
            size_bytes -= victims[-1][1]
        self._passed += reversed(kept)
        return victims

    def _needs(self, name: str) -> int | None:
        return self._needed_at(self._bucket_uuid, name) if self._needed_at is not None else None

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
