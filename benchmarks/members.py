"""GetBatch of members of archives, compared with GetBatch of plain objects of the same size, over gRPC.

    python -m benchmarks.members            # writes the table beside this file

A batch has 128 random entries of 10 KiB; one client has 3 batches in flight. Prediction, written before the first run:
Members of a tar reach 1.1 to 1.4 times the rate of plain objects, because their file is already open. Members at the
end of a shard of 1 GiB reach the same. Members of a seekable tar.zst (frames of 256 KiB) reach 0.3 to 0.5, because each
costs the decompression of half a frame.

Plain objects were put one by one and have a file each. Objects put by `put_many` share files of about 1 MiB.
Prediction, written before they did: 1.0 times the rate of objects with a file each, because each is still one open, one
read and one close.
"""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import zstandard

import ais_loader
from ais_loader import Bucket, Entry
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.harness import Claim, claims_table, conclude, judge, machine, rates_table, run_rounds

SIZE_BYTES = 10 << 10
BATCH = 128
FRAME_BYTES = 256 << 10
TABLE = Path(__file__).with_name("members.md")


def contents(count: int) -> Iterator[tuple[str, bytes]]:
    """Half of each is packable, as compressed audio with its metadata would not be, and text would."""
    for number in range(count):
        yield f"{number:07d}.bin", seeded_bytes(SIZE_BYTES // 2, seed=number) + bytes(SIZE_BYTES // 2)


def make_tar(path: Path, count: int) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in contents(count):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def compress(source: Path, target: Path) -> None:
    """In frames of their own, which is what makes a zst file one that can be read in the middle."""
    compressor = zstandard.ZstdCompressor(level=3)
    with source.open("rb") as plain, target.open("wb") as packed:
        while piece := plain.read(FRAME_BYTES):
            packed.write(compressor.compress(piece))


def fetch(bucket: Bucket, entries: list[Entry], batches: int, seed: int) -> Callable[[], float]:
    """Entries per second."""
    choose = random.Random(seed)

    def run() -> float:
        wanted = [choose.choices(entries, k=BATCH) for _ in range(batches)]
        start = time.perf_counter()
        for batch in bucket.client.get_batches(wanted):
            for item in batch:
                assert len(item.data) == SIZE_BYTES
        return batches * BATCH / (time.perf_counter() - start)

    return run


@click.command(help=__doc__)
@click.option("--objects", default=20_000, show_default=True, help="Plain objects, and members of the smaller shards.")
@click.option("--large-members", default=100_000, show_default=True, help="Members of the large shard (10.8 KB each).")
@click.option("--batches", default=200, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(objects: int, large_members: int, batches: int, rounds: int, folder: Path | None, write: bool) -> None:
    with (
        tempfile.TemporaryDirectory(dir=folder) as here,
        NodeProcess([Path(here) / "drive"]) as node,
        ais_loader.connect(node.url) as client,
    ):
        bucket = client.create_bucket("b")
        for name, data in contents(objects):
            bucket.put(name, data)
        client.create_bucket("together").put_many(contents(objects))
        small, large, packed = Path(here) / "small.tar", Path(here) / "large.tar", Path(here) / "frames.tar.zst"
        make_tar(small, objects)
        make_tar(large, large_members)
        compress(small, packed)
        for path in (small, large, packed):
            bucket.put(path.name, path)
        names = [name for name, _ in contents(objects)]
        last = [f"{number:07d}.bin" for number in range(large_members - objects, large_members)]
        contestants = {
            "plain objects": fetch(bucket, [Entry("b", name) for name in names], batches, 1),
            "plain objects, put together": fetch(bucket, [Entry("together", name) for name in names], batches, 1),
            "members of a tar": fetch(bucket, [Entry("b", small.name, name) for name in names], batches, 2),
            "last members of a large tar": fetch(bucket, [Entry("b", large.name, name) for name in last], batches, 3),
            "members of a tar.zst": fetch(bucket, [Entry("b", packed.name, name) for name in names], batches, 4),
        }
        for work in contestants.values():
            work()  # caches of entries, indexes and pages
        rates = run_rounds(contestants, rounds)
        large_bytes = large.stat().st_size
    outcomes = judge(
        rates,
        [
            Claim("plain objects, put together", "plain objects", 0.9),
            Claim("members of a tar", "plain objects", 1.0),
            Claim("last members of a large tar", "plain objects", 1.0),
            Claim("members of a tar.zst", "plain objects", 0.3),
        ],
    )
    text = (
        f"# Members of archives\n\n{(__doc__ or '').strip()}\n\nMachine: {machine()}. {rounds} rounds of {batches} "
        f"batches; {objects:,} objects; the large tar has {large_bytes / 2**30:.2f} GiB in {large_members:,} members. "
        f"Client and node share the cores.\n\n{rates_table(rates, 'entries/s')}\n\n{claims_table(outcomes)}\n"
    )
    click.echo(text)
    conclude(text, TABLE if write else None, reached=all(outcome.reached for outcome in outcomes))


if __name__ == "__main__":
    main()
