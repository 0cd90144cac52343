"""Register of one key: what its history allows, as values that each stand for one write.

Pure; nothing of the product is imported. Two models:

- *atomic*: there is one order of all operations, reads included, that agrees with their times (linearizability, Herlihy
  and Wing 1990). Searched as Wing and Gong (1993) do, with Lowe's memory of states already seen.
- *regular*: the same of writes, and each read finds what some moment of its own time would show. Two reads beside one
  write may find the new and then the old value.

First come rules about pairs of operations, which have names and need no search; what they find is found in both models.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from benchmarks.soak.history import FOREVER, Operation, Outcome

Model = Literal["atomic", "regular"]
SEARCHED_STATES = 200_000
ANY = "*"
"""Expectation of a write without a condition."""


@dataclass(frozen=True, slots=True)
class Write:
    """A put, or with `value` None a deletion. `expected`: ANY, or what it had to find (None: nothing)."""

    operation: Operation
    value: str | None
    outcome: Outcome
    version: tuple[int, ...] | None = None
    expected: str | None = ANY

    @property
    def begin_ns(self) -> int:
        return self.operation.begin_ns

    @property
    def end_ns(self) -> int:
        """When it had taken effect for certain; FOREVER when nobody was told."""
        return self.operation.end_ns if self.outcome == "ok" else FOREVER


@dataclass(frozen=True, slots=True)
class Read:
    """Found `value` (None: nothing) between its beginning, less `slack_ns`, and its end."""

    operation: Operation
    value: str | None
    begin_ns: int
    end_ns: int
    version: tuple[int, ...] | None = None
    linear: bool = True
    """Whether it takes part in the one order: not when it may be old by some slack, or is of a snapshot."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A write on a condition that was refused: what was there at some moment is not `expected`."""

    operation: Operation
    expected: str | None


@dataclass(frozen=True, slots=True)
class Violation:
    """Violation of a guarantee, and the operations that show it."""

    kind: str
    key: str
    text: str
    operations: tuple[Operation, ...] = ()


@dataclass(slots=True)
class Register:
    """The history of one key, which nobody has at its beginning."""

    key: str
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    _effects: _Effects | None = None

    def forget_versions(self) -> None:
        """Ignore versions, and writes that were refused because of them."""
        self.writes = [replace(write, version=None) for write in self.writes]
        self.reads = [replace(read, version=None) for read in self.reads]
        self.conflicts.clear()

    def effects(self, model: Model) -> _Effects:
        if self._effects is None:
            self._effects = _Effects(self, model)
        return self._effects

    def check(self, model: Model) -> tuple[list[Violation], bool]:
        """Return the violations, and whether the search was complete."""
        found = [*self._values(model), *self._order(), *self._winners()]
        effects = self.effects(model)
        faults: dict[tuple[str, str | None], Violation] = {}
        for read in self.reads:
            if (wrong := effects.fault(read)) is not None:
                faults.setdefault((wrong.kind, read.value), wrong)
        found += faults.values()
        if found:
            return found, True
        order = find_order(self, model)
        if order is False:
            begun = sorted({one.operation.begin_ns: one.operation for one in [*self.writes, *self.reads]}.items())
            said = "no order of these operations agrees with their times and with what they found"
            return [Violation("no order", self.key, said, tuple(operation for _, operation in begun))], True
        return [], order is True

    def _values(self, model: Model) -> Iterable[Violation]:
        """A value comes from a write that was not refused, and it has one version: in the regular model from when it is
        acknowledged, as one that had reached too few copies is committed once more under its id.
        """
        by_value = {write.value: write for write in self.writes}
        versions: dict[str, tuple[tuple[int, ...], Operation]] = {
            write.value: (write.version, write.operation)
            for write in self.writes
            if write.value is not None and write.version is not None
        }
        twice: set[str] = set()
        for read in self.reads:
            if read.value is None or read.value in twice:
                continue
            write = by_value.get(read.value)
            if write is None:
                yield Violation("bytes of nobody", self.key, f"nobody put {read.value}", (read.operation,))
            elif write.outcome == "failed":
                said = f"{read.value} was refused, and is there"
                yield Violation("refused, and done", self.key, said, (write.operation, read.operation))
            elif read.end_ns < write.begin_ns:
                said = f"{read.value} was read before it was put"
                yield Violation("bytes of nobody", self.key, said, (write.operation, read.operation))
            elif read.version is not None:
                version, first = versions.setdefault(read.value, (read.version, read.operation))
                if version != read.version and (model == "atomic" or read.begin_ns > write.end_ns):
                    twice.add(read.value)
                    said = f"{read.value} has two versions, {version} and {read.version}"
                    yield Violation("took effect twice", self.key, said, (write.operation, first, read.operation))

    def _order(self) -> Iterable[Violation]:
        """Versions of acknowledged writes grow with time, and no two have the same."""
        versioned = [write for write in self.writes if write.version is not None and write.outcome == "ok"]
        ends = sorted(versioned, key=lambda write: write.end_ns)
        highest: Write | None = None
        at = 0
        for write in sorted(versioned, key=lambda write: write.begin_ns):
            while at < len(ends) and ends[at].end_ns < write.begin_ns:
                if highest is None or (ends[at].version or ()) > (highest.version or ()):
                    highest = ends[at]
                at += 1
            if highest is not None and (write.version or ()) <= (highest.version or ()):
                said = (
                    f"{write.value} of version {write.version} begun after {highest.value} of {highest.version} ended"
                )
                yield Violation("later write below", self.key, said, (highest.operation, write.operation))

    def _winners(self) -> Iterable[Violation]:
        """Check that at most one of the writes with the same condition is acknowledged. Of writes that require absence,
        there may be more after deletions.
        """
        first: dict[str, Write] = {}
        for write in self.writes:
            if write.expected is None or write.expected == ANY or write.outcome != "ok":
                continue
            other = first.setdefault(write.expected, write)
            if other is not write:
                said = f"two acknowledged writes in place of {write.expected}"
                yield Violation("two winners", self.key, said, (other.operation, write.operation))


