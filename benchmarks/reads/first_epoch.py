"""First reads compared with second ones: after a write, after a start of the node, in a new process, and of members.

A training on a large data set reads each sample once per epoch, often with new worker processes, so that the first
epoch is what its user waits for. The page cache is warm throughout: what a first read costs more is finding the object,
and memory and files that are new to the process. Rates are by processor time, of the reader with all its threads and
of the node, since the machine is shared; those of single GETs are by the clock.

    python -m benchmarks.reads.first_epoch  # writes the table beside this file

A pass reads every object of 10 KiB once, in random order, in batches of 128. Each round makes new stores:

- *after write*: the objects are put with `put_many` and read twice, by the process that put them (embedded), or from
  the node that got them.
- *after start*: the node is started on them anew and read twice, by a client that has got one object.
- *new process*: a new process opens the store with `mode="r"` and reads twice. Its first pass includes all that is done
  lazily on first use. With several readers at once, each reads its part, and the rate is their mean.
- *single GET*: an object is put to a node, and got twice, one after another.
- *members*: members of 10 KiB, of 16 tars and of 600, in random order; the second passes.
- *memory*: what the passes add to the anonymous memory of a reader, without pages of mapped files.

Predictions, written before the first run of the changed code: a first pass is 0.35 of a second one before, and 0.8
after a write and after a start once commits and a scan fill the table of locations. A new process stays at 0.6, because
it has to read the catalog itself, which takes at least half as long as reading the objects.

Measured before, in the order of the ratios below: 0.32, 0.46, 0.51, 0.38, 0.25, 0.25, 0.21, 0.44, 0.40. Then, with
commits and a scan that fill the table: 0.72, 0.86, 0.73, 0.47, 0.29, 0.28, 0.76, 0.43, 0.65.

Predictions for a table that processes share in a file: a new process ×1 comes to 0.85, since nothing is left to look
up. With eight readers it comes to 0.65 only: each reads 1,600 objects in 5 ms, and opens and maps the same hundred
segments for them, which takes 2 ms. After a write and after a start nothing changes, unless segments are mapped sooner.

What was found: touching 64 KiB of a mapping for the first time takes 2 to 4 µs, so that a reader of one object in
eight spends more on its page tables than it saves. Mapped at the first read, new processes came to 0.80, 0.50 and 0.38.
So a segment is now kept open, and mapped once as many bytes have been read as it has. A catch-up with a catalog that no
writer has opened took 1 ms of the first batch; it is left out. What is left are the buffers of the first two batches,
which are new memory, and the Python of a first batch. The second passes of several readers read from descriptors too,
and are slower than mapped ones: 0.35 ms for a batch instead of 0.15 ms.

Members: all 600 tars are open where a process may have 20,000 descriptors. A batch of 128 members is from 115 tars, and
for each of them Python is entered: the look-ups in their indexes take half the time of the batch.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click

import ais_loader
from ais_loader import Bucket, Entry
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, page, rates_table
from benchmarks.kit.workers import Workers
from tests.tar_kit import packed_tar

OBJECT_BYTES, BATCH = 10 << 10, 128
TABLE = Path(__file__).with_suffix(".md")
READERS = (1, 4, 8)
SHARDS = (16, 600)
MEMBERS = 9_600
SINGLE = 200
CLAIMS = [
    Claim("embedded, after write, first", "embedded, after write, second", 0.8),
    Claim("node, after write, first", "node, after write, second", 0.8),
    Claim("node, after start, first", "node, after start, second", 0.8),
    *(Claim(f"new process ×{n}, first", f"new process ×{n}, second", 0.8) for n in READERS),
    Claim("node, single GET, first", "node, single GET, second", 0.7),
    *(Claim(f"members ×{n}, 600 tars", f"members ×{n}, 16 tars", 0.66) for n in (1, 4)),
]
Rates = defaultdict[str, list[float]]


def name_of(number: int) -> str:
    return f"{number:08}"


def fill(bucket: Bucket, count: int) -> None:
    ring = seeded_bytes(OBJECT_BYTES + 1_000)
    bucket.put_many((name_of(at), ring[at % 1_000 : at % 1_000 + OBJECT_BYTES]) for at in range(count))


def spent_s(pid: int | None) -> float:
    """Return the processor time of this process, and of the threads of another one."""
    spent = time.process_time()
    for task in () if pid is None else Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            spent += int((task / "schedstat").read_text().split()[0]) / 1e9
    return spent


def read(bucket: Bucket, entries: Sequence[Entry | str], node_pid: int | None = None) -> float:
    """Read a part once in random order. Returns entries for each second of processor time."""
    order = random.sample(entries, len(entries))
    began_s = spent_s(node_pid)
    read_bytes = 0
    for first in range(0, len(order), BATCH):
        for item in bucket.get_batch(order[first : first + BATCH]):
            read_bytes += len(item.data)
    taken_s = spent_s(node_pid) - began_s
    if read_bytes != len(order) * OBJECT_BYTES:
        raise SystemExit(f"{read_bytes:,} bytes came of {len(order)} entries")
    return len(order) / taken_s


def own_bytes() -> int:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(rollup.partition("Anonymous:")[2].split()[0])


def _reader(url: str, number: int, pipe: Connection) -> None:
    """Answer each list of entries with the rate of one pass over it and the process's own memory."""
    before_bytes = own_bytes()
    with ais_loader.connect(url, mode="r") as client:
        bucket = client.bucket("b")
        while (entries := pipe.recv()) is not None:
            rate = read(bucket, entries)
            pipe.send((rate, own_bytes() - before_bytes))


