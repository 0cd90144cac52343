"""WebDataset over shards in a store against the same shards as files, and ShardSamples against WebDataset's own rate.

    .venv-front/bin/python -m benchmarks.loaders.webdataset_shards  # writes the table and the plot beside this file

Each sample has 40 KB of random bytes and a class, in shards of 64 MB. Nothing is decoded, and no workers are used,
since the subject of the comparison is how bytes arrive. The page cache is warm. ShardSamples draws minibatches of 64
from all shards in random order: with `__getitems__`, and, with the next three under way, with `batches`. Every
contestant goes through all samples once in a round.

Prediction, written before the first run: with our URLs, embedded reaches 1.0 of files, since tarfile's parsing in
Python is the same and a thread reads beside it; gRPC reaches 0.95; and shuffled ShardSamples reach 3 times WebDataset's
rate over files, since members are found by their index and none of tarfile's Python runs. The row with three in flight
came later and was predicted from the processor times of the others: 1.6 where two cores are free, 1 where they are not.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import webdataset as wds

from ais_loader import connect
from ais_loader.integrations.webdataset import ShardSamples, install
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from benchmarks.kit.processor_time import ProcessorTime

MEMBER_BYTES = 40_000
BATCH = 64
TABLE = Path(__file__).with_suffix(".md")
FILES, EMBEDDED, GRPC = "WebDataset, files", "WebDataset, embedded", "WebDataset, gRPC"
BY_NUMBER, BY_NUMBER_GRPC = "ShardSamples shuffled, embedded", "ShardSamples shuffled, gRPC"
AHEAD_GRPC = "ShardSamples shuffled, gRPC, 3 in flight"
CLAIMS = [
    Claim(EMBEDDED, FILES, 0.9),
    Claim(GRPC, FILES, 0.9),
    Claim(BY_NUMBER, FILES, 2.5),
    Claim(AHEAD_GRPC, FILES, 2.5),
]


def make_shards(folder: Path, shards: int, samples: int) -> None:
    for number in range(shards):
        ring = memoryview(seeded_bytes(MEMBER_BYTES + samples, seed=number))
        with wds.TarWriter(str(folder / f"s-{number:03d}.tar")) as writer:
            for at in range(samples):
                writer.write(
                    {"__key__": f"{number:03d}{at:06d}", "bin": bytes(ring[at : at + MEMBER_BYTES]), "cls": at}
                )


def timed(pass_over: Callable[[], int], expected: int) -> Callable[[], float]:
    def rate() -> float:
        started_s = time.perf_counter()
        count = pass_over()
        if count != expected:
            raise SystemExit(f"{count} of {expected} samples came")
        return count / (time.perf_counter() - started_s)

    return rate


def sequential(urls: str, store: str | None) -> Callable[[], int]:
    def run() -> int:
        if store is not None:
            install(store)
        return sum(len(sample["bin"]) == MEMBER_BYTES for sample in wds.WebDataset(urls, shardshuffle=False))

    return run


def shuffled(samples: Any) -> Callable[[], int]:
    draw = random.Random(0)

    def run() -> int:
        order = draw.sample(range(len(samples)), len(samples))
        batches = (order[at : at + BATCH] for at in range(0, len(order), BATCH))
        return sum(len(sample["bin"]) == MEMBER_BYTES for batch in batches for sample in samples.__getitems__(batch))

    return run


def shuffled_ahead(samples: Any) -> Callable[[], int]:
    draw = random.Random(0)

    def run() -> int:
        order = draw.sample(range(len(samples)), len(samples))
        batches = (order[at : at + BATCH] for at in range(0, len(order), BATCH))
        return sum(
            len(sample["bin"]) == MEMBER_BYTES for batch in samples.batches(batches, in_flight=3) for sample in batch
        )

    return run


@click.command()
@click.option("--rounds", default=7, show_default=True)
@click.option("--shards", default=4, show_default=True)
@click.option("--samples", default=1_600, show_default=True, help="Of each shard.")
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table.")
def main(rounds: int, shards: int, samples: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "files").mkdir()
        make_shards(folder / "files", shards, samples)
        last = f"{shards - 1:03d}"
        with NodeProcess(folder / "node") as node:
            for url in (str(folder / "store"), node.url):
                with connect(url) as client:
                    bucket = client.create_bucket("b")
                    for path in sorted((folder / "files").iterdir()):
                        bucket.put(path.name, path)
            store, urls = str(folder / "store"), f"ais://b/s-{{000..{last}}}.tar"
            passes = {
                FILES: sequential(f"{folder}/files/s-{{000..{last}}}.tar", None),
                EMBEDDED: sequential(urls, store),
                GRPC: sequential(urls, node.url),
                BY_NUMBER: shuffled(ShardSamples(urls, store=store)),
                BY_NUMBER_GRPC: shuffled(ShardSamples(urls, store=node.url)),
                AHEAD_GRPC: shuffled_ahead(ShardSamples(urls, store=node.url)),
            }
            count, spent = shards * samples, ProcessorTime(node.pid)
            contestants = {name: spent.of(name, timed(run, count), count) for name, run in passes.items()}
            for work in contestants.values():
                work()  # pages, connections
            spent.forget()
            rates = run_rounds(contestants, rounds)
    publish(
        "WebDataset's shards in a store",
        __doc__,
        f"{rounds} rounds of {shards} shards of {samples:,} samples.",
        rates,
        "samples/s",
        CLAIMS,
        spent.table("a sample"),
        table=TABLE if write else None,
        size_bytes=MEMBER_BYTES,
        picture=True,
    )


if __name__ == "__main__":
    main()