class _Effects:
    """When each state of a register was over for certain."""

    def __init__(self, register: Register, model: Model) -> None:
        self._key = register.key
        self._seen: dict[str, Read] = {}
        for read in register.reads:
            if read.value is not None:
                known = self._seen.get(read.value)
                if known is None or read.end_ns < known.end_ns:
                    self._seen[read.value] = read
        done = [write for write in register.writes if write.outcome != "failed"]
        # What replaces others for certain: in the regular model one that was seen once may be there on one copy only.
        sure = [write for write in done if (self.end_ns(write) if model == "atomic" else write.end_ns) < FOREVER]
        self._replacing = sorted(sure, key=lambda write: write.begin_ns)
        self._begins = [write.begin_ns for write in self._replacing]
        # For each: who of it and those that begin later is done first.
        ends = [self.end_ns(write) if model == "atomic" else write.end_ns for write in self._replacing]
        self._first: list[tuple[int, Write]] = [(0, write) for write in self._replacing]
        best: tuple[int, Write] | None = None
        for at in reversed(range(len(ends))):
            if best is None or ends[at] < best[0]:
                best = ends[at], self._replacing[at]
            self._first[at] = best
        puts = [write for write in self._replacing if write.value is not None]
        self._put_begins = [write.begin_ns for write in puts]
        self._first_put: list[tuple[int, Write]] = []
        first_put: tuple[int, Write] | None = None
        for write in reversed(puts):
            end = self.end_ns(write) if model == "atomic" else write.end_ns
            if first_put is None or end < first_put[0]:
                first_put = end, write
            self._first_put.append(first_put)
        self._first_put.reverse()
        self.by_value = {write.value: write for write in done if write.value is not None}
        self.deletions = [write for write in done if write.value is None]

    def end_ns(self, write: Write) -> int:
        """When a write had taken effect: when it was acknowledged, or seen."""
        seen = None if write.value is None else self._seen.get(write.value)
        return write.end_ns if seen is None else min(write.end_ns, max(seen.end_ns, write.begin_ns))

    def replaced(self, write: Write) -> tuple[int, Write] | None:
        """When something that came after this write was in its place, and what."""
        at = bisect.bisect_right(self._begins, self.end_ns(write))
        return self._first[at] if at < len(self._first) else None

    def filled(self, end_ns: int) -> tuple[int, Write] | None:
        """When there was an object that was put after this moment, and which."""
        at = bisect.bisect_right(self._put_begins, end_ns)
        return self._first_put[at] if at < len(self._first_put) else None

    def fault(self, read: Read) -> Violation | None:
        """Return the violation by a read, given the writes acknowledged before it began."""
        if read.value is None:
            return self._absent_fault(read)
        write = self.by_value.get(read.value)
        over = None if write is None else self.replaced(write)
        if write is None or over is None or over[0] >= read.begin_ns:
            return None
        shown = (write.operation, over[1].operation, read.operation)
        if over[1].value is None:
            return Violation("deleted, and back", self._key, f"{read.value} was deleted before it was read", shown)
        said = f"{read.value} was read after {over[1].value} had replaced it"
        if read.operation.kind == "list":
            return Violation("listed as it was", self._key, said, shown)
        seen = self._seen.get(over[1].value)
        back = seen is not None and seen.end_ns < read.begin_ns
        return Violation("replaced, and back" if back else "stale read", self._key, said, shown)

    def _absent_fault(self, read: Read) -> Violation | None:
        over = self.filled(-1)
        if over is None or over[0] >= read.begin_ns:
            return None
        for deletion in self.deletions:
            if deletion.begin_ns > read.end_ns:
                continue
            filled = self.filled(deletion.end_ns)
            if filled is None or filled[0] >= read.begin_ns:
                return None
            over = filled
        said = f"{over[1].value} was acknowledged, and nobody deleted it before nothing was found"
        return Violation("lost", self._key, said, (over[1].operation, read.operation))


