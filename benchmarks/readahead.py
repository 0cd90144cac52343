"""Cold GetBatch with page-cache read-ahead, compared with GetBatch without it, on one node and over gRPC.

Two nodes serve the same files, one of them with `readahead_bytes=0`. Before each cold run the kernel is asked to forget
the objects' pages (folders and inodes stay cached); the runs take turns, and ratios are taken within a round. Warm runs
show what read-ahead costs a node that serves from memory.

    python -m benchmarks.readahead                       # writes the table beside this file
    python -m benchmarks.readahead --sizes 1048576 --rounds 3 --no-write --folder /mnt/drive
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import click

import ais_loader
from benchmarks.clients import get_batches, object_names
from benchmarks.getbatch import fill, label
from benchmarks.harness import Claim, claims_table, conclude, judge, load, machine, rates_table

BATCH = 128
TABLE = Path(__file__).with_name("readahead.md")
COUNTS = {10 << 10: 4_000, 100 << 10: 2_000, 1 << 20: 640, 16 << 20: 40}
WAYS = ("cold, one batch at a time", "cold, 3 in flight", "warm, 3 in flight")
KINDS = ("with", "without")
PREDICTION = """Prediction, written before the first run. The reader already announces 32 entries ahead within a frame
of about 1 MiB, so with entries of 10 KiB, a drive already has a queue: 1.0. With 1 MiB, every entry is a separate
frame, and the drive has one at a time: 1.2 to 1.4 on a drive as fast as this one, and more on a drive that is slower to
start. 100 KiB lies in between: 1.05 to 1.15. Several batches in flight fill the queue by themselves, so the effects are
smaller. Warm: 0.98 to 1.02, which is noise."""
FIRST_RUN = """The first run, on a machine that was very busy with other work, agreed except for 10 KiB: 0.82 to 0.95,
because files were opened twice. Since then, frames of more than 32 entries are not announced. For 16 MiB, the result
was 0.83 to 0.87, because the kernel's own read-ahead does better. Since then, entries in several pieces are left to the
kernel. Warm batches and those of 16 MiB announce nothing, so any deviation of their ratios from 1 is noise."""


def _serve(drive: str, readahead_bytes: int, pipe: Connection) -> None:
    from storage_node.server import NodeServer
    from storage_node.settings.config import ServerConfig

    with NodeServer([drive], ServerConfig(port=0, readahead_bytes=readahead_bytes)) as node:
        pipe.send(node.url)
        while pipe.recv() is not None:
            assert node.batches is not None
            readahead = node.batches.resources.readahead
            pipe.send((readahead.announced_bytes, readahead.waited_frames))


class Node:
    """A node in a process of its own, with as much read-ahead as given."""

    def __init__(self, drive: Path, readahead_bytes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(str(drive), readahead_bytes, there), daemon=True)
        self._process.start()
        self.url = str(self._answer())

    def _answer(self) -> object:
        if not self._pipe.poll(60):
            raise TimeoutError("the node did not answer within 60 s")
        return self._pipe.recv()

    def counted(self) -> tuple[int, int]:
        """Bytes announced ahead, and frames that had to wait for the drive."""
        self._pipe.send("counted")
        announced_bytes, waited_frames = self._answer()  # type: ignore[misc]
        return int(announced_bytes), int(waited_frames)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join(10)
        self._process.terminate()


def object_files(store: Path) -> list[str]:
    return [os.path.join(folder, name) for folder, _, names in os.walk(store / "objects") for name in names]


def chill(paths: Sequence[str]) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def name(kind: str, way: str) -> str:
    return f"{way}, {kind} read-ahead"


def linked(store: Path, copy: Path) -> Path:
    """A second store over the same (immutable) object files."""
    shutil.copytree(
        store,
        copy,
        copy_function=lambda source, target: (
            os.link(source, target) if "/objects/" in source else shutil.copy2(source, target)
        ),
    )
    return copy


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> tuple[dict[str, list[float]], str]:
    """Objects per second of each way in each round, and what was announced and waited for, in a sentence."""
    store = folder / "store"
    fill(store, count, size_bytes)
    os.sync()  # dirty pages cannot be forgotten
    paths, names = object_files(store), object_names(count)
    batch = max(8, min(BATCH, (128 << 20) // size_bytes))
    with ExitStack() as held:
        nodes = {
            "with": held.enter_context(Node(store, 64 << 20)),
            "without": held.enter_context(Node(linked(store, folder / "copy"), 0)),
        }
        clients = {kind: held.enter_context(ais_loader.connect(node.url, mode="r")) for kind, node in nodes.items()}
        seeds = iter(range(10**6))
        cold_bytes = 0

        def run_of(kind: str, way: str) -> Callable[[], float]:
            in_flight = 1 if "one" in way else 3

            def run() -> float:
                nonlocal cold_bytes
                if way.startswith("cold"):
                    chill(paths)
                    cold_bytes += count * size_bytes if kind == "with" else 0
                else:
                    get_batches(clients[kind], names, batch, in_flight, 0)
                start = time.perf_counter()
                get_batches(clients[kind], names, batch, in_flight, next(seeds))
                return count / (time.perf_counter() - start)

            return run

        contestants = {name(kind, way): run_of(kind, way) for way in WAYS for kind in KINDS}
        rates: dict[str, list[float]] = {contestant: [] for contestant in contestants}
        for work in contestants.values():
            work()
        cold_bytes, before = 0, {kind: node.counted() for kind, node in nodes.items()}
        for number in range(rounds):
            for way in WAYS:
                # Each comes first in every other round: what the first one did to the drive is the second one's luck.
                for kind in KINDS if number % 2 else KINDS[::-1]:
                    rates[name(kind, way)].append(contestants[name(kind, way)]())
        after = {kind: node.counted() for kind, node in nodes.items()}
        announced = (after["with"][0] - before["with"][0]) / cold_bytes
        waited = {kind: after[kind][1] - before[kind][1] for kind in KINDS}
        return rates, (
            f"Of the bytes read cold, {announced:.0%} had been announced ahead. Frames that had to wait for the drive: "
            f"{waited['with']:,} with read-ahead, {waited['without']:,} without."
        )


def drive_speed(folder: Path, size: int = 256 << 20) -> str:
    """What one read after another takes, past the page cache: the drive's own time."""
    path = folder / "probe"
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(random.randbytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    import mmap

    found = []
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        for bytes_ in (4 << 10, 128 << 10, 1 << 20):
            buffer, took = mmap.mmap(-1, bytes_), []
            for _ in range(200):
                offset = random.randrange(size // bytes_) * bytes_
                start = time.perf_counter()
                os.preadv(fd, [buffer], offset)
                took.append(time.perf_counter() - start)
            found.append(f"{bytes_ >> 10} KiB {statistics.median(took) * 1e6:,.0f} µs")
    finally:
        os.close(fd)
        path.unlink()
    return ", ".join(found)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400,1048576,16777216", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=6, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="On the drive to be measured; else a temporary folder.")
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, folder: Path | None, write: bool) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as here:
        drive = drive_speed(Path(here))
    parts = [
        f"# Read-ahead\n\n{(__doc__ or '').strip().splitlines()[0]}\n\n{PREDICTION}\n\n{FIRST_RUN}\n\n"
        f"Machine: {machine()}. {rounds} rounds; one client, {BATCH} entries per batch (8 of 16 MiB). Drive, one "
        f"random read at a time: {drive}.\n"
    ]
    missed = 0
    for size_bytes in map(int, sizes.split(",")):
        count = COUNTS.get(size_bytes, 1_000)
        with tempfile.TemporaryDirectory(dir=folder) as here:
            rates, counts = measure(size_bytes, count, rounds, Path(here))
        outcomes = judge(rates, [Claim(name("with", way), name("without", way), 0.95) for way in WAYS])
        missed += sum(not outcome.reached for outcome in outcomes)
        section = (
            f"## {count:,} objects of {label(size_bytes)}\n\n{rates_table(rates, 'objects/s', size_bytes)}\n\n"
            f"{claims_table(outcomes)}\n\n{counts} "
            f"Afterwards: {load()}.\n"
        )
        click.echo(section)
        parts.append(section)
    conclude("\n".join(parts), TABLE if write else None, reached=not missed)


if __name__ == "__main__":
    main()
