"""Cost of reads as a store grows: members of 16 to 1,000 archives, objects of small and large catalogs, duplicates.

    python -m benchmarks.reads.scale  # about ten minutes; writes the table beside this file

Everything is embedded, in the page cache, and read in batches of 128 at random places. Rates are entries per second of
this process's processor time, because the machine is shared. Archives are tars of 200 members of 1 KB, in the largest
set more than stay open with 1,024 descriptors (128), and fewer than with 20,000, as here (2,500). "one duplicate" is a
batch of 128 entries of 10 KiB, of which one is another again.

Catalogs have 10^4 to 10^7 objects of 500 bytes. Their entries are written in random order, ten thousand at a time, and
the store is closed as any other; up to 32,768 objects have bytes of their own, and the entries of the others name those
(benchmarks/kit/many_objects.py). Another process reads it. "known": the locations of all objects are in memory, as
after each was read once. "not known": the locations of a batch's objects are forgotten before its time is taken, so
that the catalog is asked for each; it is as its writer left it, or, "compacted", as `ais-loader doctor --compact`
leaves it.

Prediction, written before the changes of archives and catalogs: with indexes that stay in memory, members of 1,000
archives cost about twice those of 16, where they cost fifteen times as much before, because each index was read whole
again. A Bloom filter, a larger block cache, and finished compactions make a look-up among a million objects cost at
most twice one among 10,000. One duplicate costs nothing, where it cost 43 %, because its whole frame was read entry by
entry. Found: members of 1,000 archives went from 6,300 to 40,600 entries a second, and since the number of archives
that stay open follows the limit on descriptors, they take twice as long as those of 16. Look-ups among a million
objects went from 39,600 to 63,100. One duplicate in a batch costs nothing.

Then locations of ten million objects came to be kept, where there had been room for 300,000. Finding a name among 10^4,
10^5, 10^6 and 10^7 of them took 0.11, 0.32, 0.63 and 0.87 µs, because the slot, the row, the key and the file are four
cache misses in turn. Prefetched for 64 names at a time, it takes 0.09, 0.15, 0.23 and 0.33 µs, and an object 66 bytes
instead of 79. The look-up in RocksDB alone takes 1.0, 1.4, 3.3 and 6.6 µs. Prediction from these parts, written before
the first run with 10^7: everything else about a small object takes 2.3 µs, so that ten million known objects cost at
most 1.5 times 10,000; not known, they cost four times as much, and compacting does not change that. Found: known, 1.2
times 10,000; not known, 2.2 times.
"""

from __future__ import annotations

import io
import random
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import numpy as np

import ais_loader
from ais_loader import Client, Entry
from ais_loader.testing import seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.many_objects import BUCKET, STORED, make_store, name_of
from benchmarks.kit.pages import publish
from storage_node.store.format import object_key
from storage_node.store.store import Store

TABLE = Path(__file__).with_suffix(".md")
ARCHIVES = (16, 64, 256, 1000)
MEMBERS = 200
OBJECTS = (10_000, 100_000, 1_000_000, 10_000_000)
READ_AT_ONCE = 10_000
BATCH = 128
BATCHES = 100


