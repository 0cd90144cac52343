"""Batches of an embedded store compared with an index of samples and with plain files, by processor time.

This isolates what a batch costs beside the bytes themselves. An index of samples (`datasets`, or a tar file whose
offsets are kept) checks nothing and never changes; an embedded store compares every object with its checksum and sees
every overwrite. One process reads batches of 128 in a random order, with a warm page cache. The contestants take turns.
What counts is the processor time of the process, and of that each contestant's cheapest eighth of its rounds (the
eighth's upper bound), as in benchmarks.report.two_trees: the machine is shared, and neighbours only ever add, above all
by emptying the caches. Beside it stands the median of the ratios within a round.

    build/peers/bin/python -m benchmarks.reads.small_objects  # as for benchmarks.loaders.peers; writes the table

Without `datasets` installed, its rows are missing. benchmarks.report.two_trees measures what a change costs a node.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import click
import numpy as np

import ais_loader
from ais_loader import Client
from benchmarks.kit.harness import Claim, conclude, judge, label, load, machine, run_rounds
from benchmarks.kit.load import Load, fill
from benchmarks.loaders.peers import (
    BATCH,
    FILES,
    PEERS,
    Bytes,
    Read,
    Room,
    Samples,
    check,
    embedded,
    hugging_face,
    indexed_tar,
    orders,
)
from benchmarks.loaders.peers import files as file_loop

TABLE = Path(__file__).with_suffix(".md")
COUNTS = {10 << 10: 6_000, 1 << 20: 384}
QUIETEST = 8
"""Number of parts of a contestant's rounds, of which the cheapest one counts."""
ITEMS, PACKED, TOBYTES = "embedded, items", "embedded, packed()", "embedded, tobytes()"
DATASETS, TAR = "datasets", "tar and an index, by pread"
CLAIMS = {
    10 << 10: [Claim(ITEMS, DATASETS, 1.0), Claim(ITEMS, TAR, 1.0), Claim(PACKED, ITEMS, 0.8)],
    1 << 20: [Claim(ITEMS, FILES, 0.9), Claim(PACKED, ITEMS, 0.8), Claim(TOBYTES, ITEMS, 0.8)],
}


def packed(client: Client, load: Load) -> Read:
    names, bucket = load.names, client.bucket(load.bucket)

    def read(batches: Sequence[Sequence[int]]) -> Iterator[list[Bytes]]:
        for batch in batches:
            found = bucket.get_batch([names[number] for number in batch]).packed()
            yield [found[at].data for at in range(len(found))]

    return read


def tobytes(client: Client, load: Load) -> Read:
    names, bucket = load.names, client.bucket(load.bucket)
    return lambda batches: (
        [np.frombuffer(data or b"", np.uint8).data for data in bucket.get_batch([names[at] for at in batch]).tobytes()]
        for batch in batches
    )


def contestant(read: Read, samples: Samples) -> Callable[[], float]:
    passes = orders(samples)

    def run() -> float:
        batches, total = next(passes), 0
        start = time.process_time()
        for batch in read(batches):
            for data in batch:
                total += len(data)
        taken_s = time.process_time() - start
        if total != samples.count * samples.size_bytes:
            raise SystemExit(f"{total:,} bytes came of {samples.count * samples.size_bytes:,}")
        return samples.count / taken_s

    return run


def quiet(rates: Sequence[float]) -> float:
    """Return the rate of a contestant's cheapest rounds."""
    return 1 / statistics.quantiles([1 / rate for rate in rates], n=QUIETEST)[0]


def tables(rates: dict[str, list[float]], claims: Sequence[Claim], size_bytes: int) -> tuple[str, int]:
    """Return the tables of one size, and how many claims are missed."""
    lines = ["| what | samples/s, cheapest rounds | median | GiB/s, cheapest rounds |", "|---|---:|---:|---:|"]
    for name, of in rates.items():
        gib_s = quiet(of) * size_bytes / 2**30
        lines.append(f"| {name} | {quiet(of):,.0f} | {statistics.median(of):,.0f} | {gib_s:.2f} |")
    lines += ["", "| ratio | wanted | cheapest rounds | median of rounds | |", "|---|---:|---:|---:|---|"]
    missed = 0
    for outcome in judge(rates, claims):
        claim = outcome.claim
        ratio = quiet(rates[claim.subject]) / quiet(rates[claim.baseline])
        reached = round(ratio, 2) >= claim.at_least
        missed += not reached
        lines.append(
            f"| {claim.subject} ÷ {claim.baseline} | ≥ {claim.at_least:g} | **{ratio:.2f}** | {outcome.median:.2f} "
            f"| {'reached' if reached else 'MISSED'} |"
        )
    return "\n".join(lines), missed


def measure(samples: Samples, rounds: int, folder: Path) -> dict[str, list[float]]:
    with ExitStack() as held:
        served = fill(folder / "store", samples.count, samples.size_bytes)
        client = held.enter_context(ais_loader.connect(folder / "store", mode="r"))
        reads = {ITEMS: embedded, PACKED: lambda _: packed(client, served), TOBYTES: lambda _: tobytes(client, served)}
        reads |= {FILES: file_loop, TAR: indexed_tar}
        if any(peer.name == DATASETS and peer.installed for peer in PEERS):
            reads[DATASETS] = hugging_face
        contestants: dict[str, Callable[[], float]] = {}
        for number, (name, make) in enumerate(reads.items()):
            place = folder / str(number)
            place.mkdir()
            read = make(Room(place, samples, served, held))
            check(next(peer for peer in PEERS if peer.name == FILES), read, samples)
            contestants[name] = contestant(read, samples)
            for _ in range(3):  # an index, mappings and buffers are made by the first passes
                contestants[name]()
        return run_rounds(contestants, rounds)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,1048576", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=32, show_default=True)
@click.option("--write/--no-write", default=True, show_default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, write: bool) -> None:
    intro = (__doc__ or "").strip().partition("\n\n    build/")[0]
    parts = [f"# Small objects\n\n{intro}\n\nMachine: {machine()}; {load()}. {rounds} rounds; batches of {BATCH}.\n"]
    missed = 0
    for size_bytes in map(int, sizes.split(",")):
        samples = Samples(COUNTS.get(size_bytes, 1_024), size_bytes)
        with tempfile.TemporaryDirectory() as here:
            rates = measure(samples, rounds, Path(here))
        claims = [claim for claim in CLAIMS.get(size_bytes, []) if claim.baseline in rates]
        text, misses = tables(rates, claims, size_bytes)
        missed += misses
        parts.append(f"## {samples.count:,} samples of {label(size_bytes)}\n\n{text}\n")
        click.echo(parts[-1])
    conclude("\n".join(parts), TABLE if write else None, reached=not missed)


if __name__ == "__main__":
    main()
