"""MapDataset in a DataLoader, compared with a plain Dataset that opens files: same objects, shuffled, lists of bytes.

python -m benchmarks.training.datasets            # writes the table beside this file
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from torch.utils.data import DataLoader, Dataset

import ais_loader
from benchmarks.kit.files import plain_files
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.load import fill
from benchmarks.kit.pages import publish

BATCH = 128
TABLE = Path(__file__).with_suffix(".md")


class FileDataset(Dataset[bytes]):
    """The simplest dataset."""

    def __init__(self, paths: list[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> bytes:
        with open(self._paths[index], "rb") as file:
            return file.read()


def as_list(samples: list[bytes]) -> list[bytes]:
    return samples


def epochs(dataset: Dataset[bytes], num_workers: int, count: int) -> Callable[[], float]:
    """A contestant: samples per second over some epochs, with the workers started before."""
    options: dict[str, Any] = {"persistent_workers": True} if num_workers else {}
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=as_list, num_workers=num_workers, **options)

    def run() -> float:
        start = time.perf_counter()
        samples = sum(len(batch) for _ in range(count) for batch in loader)
        return samples / (time.perf_counter() - start)

    return run


@click.command(help=__doc__)
@click.option("--objects", default=20_000, show_default=True)
@click.option("--size", "size_bytes", default=10 << 10, show_default=True, help="Object size in bytes.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(objects: int, size_bytes: int, rounds: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        load = fill(store, objects, size_bytes)
        paths = plain_files(Path(folder) / "files", objects, size_bytes)
        random.Random(1).shuffle(paths)
        client = ais_loader.connect(store, mode="r")
        contestants: dict[str, Callable[[], float]] = {}
        claims = []
        for num_workers, at_least in ((0, 1.2), (2, 1.0)):
            plain, ours = f"plain Dataset, num_workers={num_workers}", f"MapDataset, num_workers={num_workers}"
            contestants[plain] = epochs(FileDataset(paths), num_workers, 2)
            contestants[ours] = epochs(ais_loader.MapDataset(client, load.entries), num_workers, 2)
            claims.append(Claim(ours, plain, at_least))
        for work in contestants.values():  # workers, connections, caches
            work()
        rates = run_rounds(contestants, rounds)
        client.close()
    publish(
        "Datasets",
        __doc__,
        f"{rounds} rounds of 2 epochs; {objects:,} objects of {size_bytes:,} bytes, in batches of {BATCH}.",
        rates,
        "samples/s",
        claims,
        table=TABLE if write else None,
    )


if __name__ == "__main__":
    main()
