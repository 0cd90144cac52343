"""Damage part of the soak: bytes of replicas are flipped on the drives, while clients read and write.

Every object has two copies, and no node is ever down. In each round, bytes are flipped on the drives of one node alone,
so that each object always has an intact copy. Nothing damaged may be delivered, and no read may fail. Readers and the
scrub find the damage, and it is repaired from the other copy: at the end of a round both copies must be there and
equal.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.soak.checker import Rules
from benchmarks.soak.clients import READS, WRITES, Sizes
from benchmarks.soak.cluster import ARGUMENTS, DEADLINE_S, PLACES, ClusterSoak, Copies, Member, Task
from benchmarks.soak.machine import Network, OneMachine
from benchmarks.soak.outcome import Outcome
from benchmarks.soak.register import Violation
from storage_node.ops.ask_nodes import ask_node

EVENTS = 60
FILES = 15
"""Files that are damaged by one event."""
BITS = 4
"""Most bits that are flipped in one file."""
SETTLED_S = 1.0
"""A younger file may be of a write whose other copy is still under way."""
WRITTEN_S = 30.0
"""For the first writes, on a busy machine."""
SIZES = Sizes(large_share=0.1)
_READS: Mapping[str, float] = {**READS, "range": 0, "verified_range": 2, "file": 3, "stream": 2}
"""All are verified: a range that is not may be delivered with the damage that it has on the drive."""
_MIXED: Mapping[str, float] = {**_READS, **WRITES, "snapshot": 0.02}
CLIENTS: Sequence[tuple[str, Mapping[str, float], Sequence[str]]] = (
    ("a", _MIXED, ("auto",)),
    ("b", _MIXED, ("target",)),
    ("c", {**_READS, "batch": 8}, ("target", "direct")),
    ("d", {**_READS, "file": 6}, ("direct",)),
)


class DamageSoak(ClusterSoak):
    """Nodes below `root`, and bytes that are flipped on their drives."""

    name = "damage"
    arguments = (*ARGUMENTS, "--set", "scrub_interval_s=1", "--set", f"scrub_bytes_per_s={1 << 30}")

    def __init__(self, root: Path, seed: int, say: Callable[[str], None]) -> None:
        self._victim: Member | None = None
        super().__init__(root, seed, say, namespaces=False, only={"bytes flipped": 1})

    def copies_of(self, seed: int) -> Copies:
        return Copies(2, 2)

    def network(self, held: ExitStack, *, namespaces: bool) -> Network:
        return OneMachine(PLACES, held, namespaces=False)

    def tasks(self, folder: Path, number: int) -> list[Task]:
        """One process uses lanes, the other gRPC."""
        [first, second] = [replace(task, clients=CLIENTS, sizes=SIZES) for task in super().tasks(folder, number)]
        return [first, replace(second, lane="grpc")]

    def rules(self) -> Rules:
        return Rules("regular", deadline_s=DEADLINE_S, copies=self.copies.copies, answers=True)

    def run(self, events: int, duration_s: float) -> Outcome:
        outcome = super().run(events, duration_s)
        found = mended = 0
        for member in self.members:
            if (progress := ask_node(member.endpoint, self._operator).progress) is not None:
                found += progress.scrub.found
                mended += progress.scrub.mended
        outcome.figures |= {"damaged copies that were found": found, "damaged copies that were repaired": mended}
        if outcome.events["bytes flipped"] and not found:
            outcome.violations.append(Violation("nothing was damaged", "", "no node found any of what was flipped"))
        return outcome

    def _round(self, number: int, events: int) -> int:
        self._victim = self._draw.choice(self.members)
        return super()._round(number, events)

    def _begin(self, name: str) -> bool:
        victim = self._victim
        assert victim is not None
        deadline = time.monotonic() + WRITTEN_S
        while not (files := [path for drive in victim.process.drives for path in _settled(drive / "objects")]):
            if time.monotonic() > deadline:
                return False
            self._until(time.monotonic() + 0.2)
        chosen = self._draw.sample(files, min(FILES, len(files)))
        flipped: list[list[object]] = []

        def flip_all() -> None:
            for path in chosen:
                for at in flip(path, self._draw):
                    flipped.append([str(path.relative_to(self._root)), at])

        self._done(name, [victim], flip_all, flipped=flipped)
        victim.busy = False
        self.outcome.events[name] += 1
        return True


def _settled(folder: Path) -> list[Path]:
    """Files that have not been written to for a while, in the order of their names."""
    found: list[Path] = []
    for path in sorted(folder.rglob("*")):
        with suppress(OSError):  # removed meanwhile
            if path.is_file() and path.stat().st_size and time.time() - path.stat().st_mtime > SETTLED_S:
                found.append(path)
    return found


def flip(path: Path, draw: random.Random) -> list[int]:
    """Flip some bits of a file, and return where. Its times stay as they were; one that has gone is left alone."""
    places: list[int] = []
    with suppress(FileNotFoundError), path.open("r+b", buffering=0) as file:
        before = os.fstat(file.fileno())
        for _ in range(draw.randint(1, BITS)):
            at, bit = draw.randrange(before.st_size), 1 << draw.randrange(8)
            byte = os.pread(file.fileno(), 1, at)
            if byte:
                os.pwrite(file.fileno(), bytes([byte[0] ^ bit]), at)
                places.append(at)
        os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
    return places
