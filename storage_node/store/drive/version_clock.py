"""Version clock of a store: a hybrid logical clock that issues the counters of versions and the cuts of snapshots.

A number consists of the wall clock's milliseconds since 1970 and 16 bits that count within a millisecond (Kulkarni et
al., "Logical Physical Clocks", 2014). It never runs backwards, whatever the wall clock does: the next number is above
all that were issued here or heard of from others, and at least that of the wall clock. Numbers of nodes that
communicate are therefore ordered by causality, and those of other nodes by time.

Numbers that were issued or heard of survive every crash. Each drive of the store has a limit that no number has reached
yet. Before a number reaches it, the limit is moved to one second from now, so that a number rarely costs a write. A
store that was not closed cleanly begins at the limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ais_loader.errors import InvalidRequest, LoaderError, StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch

LOGICAL_BITS = 16
MAX_COUNTER = (1 << 62) - 1
"""In the year 4200. All fields that hold counters have room above it, so that adding one never overflows."""
MAX_EPOCH = (1 << 31) - 1
"""Maximum epoch in versions from other nodes. Rebuilding a catalog uses one above the highest that it finds."""
RESERVED_MS = 1000
_RESERVED_AHEAD = 1 << LOGICAL_BITS
"""Reserved when the clock is ahead of the wall clock, so that repeated crashes add little."""
MAX_OFFSET_MS = 60_000
LAST_MS = 250_000_000_000_000
"""The last time that is shown, in the year 9892."""


def machine_ms() -> int:
    """Return milliseconds since 1970, by this machine's wall clock."""
    return time.time_ns() // 1_000_000


def shown(time_ms: int) -> str:
    """Format a time in UTC, for people."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=max(0, min(time_ms, LAST_MS)))
    return moment.isoformat(sep=" ", timespec="milliseconds")


def advice(most_ms: int) -> str:
    """Return advice on two clocks that differ too much."""
    return f"they may differ by {most_ms / 1000:g} s: set them right (NTP), or raise max_clock_offset_s on all nodes"


def at_ms(time_ms: int) -> int:
    """Return the first number of this millisecond."""
    return time_ms << LOGICAL_BITS


def ms_of(counter: int) -> int:
    return counter >> LOGICAL_BITS


def check_counter(counter: int, what: str) -> int:
    """Check a number from the wire or a file. Raises InvalidRequest."""
    if not 0 <= counter <= MAX_COUNTER:
        raise InvalidRequest(
            f"{what} {counter} is not between 0 and {MAX_COUNTER}: no version clock gives such a number"
        )
    return counter


class VersionClock:
    """Version clock of one store that is open for writing; its drives share it. Thread-safe."""

    def __init__(self, wall_ms: Callable[[], int] | None = None) -> None:
        """`wall_ms` returns milliseconds since 1970; None for this machine's clock."""
        self.wall_ms = wall_ms or machine_ms
        self.max_offset_ms = MAX_OFFSET_MS
        """Maximum offset between the clocks of nodes."""
        self._lock = threading.Lock()
        self._drives: list[Catalog] = []  # what follows is guarded by _lock
        self._next = 1
        self._limit = 0
        self._begins_at_limit = False

    @property
    def highest(self) -> int:
        """The highest number that was issued or heard of."""
        return self._next - 1

    @property
    def ahead_ms(self) -> int:
        """Number of milliseconds by which the clock is ahead of the wall clock; 0 while it follows that."""
        return max(0, ms_of(self.highest) - self.wall_ms())

    def believes(self, number: int, wall_ms: int = 0) -> bool:
        """Whether another node may issue this number now: it is within the allowed offset, or not caused by the node's
        clock.

        `wall_ms` is the other node's wall clock. If that is right, the number is above one that the node had to accept.
        """
        own_ms = self.wall_ms()
        if ms_of(number) <= max(own_ms, ms_of(self.highest)) + self.max_offset_ms:
            return True
        return wall_ms > 0 and abs(wall_ms - own_ms) <= self.max_offset_ms

    def take(self, count: int = 1) -> int:
        """Issue `count` consecutive numbers above all earlier ones. Returns the first.

        Raises DriveFailed, DriveFull.
        """
        with self._lock:
            number = max(self._next, at_ms(self.wall_ms()))
            self._reserve(number + count - 1)
            self._next = number + count
            return number

    def advance_past(self, number: int) -> None:
        """Issue only numbers above `number` from now on, also after a crash.

        Raises DriveFailed, DriveFull: it holds until a crash nevertheless. InvalidRequest: it does not hold.
        """
        if number < self._next:
            return
        check_counter(number, "counter")
        with self._lock:
            self._next = max(self._next, number + 1)
            self._reserve(number)

    def catch_up(self) -> None:
        """Wait until the wall clock has passed all numbers that may have been issued before a crash.

        At most a second. Call this before issuing a number that is compared with those of other nodes by time.
        """
        if self._begins_at_limit:
            if (ahead_ms := self.ahead_ms) <= RESERVED_MS:
                time.sleep(ahead_ms / 1000)
            self._begins_at_limit = False

    def _reserve(self, number: int) -> None:
        """Move the limit above `number` on every writable drive, durably on one of them."""
        if number < self._limit:
            return
        limit = max(at_ms(self.wall_ms() + RESERVED_MS), number + _RESERVED_AHEAD)
        problem: LoaderError | None = None
        written = False
        for catalog in self._drives:  # a drive that cannot write is skipped, like a missing one
            try:
                _write(catalog, limit, sync=not written)
                written = True
            except LoaderError as error:
                problem = error
        if problem is not None and not written:
            raise problem
        self._limit = limit

    # -- its drives

    def attach(self, catalog: Catalog) -> None:
        """Continue above all numbers that this drive has heard of. Raises LoaderError."""
        stored = catalog.get(fmt.CLOCK_KEY)
        limit = _highest_of(catalog) + 1 if stored is None else int.from_bytes(stored, "big")
        if limit > 2 * MAX_COUNTER:
            raise StoreFormatError(f"{catalog.path}: the limit of the version clock, {limit}, is none that it ever has")
        with self._lock:
            if stored is None:  # a store from before limits existed: done once
                _write(catalog, limit, sync=True)
            self._begins_at_limit |= limit > self._next
            self._next = max(self._next, limit)
            self._limit = 0  # the next number is reserved on this drive, too
            self._drives.append(catalog)

    def detach(self, catalog: Catalog, *, orderly: bool) -> None:
        """Stop writing to this drive. `orderly`: store the exact number, as no more are issued. Raises LoaderError."""
        with self._lock:
            if catalog in self._drives:
                self._drives.remove(catalog)
                if orderly:
                    _write(catalog, self._next, sync=False)


def _write(catalog: Catalog, limit: int, *, sync: bool) -> None:
    batch = WriteBatch(raw_mode=True)
    batch.put(fmt.CLOCK_KEY, limit.to_bytes(8, "big"))
    catalog.write(batch, sync=sync)


def _highest_of(catalog: Catalog) -> int:
    """Return the highest number in any entry of a drive, except those that no version clock issues."""
    highest = 0
    for _, value in catalog.scan(fmt.OBJECT_PREFIX):
        highest = max(highest, _sane(fmt.counter_of_value(value)))
    for key, value in catalog.scan(fmt.RETAINED_PREFIX):
        highest = max(highest, _sane(fmt.counter_of_value(value)), _sane(fmt.ended_of_retained(key)))
    return highest


def _sane(counter: int) -> int:
    return counter if counter <= MAX_COUNTER else 0
