"""Load of the benchmarks: the threads of `ais-loader bench`, in processes that stay alive across rounds."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ais_loader
from ais_loader import Entry
from ais_loader.bench.crew import prepare
from ais_loader.bench.plan import BenchPlan
from ais_loader.bench.worker import Threads
from benchmarks.kit.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Load(BenchPlan):
    """Plan of one contestant's turn, with what `ais-loader bench` has no options for."""

    workload: str = "get-batch"
    epochs: int = 1
    tenant: str = ""
    assembly: str = "auto"

    @property
    def client_options(self) -> dict[str, Any]:
        return {"retry_s": self.retry_s, "lane": self.lane, "tenant": self.tenant}

    @property
    def batch_options(self) -> dict[str, Any]:
        return {"on_error": "placeholder", "assembly": self.assembly}

    @property
    def names(self) -> list[str]:
        return [self.name(number) for number in range(self.objects)]

    @property
    def entries(self) -> list[Entry]:
        return [Entry(self.bucket, name) for name in self.names]


def fill(path: Path, count: int, size_bytes: int) -> Load:
    """Make an embedded store of `count` objects."""
    load = Load(url=str(path), objects=count, size=str(size_bytes))
    with ais_loader.connect(path) as client:
        prepare(client, load)
    return load


def run(threads: Threads) -> int:
    """Measure once, and return how many objects came. Raises RuntimeError for any error: a rate would hide it."""
    before = objects([threads])
    threads.start()
    threads.join()
    errors = sum((tally.errors for tally in threads.tallies), Counter())
    if threads.failed or errors:
        raise RuntimeError(f"the load failed: {threads.failed or dict(errors)}")
    return objects([threads]) - before


def objects(crowd: Sequence[Threads]) -> int:
    """Objects that have come so far."""
    return sum(tally.objects for threads in crowd for tally in threads.tallies)


def rate_of(threads: Threads) -> float:
    """Objects per second of threads in this process."""
    start = time.perf_counter()
    return run(threads) / (time.perf_counter() - start)


def _work(_: None, number: int, pipe: Connection) -> None:
    connected: dict[Load, Threads] = {}
    while (load := pipe.recv()) is not None:
        if load not in connected:
            connected[load] = Threads(load, number)
        pipe.send(run(connected[load]))
    for threads in connected.values():
        threads.close()


class Clients(Workers):
    """Processes that run one load after another, each with connections of its own."""

    def __init__(self, count: int) -> None:
        super().__init__(_work, None, count)

    def rate(self, load: Load) -> float:
        """Objects per second of the load's processes, until the last of them has done its part."""
        start = time.perf_counter()
        came = sum(self.ask([load] * load.processes))
        return came / (time.perf_counter() - start)
