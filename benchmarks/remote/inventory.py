"""First batch of a run over a remote bucket with many names, whose inventory the store has.

    python -m benchmarks.remote.inventory  # writes the table beside this file

The remote storage is a folder in memory, whose files are empty but for those of the measured batches. A round makes a
MapDataset of the bucket's URL, which lists it, and reads a batch of 16 cold objects. "listed" has no inventory, and
asks a folder with a tenth as many names.

Prediction, written before the first run: the dataset needs the names alone, 40 bytes each, which a node sends at
1 GB/s, so that the first batch of a million names comes after 0.3 s. The node's memory does not grow with their number.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

import ais_loader
from ais_loader import Bucket, MapDataset, Remote
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import conclude, page

BATCH = 16
TABLE = Path(__file__).with_suffix(".md")
WANTED_S = 2.0


def name_of(number: int) -> str:
    return f"train/en/{number // 1000:06}/{number:09}.flac"


def made(place: Path, names: int) -> None:
    for number in range(names):
        path = place / name_of(number)
        if not number % 1000:
            path.parent.mkdir(parents=True)
        path.touch()


@contextlib.contextmanager
def store(kind: str, root: Path, place: Path) -> Iterator[tuple[str, NodeProcess | None]]:
    """Yield the URL of a store, and its process."""
    if kind == "grpc":
        with NodeProcess(root / "node", arguments=("--set", f"remote_file_roots={place}")) as node:
            yield node.url, node
    else:
        yield str(root / "embedded"), None


def peak_mb(pid: int) -> float:
    """Return the most memory that a process had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


def measured(kind: str, root: Path, place: Path, names: int, rounds: int) -> tuple[list[str], bool]:
    """Return lines of the table, and whether all rounds were quick enough."""
    batches = [random.Random(at).sample(range(names), BATCH) for at in range(rounds)]
    for number in itertools.chain(*batches):
        (place / name_of(number)).write_bytes(b"x" * 1000)
    with store(kind, root, place) as (url, node), ais_loader.connect(url) as client:
        bucket = client.create_bucket("train", remote=Remote(f"file://{place}"))
        began_s = time.perf_counter()
        bucket.refresh_inventory()
        refresh_s = time.perf_counter() - began_s
        times = []
        for batch in batches:
            began_s = time.perf_counter()
            dataset = MapDataset(client, "ais://train/train/")
            assert len(dataset) == names and all(len(data) == 1000 for data in dataset.__getitems__(batch))
            times.append(time.perf_counter() - began_s)
        memory = f"{peak_mb(node.pid):,.0f}" if node is not None else "–"
        assert_pages(bucket)
    spread = f"{min(times):.2f} – {max(times):.2f}"
    line = f"| {kind} | {names:,} | {refresh_s:.1f} | **{statistics.median(times):.2f}** | {spread} | {memory} |"
    return [line], statistics.median(times) < WANTED_S


def assert_pages(bucket: Bucket) -> None:
    """Read some pages of objects with their sizes."""
    infos = list(itertools.islice(bucket.objects(), 20_000))
    assert [info.name for info in infos] == [name_of(number) for number in range(20_000)]


def listed(root: Path, place: Path, names: int) -> str:
    made(place, names)
    with ais_loader.connect(str(root / "of-listing")) as client:
        bucket = client.create_bucket("train", remote=Remote(f"file://{place}"))
        began_s = time.perf_counter()
        assert len(bucket.entries("train/")) == names
        return f"| listed | {names:,} | – | {time.perf_counter() - began_s:.2f} | – | – |"


@click.command()
@click.option("--names", default=200_000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--kind", "kinds", multiple=True, default=("embedded", "grpc"), show_default=True)
@click.option("--folder", default="/dev/shm", show_default=True, help="For the stores.")
@click.option("--table/--no-table", default=True, show_default=True, help="Write inventory.md.")
def main(names: int, rounds: int, kinds: tuple[str, ...], folder: str, table: bool) -> None:
    lines = [
        f"| store | names | refresh, s | first batch, s (median; wanted < {WANTED_S:g}) | range | node's peak MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    reached = True
    with tempfile.TemporaryDirectory(dir=folder) as root:
        place = Path(root, "place")
        made(place, names)
        for kind in kinds:
            more, quick = measured(kind, Path(root), place, names, rounds)
            lines, reached = lines + more, reached and quick
            click.echo(more[0], file=sys.stderr)
        lines.append(listed(Path(root), Path(root, "listed"), names // 10))
    text = page("Inventories of remote buckets", __doc__, f"{rounds} rounds; batches of {BATCH}.", "\n".join(lines))
    click.echo(text)
    conclude(text + "\n", TABLE if table else None, reached=reached)


if __name__ == "__main__":
    main()