def in_new_processes(url: str, readers: int, entries: Sequence[Entry | str], passes: int = 2) -> list[list[Any]]:
    """Return the answers of each reader to each pass over its own part."""
    parts = [entries[number::readers] for number in range(readers)]
    with Workers(_reader, url, readers) as workers:
        return [workers.ask(parts) for _ in range(passes)]


def note(rates: Rates, name: str, first: float, second: float) -> None:
    rates[f"{name}, first"].append(first)
    rates[f"{name}, second"].append(second)


def singles(bucket: Bucket) -> Iterator[tuple[float, float]]:
    """Yield the seconds of a first and of a second GET of an object that was just put."""
    data = seeded_bytes(OBJECT_BYTES)
    for number in range(SINGLE):
        bucket.put(f"single/{number}", data)
        took_s = []
        for _ in range(2):
            began_s = time.perf_counter()
            bucket.get(f"single/{number}")
            took_s.append(time.perf_counter() - began_s)
        yield took_s[0], took_s[1]


@contextmanager
def room() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def round_of(rates: Rates, memory: Rates, count: int) -> None:
    names = [name_of(number) for number in range(count)]
    with room() as folder:
        url = str(folder / "store")
        with ais_loader.connect(url) as client:
            bucket = client.create_bucket("b")
            fill(bucket, count)
            note(rates, "embedded, after write", read(bucket, names), read(bucket, names))
        for readers in READERS:
            first, second = in_new_processes(url, readers, names)
            note(rates, f"new process ×{readers}", *(statistics.mean(rate for rate, _ in of) for of in (first, second)))
            memory[f"{readers}"].append(statistics.mean(own for _, own in second))
    with room() as folder:
        with NodeProcess(folder) as node, ais_loader.connect(node.url) as client:
            bucket = client.create_bucket("b")
            fill(bucket, count)
            note(rates, "node, after write", *(read(bucket, names, node.pid) for _ in range(2)))
            first_s, second_s = (statistics.median(of) for of in zip(*singles(bucket), strict=True))
            note(rates, "node, single GET", 1 / first_s, 1 / second_s)
        with NodeProcess(folder) as node, ais_loader.connect(node.url) as client:
            bucket = client.bucket("b")
            bucket.get(names[0])
            note(rates, "node, after start", *(read(bucket, names, node.pid) for _ in range(2)))
    for shards in SHARDS:
        with room() as folder:
            url, ring = str(folder / "store"), seeded_bytes(OBJECT_BYTES + MEMBERS)
            per_shard = MEMBERS // shards
            with ais_loader.connect(url) as client:
                bucket = client.create_bucket("b")
                for shard in range(shards):
                    members = range(shard * per_shard, (shard + 1) * per_shard)
                    bucket.put(f"{shard}.tar", packed_tar({f"{at}": ring[at : at + OBJECT_BYTES] for at in members}))
            entries = [Entry("b", f"{at // per_shard}.tar", f"{at}") for at in range(MEMBERS)]
            for readers in (1, 4):
                (second,) = in_new_processes(url, readers, entries)[1:]
                rates[f"members ×{readers}, {shards} tars"].append(statistics.mean(rate for rate, _ in second))


@click.command(help=__doc__)
@click.option("--rounds", default=5, show_default=True)
@click.option("--objects", default=12_800, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(rounds: int, objects: int, write: bool) -> None:
    rates: Rates = defaultdict(list)
    memory: Rates = defaultdict(list)
    for _ in range(rounds):
        round_of(rates, memory, objects)
    outcomes = judge(rates, CLAIMS)
    rows = [f"| {name} | {statistics.median(of) / 2**20:,.0f} MiB |" for name, of in memory.items()]
    parts = [
        rates_table(rates, "entries/s"),
        claims_table(outcomes),
        "\n".join(["| readers | own memory of each, median |", "|---|---:|", *rows]),
    ]
    setting = f"{rounds} rounds of {objects:,} objects; {MEMBERS:,} members; {SINGLE} single objects."
    text = page("The first epoch", __doc__ or "", setting, *parts)
    click.echo(text)
    conclude(text + "\n", TABLE if write else None, reached=all(outcome.reached for outcome in outcomes))


if __name__ == "__main__":
    main()
