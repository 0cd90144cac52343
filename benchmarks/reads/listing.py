"""Listings: names per second of a listing of objects and of names alone, and how soon a saved table gives a batch.

    python -m benchmarks.reads.listing  # about three minutes; writes the table beside this file

Names have 26 bytes, and objects 3. `objects()` is the listing with sizes, versions and checksums, one Python object
each. `entries()` is a whole EntryTable, of names alone. The bare cursor steps through the catalog of one drive and
reads neither keys nor values. All rates are of wall time; a node is a process of its own on the same machine.

Then a table of ten million names is saved, and a new process that has imported torch opens it with MapDataset and reads
a batch of 128 entries at random places, which are the only ones that the store has, with one forked worker.

Before names were listed alone, `entries()` took as long as `objects()`: it listed these and kept their names.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import numpy as np
from rocksdict import ReadOptions

import ais_loader
from ais_loader import Bucket, Client, EntryTable
from ais_loader.testing.node import NodeProcess
from ais_loader.transport.embedded import EmbeddedTransport
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from storage_node.store import format as fmt

TABLE = Path(__file__).with_suffix(".md")
WIDTH = 26
FIRST_BATCH = """
import sys, time
from torch.utils.data import DataLoader
from ais_loader import MapDataset
wanted = [int(at) for at in sys.argv[3:]]
began_s = time.monotonic()
dataset = MapDataset(sys.argv[1], sys.argv[2])
opened_s = time.monotonic()
batch = next(iter(DataLoader(dataset, batch_sampler=[wanted], collate_fn=list, num_workers=1)))
assert batch == [str(at).encode() for at in wanted]
print(opened_s - began_s, time.monotonic() - began_s)
"""


def fill(url: str, names: int) -> None:
    with ais_loader.connect(url) as client:
        client.create_bucket("b").put_many((f"{number:0{WIDTH}d}", b"abc") for number in range(names))


def step_through(client: Client) -> int:
    transport = client._transport
    assert isinstance(transport, EmbeddedTransport)
    store = transport._store_here()
    (drive,) = store.drives
    assert drive is not None
    cursor, count = drive.catalog._db.iter(ReadOptions()), 0
    cursor.seek(fmt.object_key(store.bucket("b").uuid_bytes, ""))
    while cursor.valid():
        cursor.next()
        count += 1
    return count


def objects_of(bucket: Bucket) -> int:
    return sum(1 for _ in bucket.objects())


def entries_of(bucket: Bucket) -> int:
    return len(bucket.entries())


def rate(listing: Callable[[], int], names: int) -> float:
    began_s = time.perf_counter()
    assert listing() >= names
    return names / (time.perf_counter() - began_s)


def save(path: Path, names: int) -> float:
    """Save a table of the numbers below `names`, of WIDTH digits each; the seconds of the saving."""
    numbers = np.arange(names, dtype=np.int64)
    digits = np.full((names, WIDTH), ord("0"), np.uint8)
    for at in range(len(str(names))):
        digits[:, WIDTH - 1 - at] += (numbers // 10**at % 10).astype(np.uint8)
    table = EntryTable.of_columns("b", [np.full(names, WIDTH, np.int64)], [digits.tobytes()])
    began_s = time.perf_counter()
    table.save(path)
    return time.perf_counter() - began_s


def first_batch(folder: Path, path: Path, names: int) -> tuple[float, float]:
    """Seconds of a new process until the table is open, and until the first batch is there."""
    draw = random.Random(3)
    wanted = [draw.randrange(names) for _ in range(128)]
    with ais_loader.connect(folder) as client:
        bucket = client.create_bucket("b", exist_ok=True)
        bucket.put_many((f"{at:0{WIDTH}d}", f"{at}".encode()) for at in set(wanted))
    command = [sys.executable, "-c", FIRST_BATCH, str(folder), str(path), *map(str, wanted)]
    opened_s, batch_s = map(float, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    return opened_s, batch_s


def saved_part(here: Path, names: int, rounds: int) -> str:
    saved_s = save(here / "entries", names)
    times = sorted(first_batch(here / "few", here / "entries", names) for _ in range(rounds))
    opened_s, batch_s = times[len(times) // 2]
    size_bytes = (here / "entries").stat().st_size
    lines = [
        "| saved table | |",
        "|---|---:|",
        f"| names | {names:,} |",
        f"| bytes per name, of which {WIDTH} are its own | {size_bytes / names:.1f} |",
        f"| saving, synced | {saved_s:.2f} s |",
        f"| opening, median of {rounds} processes | {opened_s * 1000:.1f} ms |",
        f"| first batch of 128, with the opening; wanted: under 3 s | {batch_s:.2f} s |",
    ]
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--names", default=200_000, show_default=True, help="Names in each listed bucket.")
@click.option("--saved", default=10_000_000, show_default=True, help="Names in the saved table.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(names: int, saved: int, rounds: int, folder: Path | None, write: bool) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made, ExitStack() as held:
        here = Path(made)
        two = f"{here / 'first'},{here / 'second'}"
        for url in (str(here / "one"), two, str(here / "served")):
            fill(url, names)
        one = held.enter_context(ais_loader.connect(here / "one", mode="r"))
        node = held.enter_context(NodeProcess([here / "served"]))
        buckets = {
            "one drive": one.bucket("b"),
            "two drives": held.enter_context(ais_loader.connect(two, mode="r")).bucket("b"),
            "node": held.enter_context(ais_loader.connect(node.url, mode="r")).bucket("b"),
        }
        contestants: dict[str, Callable[[], float]] = {"bare cursor": partial(rate, partial(step_through, one), names)}
        for place, bucket in buckets.items():
            contestants[f"objects(), {place}"] = partial(rate, partial(objects_of, bucket), names)
            contestants[f"entries(), {place}"] = partial(rate, partial(entries_of, bucket), names)
        rates = run_rounds(contestants, rounds)
        part = saved_part(here, saved, rounds)
    claims = [Claim(f"entries(), {place}", f"objects(), {place}", 4) for place in buckets]
    claims.append(Claim("entries(), one drive", "bare cursor", 0.2))
    publish(
        "Listings",
        __doc__,
        f"{names:,} names in each bucket, {rounds} rounds.",
        rates,
        "names per second",
        claims,
        part,
        table=TABLE if write else None,
    )


if __name__ == "__main__":
    main()
