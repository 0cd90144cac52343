"""First reads compared with second ones: after a write, after a start of the node, in a new process, and of members.

A training on a large data set reads each sample once per epoch, often with new worker processes, so that the first
epoch is what its user waits for. The page cache is warm throughout: what a first read costs more is finding the object,
and memory and files that are new to the process.

    python -m benchmarks.reads.first_epoch  # writes the table beside this file

A pass reads every object of 10 KiB once, in random order, in batches of 128. Each round makes new stores:

- *after write*: the objects are put with `put_many` and read twice, by the process that put them (embedded), or from
  the node that got them.
- *after start*: the node is started on them anew and read twice.
- *new process*: a new process opens the store with `mode="r"` and reads twice. Its first pass includes all that is done
  lazily on first use. With several readers, each reads its part.
- *first GET*: an object is put to a node, and got twice, one after another.
- *members*: members of 10 KiB, of 16 tars and of 600, in random order; the second passes.
- *memory*: what a reader has of its own (USS) after both passes, beyond a process that only has imported the client.

Predictions, written before the first run of the changed code: a first pass is 0.35 of a second one before, and 0.8
after a write and after a start once commits and a scan fill the table of locations. A new process stays at 0.6, because
it has to read the catalog itself, which takes at least half as long as reading the objects.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import psutil

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
    *(Claim(f"embedded, new process ×{n}, first", f"embedded, new process ×{n}, second", 0.8) for n in READERS),
    *(Claim(f"node, new process ×{n}, first", f"node, new process ×{n}, second", 0.8) for n in READERS[:2]),
    Claim("node, single GET, first", "node, single GET, second", 0.7),
    *(Claim(f"embedded, members ×{n}, 600 tars", f"embedded, members ×{n}, 16 tars", 1 / 1.5) for n in (1, 4)),
]
Rates = defaultdict[str, list[float]]


def name_of(number: int) -> str:
    return f"{number:08}"


def fill(bucket: Bucket, count: int) -> None:
    ring = seeded_bytes(OBJECT_BYTES + 1_000)
    bucket.put_many((name_of(at), ring[at % 1_000 : at % 1_000 + OBJECT_BYTES]) for at in range(count))


def read(bucket: Bucket, entries: Sequence[Entry | str]) -> float:
    """Read a part once in random order. Returns entries/s."""
    order = random.sample(entries, len(entries))
    began_s = time.perf_counter()
    read_bytes = 0
    for first in range(0, len(order), BATCH):
        for item in bucket.get_batch(order[first : first + BATCH]):
            read_bytes += len(item.data)
    taken_s = time.perf_counter() - began_s
    if read_bytes != len(order) * OBJECT_BYTES:
        raise SystemExit(f"{read_bytes:,} bytes came of {len(order)} entries")
    return len(order) / taken_s


def _reader(url: str, number: int, pipe: Connection) -> None:
    """Answer each list of entries with the rate of one pass over it and the process's own memory."""
    process = psutil.Process()
    before_bytes = process.memory_full_info().uss
    options: dict[str, Any] = {} if "://" in url else {"mode": "r"}
    with ais_loader.connect(url, **options) as client:
        bucket = client.bucket("b")
        while (entries := pipe.recv()) is not None:
            rate = read(bucket, entries)
            pipe.send((rate, process.memory_full_info().uss - before_bytes))


def in_new_processes(url: str, readers: int, entries: Sequence[Entry | str], passes: int = 2) -> list[list[Any]]:
    """Return the answers of each reader to each pass over its own part."""
    parts = [entries[number::readers] for number in range(readers)]
    with Workers(_reader, url, readers) as workers:
        return [workers.ask(parts) for _ in range(passes)]


def note(rates: Rates, name: str, first: float, second: float) -> None:
    rates[f"{name}, first"].append(first)
    rates[f"{name}, second"].append(second)


def note_processes(
    rates: Rates, memory: Rates, store: str, url: str, names: Sequence[str], readers: Sequence[int]
) -> None:
    for count in readers:
        first, second = in_new_processes(url, count, names)
        note(rates, f"{store}, new process ×{count}", *(sum(rate for rate, _ in of) for of in (first, second)))
        memory[f"{store} ×{count}"].append(statistics.mean(own for _, own in second))


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
        note_processes(rates, memory, "embedded", url, names, READERS)
    with room() as folder:
        with NodeProcess(folder) as node, ais_loader.connect(node.url) as client:
            bucket = client.create_bucket("b")
            fill(bucket, count)
            note(rates, "node, after write", read(bucket, names), read(bucket, names))
            note_processes(rates, memory, "node", node.url, names, READERS[:2])
            for first_s, second_s in [[statistics.median(of) for of in zip(*singles(bucket), strict=True)]]:
                note(rates, "node, single GET", 1 / first_s, 1 / second_s)
        with NodeProcess(folder) as node, ais_loader.connect(node.url) as client:
            bucket = client.bucket("b")
            note(rates, "node, after start", read(bucket, names), read(bucket, names))
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
                rates[f"embedded, members ×{readers}, {shards} tars"].append(sum(rate for rate, _ in second))


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