# -- one order of everything


@dataclass(frozen=True, slots=True)
class _Step:
    begin_ns: int
    end_ns: int
    apply: Callable[[str | None], tuple[bool, str | None]]
    passive: bool
    """It leaves the state as it is."""


def find_order(register: Register, model: Model) -> bool | None:
    """Whether there is an order that explains the register; None when that was not found out."""
    steps = sorted(_steps(register, model), key=lambda step: (step.begin_ns, step.end_ns))
    needed = sum(1 << at for at, step in enumerate(steps) if step.end_ns < FOREVER)
    begin: tuple[int, str | None] = (_passives(steps, 0, None), None)
    seen = {begin}
    stack = [begin]
    while stack:
        done, value = stack.pop()
        if done & needed == needed:
            return True
        if len(seen) > SEARCHED_STATES:
            return None
        for at in _next(steps, done):
            fits, after = steps[at].apply(value)
            if fits:
                state = _passives(steps, done | 1 << at, after), after
                if state not in seen:
                    seen.add(state)
                    stack.append(state)
    return False


def _passives(steps: Sequence[_Step], done: int, value: str | None) -> int:
    """With all reads that may come now and find this value: sooner is never worse for them."""
    while True:
        more = done
        for at in _next(steps, done):
            if steps[at].passive and steps[at].apply(value)[0]:
                more |= 1 << at
        if more == done:
            return done
        done = more


def _next(steps: Sequence[_Step], done: int) -> list[int]:
    """Which may come next: begun before any other one has ended."""
    first_open = (~done & (done + 1)).bit_length() - 1
    found: list[int] = []
    least = FOREVER
    for at in range(first_open, len(steps)):
        if done >> at & 1:
            continue
        if steps[at].begin_ns > least:
            break
        found.append(at)
        least = min(least, steps[at].end_ns)
    return [at for at in found if steps[at].begin_ns <= least]


def _steps(register: Register, model: Model) -> Iterable[_Step]:
    effects = register.effects(model)
    watched = {read.value for read in register.reads} | {write.expected for write in register.writes}
    for write in register.writes:
        if write.outcome == "failed":
            continue
        unseen = write.outcome == "unknown" and write.value is not None and write.value not in watched
        if unseen and not register.conflicts:
            continue  # an order with it is one without it
        # Seen, it has taken effect by then; in the regular model maybe on one copy, and on the others later.
        end_ns = effects.end_ns(write) if model == "atomic" else write.end_ns
        yield _Step(write.begin_ns, end_ns, _writing(write), False)
    for conflict in register.conflicts:
        yield _Step(conflict.operation.begin_ns, conflict.operation.end_ns, _finding_other(conflict.expected), True)
    if model == "atomic":
        for read in register.reads:
            if read.linear:
                yield _Step(read.begin_ns, read.end_ns, _finding(read.value), True)


def _writing(write: Write) -> Callable[[str | None], tuple[bool, str | None]]:
    if write.expected == ANY:
        return lambda value: (True, write.value)
    return lambda value: (value == write.expected, write.value)


def _finding(found: str | None) -> Callable[[str | None], tuple[bool, str | None]]:
    return lambda value: (value == found, value)


def _finding_other(expected: str | None) -> Callable[[str | None], tuple[bool, str | None]]:
    return lambda value: (value != expected, value)
