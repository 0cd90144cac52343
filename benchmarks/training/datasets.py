"""Loaders of a training script, compared with a Dataset of files in torch's DataLoader: same objects, shuffled.

    python -m benchmarks.training.datasets            # writes the table and the plot beside this file

"files-k" is a Dataset that opens a file for each sample, in a DataLoader with k workers. Samples are lists of bytes or,
where it says "packed", one array for each batch. Each round is two epochs in another order each. All worker processes
are started before, and kept (`persistent_workers=True`). "node" is a storage node on this machine, read over a lane.
WebDataset reads tars in sequence. Rows of other libraries are left out where they are not installed
(benchmarks/loaders/peers.py says how); they draw the same random batches and have no workers. With --own-loaders, there
are also rows of their own loaders, which shuffle by themselves (benchmarks/training/other_loaders.py).

The last table is of a trainer that takes 50 ms for each batch of 8 MiB (objects of 64 KiB), with three batches in
flight: the part of its time that it waits for batches, after the first one.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from torch.utils.data import DataLoader, Dataset

import ais_loader
from ais_loader import BatchLoader, MapDataset, ShufflePlan
from ais_loader.testing import NodeProcess
from benchmarks.kit.files import plain_files
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.load import Load, fill
from benchmarks.kit.pages import publish
from benchmarks.loaders.peers import PEERS, Peer, Room, Samples, contestant
from benchmarks.training import other_loaders

BATCH = 128
EPOCHS = 2
WAITED_BYTES, WAITED_BATCHES, STEP_S, MOST_WAITING = 64 << 10, 60, 0.05, 0.02
OTHERS = ("mosaicml-streaming", "litdata", "datasets", "WebDataset")
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


def rate_of(loader: Iterable[Any]) -> Callable[[], float]:
    """A contestant: samples per second over some epochs."""

    def run() -> float:
        start = time.perf_counter()
        samples = sum(len(batch) for _ in range(EPOCHS) for batch in loader)
        return samples / (time.perf_counter() - start)

    return run


def with_torch(dataset: Dataset[bytes], num_workers: int) -> Callable[[], float]:
    options: dict[str, Any] = {"persistent_workers": True} if num_workers else {}
    return rate_of(
        DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=as_list, num_workers=num_workers, **options)
    )


def with_plan(store: str, load: Load, **options: Any) -> Callable[[], float]:
    dataset = MapDataset(store, load.entries)
    return rate_of(BatchLoader(dataset, ShufflePlan(len(dataset), BATCH), rank=0, world_size=1, **options))


def waiting(loader: BatchLoader) -> float:
    """Return the part of its time that a trainer with steps of 50 ms waits, after its first batch."""
    batches = iter(loader)
    next(batches)
    start, waited_s = time.perf_counter(), 0.0
    while True:
        time.sleep(STEP_S)
        asked = time.perf_counter()
        if next(batches, None) is None:
            return waited_s / (asked - start)
        waited_s += time.perf_counter() - asked


def waits(folder: Path, held: ExitStack) -> str:
    """Return the table of what a trainer waits."""
    load = fill(folder / "store", WAITED_BATCHES * BATCH, WAITED_BYTES)
    node_load = fill(folder / "node", WAITED_BATCHES * BATCH, WAITED_BYTES)
    node = held.enter_context(NodeProcess(folder / "node"))
    lines = ["| 8 MiB every 50 ms | wanted | waiting | |", "|---|---:|---:|---|"]
    by_grpc = held.enter_context(ais_loader.connect(node.url, options=ais_loader.ClusterOptions(lane="grpc")))
    for where, source, its_load in (
        ("embedded", str(folder / "store"), load),
        ("node, over a lane", node.url, node_load),
        ("node, over gRPC", by_grpc, node_load),
    ):
        for how, options in (("threads=2", {"threads": 2}), ("workers=2", {"workers": 2})):
            dataset = MapDataset(source, its_load.entries)
            share = waiting(BatchLoader(dataset, ShufflePlan(len(dataset), BATCH), rank=0, world_size=1, **options))
            told = "reached" if share < MOST_WAITING else "MISSED"
            lines.append(f"| {where}, {how} | < {MOST_WAITING:.0%} | **{share:.1%}** | {told} |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--objects", default=20_000, show_default=True)
@click.option("--size", "size_bytes", default=10 << 10, show_default=True, help="Object size in bytes.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--own-loaders", default="", help="Workers of other libraries' own loaders, such as 0,2: more rows.")
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(objects: int, size_bytes: int, rounds: int, own_loaders: str, write: bool) -> None:
    with tempfile.TemporaryDirectory() as name, ExitStack() as held:
        folder = Path(name)
        store = str(folder / "store")
        load, served = fill(folder / "store", objects, size_bytes), fill(folder / "node", objects, size_bytes)
        node = held.enter_context(NodeProcess(folder / "node"))
        paths = plain_files(folder / "files", objects, size_bytes)
        random.Random(1).shuffle(paths)
        client = held.enter_context(ais_loader.connect(store, mode="r"))
        contestants = {
            "files-0": with_torch(FileDataset(paths), 0),
            "MapDataset in a DataLoader, no workers": with_torch(MapDataset(client, load.entries), 0),
            "BatchLoader, threads=2": with_plan(store, load),
            "BatchLoader, threads=2, packed": with_plan(store, load, output="packed"),
            "BatchLoader, threads=2, node": with_plan(node.url, served),
            "files-2": with_torch(FileDataset(paths), 2),
            "MapDataset in a DataLoader, 2 workers": with_torch(MapDataset(client, load.entries), 2),
            "BatchLoader, workers=2": with_plan(store, load, persistent_workers=True, workers=2),
            "BatchLoader, workers=2, packed": with_plan(
                store, load, persistent_workers=True, workers=2, output="packed"
            ),
            "BatchLoader, workers=2, node": with_plan(node.url, served, persistent_workers=True, workers=2),
        }
        others = [peer for peer in PEERS if peer.name in OTHERS and peer.installed]
        for peer in others:
            contestants[peer.name] = other(peer, folder / peer.name, objects, size_bytes, served, held)
        own = other_loaders.rows(
            folder / "own", Samples(objects, size_bytes), map(int, filter(None, own_loaders.split(",")))
        )
        contestants |= {row: rate_of(epochs) for row, epochs in own.items()}
        for work in contestants.values():  # workers, connections, caches
            work()
        rates = run_rounds(contestants, rounds)
        share_table = waits(folder / "waits", held)
    claims = [
        Claim("MapDataset in a DataLoader, no workers", "files-0", 1.7),
        Claim("BatchLoader, threads=2", "files-0", 1.5),
        Claim("BatchLoader, workers=2", "files-2", 1.8),
        Claim("BatchLoader, workers=2, packed", "files-2", 2.5),
        *(
            Claim("BatchLoader, threads=2, node", peer.name, {"WebDataset": 4, "mosaicml-streaming": 3}[peer.name])
            for peer in others
            if peer.name in ("WebDataset", "mosaicml-streaming")
        ),
        *(Claim("BatchLoader, workers=2", row, 1.5) for row in own if row == "litdata, its own loader, 2 workers"),
    ]
    publish(
        "Datasets",
        __doc__,
        f"{rounds} rounds of {EPOCHS} epochs; {objects:,} objects of {size_bytes:,} bytes, in batches of {BATCH}.",
        rates,
        "samples/s",
        claims,
        share_table,
        table=TABLE if write else None,
        picture=write,
    )


def other(
    peer: Peer, folder: Path, objects: int, size_bytes: int, served: Load, held: ExitStack
) -> Callable[[], float]:
    folder.mkdir()
    samples = Samples(objects, size_bytes)
    return contestant(peer.make(Room(folder, samples, served, held)), samples)


if __name__ == "__main__":
    main()
