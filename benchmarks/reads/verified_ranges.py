"""Byte ranges with and without verification against the block checksums: files, streams, and batches of random ranges.

    python -m benchmarks.reads.verified_ranges  # writes the table beside this file

An object has a checksum for each block of 256 KiB. To verify a range, all of the blocks that it lies in are read.
Everything is in the page cache. "4 KB" and "40 KB" are batches of 64 ranges at random places of an object of 64 MiB,
and "1 MiB" are batches of 16 ranges of whole blocks.

Prediction, written before the first run: Files and streams lose at most 5%, since their ranges consist of whole blocks,
for which a checksum costs about 0.1 ms per MiB; over a lane by a Unix socket, they lose nothing, because the client
compares those in either case. Random ranges of 4 KB cost 5 to 15 times as much embedded, where 64 times as many bytes
are read, and 2 to 5 times as much over a node. Ranges of 40 KB cost 3 to 6 times as much embedded.

Found: over a node, files, streams, and whole blocks cost the same. Embedded, they cost 6 to 13% more processor time for
a MB (stream 190 and 208 µs, ranges of 1 MiB 224 and 253 µs, medians of nine runs in memory). A random range of 4 KB
costs 58 µs instead of 12 µs, and one of 40 KB 78 µs instead of 19 µs, most of it for reading the block. Over a node, a
batch of them takes twice as long, less than predicted for 4 KB. Since sequential reading loses so little, readers are
verified block by block, and no second checksum over the whole object is needed. The machine was busy, with a load of 14
to 27 on two cores: the ratios of single rounds say little.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

import ais_loader
from ais_loader import Bucket, ClusterOptions, Entry
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish

MiB = 1 << 20
OBJECT_BYTES = 64 * MiB
TABLE = Path(__file__).with_suffix(".md")
STORES = ("embedded", "lane", "gRPC")
READS = ("file", "file in steps of 16 KiB", "stream", "1 MiB", "40 KB", "4 KB")
WANTED = {"file": 0.9, "file in steps of 16 KiB": 0.9, "stream": 0.9, "1 MiB": 0.9}
"""Ratios that verification must keep; of small random ranges, none is wanted."""


def by_file(bucket: Bucket, verify: bool) -> int:
    with bucket.open("x", verify=verify) as file:
        return len(file.read())


def in_steps(bucket: Bucket, verify: bool) -> int:
    size_bytes = 0
    with bucket.open("x", verify=verify) as file:
        while part := file.read(16 << 10):
            size_bytes += len(part)
    return size_bytes


def by_stream(bucket: Bucket, verify: bool) -> int:
    with bucket.reader("x", verify=verify) as reader:
        return sum(len(chunk) for chunk in reader.chunks())


def by_batches(bucket: Bucket, verify: bool, *, length: int, count: int, times: int, align: int = 1) -> int:
    draw, size_bytes = random.Random(length), 0
    for _ in range(times):
        starts = [draw.randrange((OBJECT_BYTES - length) // align) * align for _ in range(count)]
        entries = [Entry(bucket.name, "x", start=start, length=length) for start in starts]
        size_bytes += sum(len(data) for data in bucket.client.get_batch(entries, verify_ranges=verify).tobytes())
    return size_bytes


CALLS: dict[str, Callable[[Bucket, bool], int]] = {
    "file": by_file,
    "file in steps of 16 KiB": in_steps,
    "stream": by_stream,
    "1 MiB": partial(by_batches, length=MiB, count=16, times=10, align=MiB),
    "40 KB": partial(by_batches, length=40_000, count=64, times=10),
    "4 KB": partial(by_batches, length=4_000, count=64, times=10),
}


def rate(call: Callable[[Bucket, bool], int], bucket: Bucket, verify: bool) -> float:
    """MB/s."""
    start = time.perf_counter()
    return call(bucket, verify) / 1e6 / (time.perf_counter() - start)


def label(store: str, read: str, verify: bool) -> str:
    return f"{store}, {read}{', verified' if verify else ''}"


@click.command(help=__doc__)
@click.option("--rounds", default=7, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(rounds: int, folder: Path | None, write: bool) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as here, ExitStack() as held:
        node = held.enter_context(NodeProcess([Path(here) / "drive"]))
        urls = {"embedded": str(Path(here) / "store"), "lane": node.url, "gRPC": node.url}
        contestants: dict[str, Callable[[], float]] = {}
        data = seeded_bytes(OBJECT_BYTES, seed=1)
        for store in STORES:
            options = None if store == "embedded" else ClusterOptions(lane="grpc" if store == "gRPC" else "auto")
            client = held.enter_context(ais_loader.connect(urls[store], options=options))
            bucket = client.create_bucket("b", exist_ok=True)
            if not bucket.exists("x"):
                bucket.put("x", data)
            for read in READS:
                for verify in (False, True):
                    contestants[label(store, read, verify)] = partial(rate, CALLS[read], bucket, verify)
        del data
        rates = run_rounds(contestants, rounds)
    claims = [
        Claim(label(store, read, True), label(store, read, False), WANTED.get(read, 0.0))
        for store in STORES
        for read in READS
    ]
    publish(
        "Verification of byte ranges",
        __doc__,
        f"{rounds} rounds; client and node share it.",
        rates,
        "MB/s",
        claims,
        table=TABLE if write else None,
    )


if __name__ == "__main__":
    main()