def archive(number: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for at in range(MEMBERS):
            info = tarfile.TarInfo(f"{number:05}_{at:06}.txt")
            info.size = 1000
            tar.addfile(info, io.BytesIO(seeded_bytes(1000, seed=number * MEMBERS + at)))
    return file.getvalue()


def members(archives: int, draw: random.Random) -> list[Entry]:
    places = [(draw.randrange(archives), draw.randrange(MEMBERS)) for _ in range(BATCH)]
    return [Entry("shards", f"{shard:05}.tar", f"{shard:05}_{at:06}.txt") for shard, at in places]


def duplicates_of(duplicates: int, draw: random.Random) -> list[Entry]:
    numbers = draw.sample(range(4000), BATCH - duplicates)
    numbers += draw.choices(numbers, k=duplicates)
    return [Entry("small", f"{number:08}") for number in numbers]


def objects_of(objects: int, draw: random.Random) -> list[Entry]:
    return [Entry(BUCKET, name_of(number)) for number in draw.sample(range(objects), BATCH)]


def rate(
    client: Client,
    batch_of: Callable[[random.Random], Sequence[Entry]],
    draw: random.Random,
    forgets: bool = False,
) -> float:
    """Entries per second of processor time, in batches that no round had before: what was read is cached."""
    batches = [batch_of(draw) for _ in range(BATCHES)]
    taken_s = 0.0
    for batch in batches:
        if forgets:
            forget(client, batch)
        started_s = time.process_time()
        for item in client.get_batch(batch):
            assert item.ok
        taken_s += time.process_time() - started_s
    return len(batches) * BATCH / taken_s


def learn_all(client: Client, objects: int) -> None:
    """Keep the locations of all objects, as if each had been read once, which would take minutes."""
    store = client._transport._store_here()  # type: ignore[attr-defined]
    (drive,) = store.drives
    prefix = object_key(store.bucket(BUCKET).uuid_bytes, "")
    stored = range(min(objects, STORED))
    known = drive.lookup(store.bucket(BUCKET).uuid_bytes, [name_of(number) for number in stored])
    places = [(entry.path, entry.offset, entry.size_bytes, entry.checksum) for entry in known]
    order = np.random.default_rng(objects + 1).permutation(objects)
    for first in range(0, objects, READ_AT_ONCE):
        numbers = order[first : first + READ_AT_ONCE].tolist()
        rows = [(prefix + b"%08d" % number, *places[number % len(places)]) for number in numbers]
        drive._cache.locations.add(rows)
    assert len(drive.learned) == objects


def compact(folder: Path) -> None:
    """Compact the catalog, as the doctor does. It would also check the segments, which objects share here."""
    with Store.open([folder], mode="a", compact_bytes_per_s=0) as store:
        for drive in store.drives:
            if drive is not None:
                drive.compact()


def forget(client: Client, batch: Sequence[Entry]) -> None:
    """Forget what is known of these objects, as a commit that changes them does."""
    store = client._transport._store  # type: ignore[attr-defined]
    bucket_uuid = store.bucket(BUCKET).uuid_bytes
    for drive in store.drives:
        with drive._cache.changing([object_key(bucket_uuid, entry.name) for entry in batch]):
            pass


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--most-objects", default=OBJECTS[-1], show_default=True, help="Leave out larger catalogs.")
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(rounds: int, folder: Path | None, most_objects: int, write: bool) -> None:
    sizes = [objects for objects in OBJECTS if objects <= most_objects]
    with tempfile.TemporaryDirectory(dir=folder) as name, ExitStack() as held:
        here = Path(name)
        with ais_loader.connect(here / "reads") as client:
            client.create_bucket("shards").put_many((f"{at:05}.tar", archive(at)) for at in range(ARCHIVES[-1]))
            small = ((f"{at:08}", seeded_bytes(10_240, seed=at)) for at in range(4000))
            client.create_bucket("small").put_many(small)
        for objects in sizes:
            make_store(here / f"{objects}", objects)
            shutil.copytree(here / f"{objects}", here / f"{objects}-compacted", symlinks=True)
            compact(here / f"{objects}-compacted")
        reads = held.enter_context(ais_loader.connect(here / "reads", mode="r"))
        draw = random.Random(1)
        contestants: dict[str, Callable[[], float]] = {
            f"members of {count:,} archives": partial(rate, reads, partial(members, count), draw) for count in ARCHIVES
        }
        for objects in sizes:
            as_left = held.enter_context(ais_loader.connect(here / f"{objects}", mode="r"))
            compacted = held.enter_context(ais_loader.connect(here / f"{objects}-compacted", mode="r"))
            learn_all(as_left, objects)
            batch_of = partial(objects_of, objects)
            contestants[f"{objects:,} objects, known"] = partial(rate, as_left, batch_of, draw)
            contestants[f"{objects:,} objects, not known"] = partial(rate, as_left, batch_of, draw, True)
            contestants[f"{objects:,} objects, not known, compacted"] = partial(rate, compacted, batch_of, draw, True)
        for label, duplicates in (("no duplicate", 0), ("one duplicate", 1)):
            contestants[label] = partial(rate, reads, partial(duplicates_of, duplicates), draw)
        rates = run_rounds(contestants, rounds)
    claims = [Claim("members of 1,000 archives", "members of 16 archives", 0.5)]
    claims += [Claim(f"{objects:,} objects, known", f"{sizes[0]:,} objects, known", 0.5) for objects in sizes[1:]]
    claims.append(Claim("one duplicate", "no duplicate", 0.95))
    publish(
        "Reads as a store grows",
        __doc__,
        f"{rounds} rounds.",
        rates,
        "entries per second",
        claims,
        table=TABLE if write else None,
    )


if __name__ == "__main__":
    main()
