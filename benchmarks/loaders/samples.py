"""Samples as bytes, from MapDataset and BatchLoader, compared with `get_batch` of the same random batches.

    python -m benchmarks.loaders.samples  # a minute; writes the table beside this file

The store is embedded, its objects are in the page cache, and nothing is decoded. Each contestant has a process of its
own, since what malloc keeps depends on what else a process has freed. It holds a batch until it has the next one.
`get_batch` keeps views of the items. The others return bytes that belong to the caller. A rate counts the objects of an
epoch; the first epoch, in which a process touches its memory for the first time, is not timed.

Found before the change, on a quiet machine: `get_batch` took 10 µs for 100 KiB and 100 µs for 1 MiB, MapDataset 15 and
190 to 220, and BatchLoader 27 and 350. The difference was page faults, 5 to 12 for each 100 KiB: malloc returned the
memory of a batch to the kernel when the batch was dropped, and got it back, filled with zeros, for the next one.

Prediction for malloc that keeps it (`wire/recycled.py`, `keep_freed`), from a trial in which a process had freed one
block of 32 MiB: MapDataset is faster than `get_batch`, since it reads into the bytes without a frame in between, and
BatchLoader with threads reaches 0.9 of `get_batch`. Worker processes stay far below: they copy into shared memory, and
the trainer copies out of it, because samples that are bytes cannot be views. With output="packed", they are.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

import ais_loader
from ais_loader import BatchLoader, MapDataset, ShufflePlan
from benchmarks.kit.harness import Claim, label, run_rounds
from benchmarks.kit.load import Load, fill
from benchmarks.kit.pages import publish
from benchmarks.kit.workers import Workers

TABLE = Path(__file__).with_suffix(".md")
SIZES = {100 << 10: (2_560, 128), 1 << 20: (256, 32)}
"""Objects, and objects in a batch, by size in bytes."""
LOADERS: dict[str, dict[str, Any]] = {
    "BatchLoader, threads": {},
    "BatchLoader, a worker": {"workers": 1, "persistent_workers": True},
    "BatchLoader, a worker, packed": {"workers": 1, "persistent_workers": True, "output": "packed"},
}
BASELINE, DATASET = "get_batch", "MapDataset"


def epochs(load: Load, contestant: str, batch: int) -> Iterator[Iterable[object]]:
    client = ais_loader.connect(load.url, mode="r")
    dataset = MapDataset(client, load.entries)
    if contestant in LOADERS:
        plan = ShufflePlan(load.objects, batch_size=batch)
        with BatchLoader(dataset, plan, **LOADERS[contestant]) as loader:
            while True:
                yield loader
    numbers, names = list(range(load.objects)), load.names
    while True:
        random.shuffle(numbers)
        drawn = [numbers[first : first + batch] for first in range(0, load.objects, batch)]
        if contestant == DATASET:
            yield map(dataset.__getitems__, drawn)
        else:
            bucket = client.bucket(load.bucket)
            yield ([item.data for item in bucket.get_batch([names[at] for at in one])] for one in drawn)


def work(given: Any, number: int, pipe: Connection) -> None:
    load, contestant, batch = given
    each = epochs(load, contestant, batch)
    while pipe.recv() is not None:
        began_s = time.perf_counter()
        for held in next(each):  # noqa: B007 - held until the next one is there
            pass
        pipe.send(load.objects / (time.perf_counter() - began_s))
    each.close()  # type: ignore[attr-defined]


@click.command(help=__doc__)
@click.option("--rounds", default=7, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(rounds: int, folder: Path | None, write: bool) -> None:
    rates: dict[str, list[float]] = {}
    claims = []
    for size_bytes, (count, batch) in SIZES.items():
        with tempfile.TemporaryDirectory(dir=folder) as where:
            load = fill(Path(where), count, size_bytes)
            crews = {
                name: Workers(work, (load, name, batch), 1, is_daemon=False) for name in (BASELINE, DATASET, *LOADERS)
            }
            try:
                contestants = {name: lambda crew=crew: crew.ask([True])[0] for name, crew in crews.items()}
                for turn in contestants.values():
                    turn()
                found = run_rounds(contestants, rounds)
            finally:
                for crew in crews.values():
                    crew.__exit__()
        rates |= {f"{name}, {label(size_bytes)}": values for name, values in found.items()}
        for name, least in ((DATASET, 0.87), ("BatchLoader, threads", 0.87)):
            claims.append(Claim(f"{name}, {label(size_bytes)}", f"{BASELINE}, {label(size_bytes)}", least))
    shape = ", ".join(f"{label(size)}: {batch} of {count:,} objects" for size, (count, batch) in SIZES.items())
    publish(
        "Samples as bytes",
        __doc__,
        f"{rounds} rounds. Batches of {shape}.",
        rates,
        "objects/s",
        claims,
        table=TABLE if write else None,
    )


if __name__ == "__main__":
    main()
