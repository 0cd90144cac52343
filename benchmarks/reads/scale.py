"""Cost of reads as a store grows: members of 16 to 1,000 archives, objects of small and large catalogs, duplicates.

    python -m benchmarks.reads.scale  # about five minutes; writes the table beside this file

Everything is embedded, in the page cache, and read in batches of 128 at random places. Rates are entries per second of
this process's processor time, because the machine is shared. Archives are tars of 200 members of 1 KB, in the largest
set more than stay open with 1,024 descriptors (128), and fewer than with 20,000, as here (2,500). Catalogs are filled
once in random order, closed, and read by another process, as most stores are; their objects have 500 bytes. "one
duplicate" is a batch of 128 entries of 10 KiB, of which one is another again.

Prediction, written before the changes that this page measures: with indexes that stay in memory, members of 1,000
archives cost about twice those of 16, where they cost fifteen times as much before, because each index was read whole
again. A Bloom filter, a larger block cache, and finished compactions make a look-up among a million objects cost at
most twice one among 10,000. One duplicate costs nothing, where it cost 43 %, because its whole frame was read entry by
entry.

Found, before and after the changes, on the same machine within half an hour: members of 1,000 archives went from 6,300
to 40,600 entries a second, and of 16 from 77,200 to 141,800. Their ratio went from 0.08 to 0.28, not to 0.5: opening an
archive whose descriptor was closed is what is left. Look-ups among a million objects went from 39,600 to 63,100, and
the ratio from 0.31 to 0.51. One duplicate in a batch had cost 43 % and costs nothing.

Then the number of archives that stay open came to follow the process's limit on descriptors, where it had been 128.
Predicted: 0.5 for 1,000 archives; found: 0.52. Since then, a batch whose objects are all known by their locations takes
no look-up: 10,000 objects are, after their first batches, and 1,000,000 are not, so that their ratio fell a little.
"""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

import ais_loader
from ais_loader import Client, Entry
from ais_loader.testing import seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish

TABLE = Path(__file__).with_suffix(".md")
ARCHIVES = (16, 64, 256, 1000)
MEMBERS = 200
OBJECTS = (10_000, 100_000, 1_000_000)
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


def objects_of(bucket: str, objects: int, duplicates: int, draw: random.Random) -> list[Entry]:
    numbers = draw.sample(range(objects), BATCH - duplicates)
    numbers += draw.choices(numbers, k=duplicates)
    return [Entry(bucket, f"{number:08}") for number in numbers]


def rate(client: Client, batch_of: Callable[[random.Random], Sequence[Entry]], draw: random.Random) -> float:
    """Entries per second of processor time, in batches that no round had before: what was read is cached."""
    batches = [batch_of(draw) for _ in range(BATCHES)]
    started_s = time.process_time()
    for batch in batches:
        for item in client.get_batch(batch):
            assert item.ok
    return len(batches) * BATCH / (time.process_time() - started_s)


def fill(folder: Path, objects: int) -> None:
    order = list(range(objects))
    random.Random(objects).shuffle(order)
    data = seeded_bytes(500, seed=objects)
    with ais_loader.connect(folder) as client:
        client.create_bucket("b").put_many((f"{number:08}", data) for number in order)


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
            fill(here / f"{objects}", objects)
        reads = held.enter_context(ais_loader.connect(here / "reads", mode="r"))
        draw = random.Random(1)
        contestants: dict[str, Callable[[], float]] = {
            f"members of {count:,} archives": partial(rate, reads, partial(members, count), draw) for count in ARCHIVES
        }
        for objects in sizes:
            client = held.enter_context(ais_loader.connect(here / f"{objects}", mode="r"))
            contestants[f"{objects:,} objects"] = partial(rate, client, partial(objects_of, "b", objects, 0), draw)
        for label, duplicates in (("no duplicate", 0), ("one duplicate", 1)):
            contestants[label] = partial(rate, reads, partial(objects_of, "small", 4000, duplicates), draw)
        rates = run_rounds(contestants, rounds)
    claims = [Claim("members of 1,000 archives", "members of 16 archives", 0.5)]
    claims += [Claim(f"{objects:,} objects", f"{sizes[0]:,} objects", 0.5) for objects in sizes[1:]]
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
