"""Member index of a shard: how fast it is built as the bytes arrive, finds a name, and reads a member.

This isolates the parser: the shard is in memory and arrives in chunks of 1 MiB. `tarfile`'s own scan skips the content
and computes no checksums. Another contestant does the same work as the index with `tarfile`: it reads each member and
computes its CRC-32C. Rates are per second of this process's CPU time, so other load on the machine affects them little.

Restart points of a tar.gz are 128 KiB of tar apart. Prediction, written before the first run, compared with the
previous distance of 1 MiB: Half of the distance is decompressed before a member of 10 KiB, (64 + 10) KiB instead of
(512 + 10) KiB. That is 7 times as fast; with the cost that each read has in any case, 4 to 5 times. In the order of the
shard, where a read continues from the last one, 3 times that.

    python -m benchmarks.archive_index                     # writes the table beside this file
    python -m benchmarks.archive_index --mib 50 --rounds 1 --no-write
"""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO
from unittest.mock import patch

import click
import lz4.frame
import numpy as np

from benchmarks.harness import Claim, claims_table, judge, machine, rates_table, run_rounds
from storage_node.store.archives import gzip_points
from storage_node.store.archives.archive import index_shard, open_archive
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.reframe import reframe
from storage_node.store.archives.source import CHUNK_BYTES, BytesSource, FdSource
from storage_node.store.archives.tar_index import TarIndexer
from storage_node.store.checksum import crc32c

MEMBER_BYTES, SMALL_BYTES = 40_000, 10 << 10
WANTED_MB_S = 300
TABLE = Path(__file__).with_name("archive_index.md")

INDEX, SCAN, SUMMED = "index of a tar", "tarfile's own scan (no checksums)", "tarfile, every member read and summed"
WANTED = f"{WANTED_MB_S} MB/s"
CLAIMS = [Claim(INDEX, WANTED, 1.0), Claim(INDEX, SUMMED, 1.0), Claim(INDEX, SCAN, 0.5)]
PLAIN, SEEKABLE = "tar", "tar.zst, seekable"
GZIP, GZIP_FAR, GZIP_IN_ORDER = "tar.gz", "tar.gz, points 1 MiB apart", "tar.gz, in the order of the shard"
FAR_BYTES = 1 << 20
ALONE, TOGETHER = "one name at a time", "1,000 names at once"


def shard_of(size_bytes: int, member_bytes: int = MEMBER_BYTES) -> bytes:
    """A tar of members of random bytes and as many zeros, so that it packs to about half."""
    source = random.Random(7)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(size_bytes // member_bytes):
            info = tarfile.TarInfo(f"en/{number // 1000:04}/{number:08}.wav")
            info.size = member_bytes
            tar.addfile(info, io.BytesIO(source.randbytes(member_bytes // 2) + bytes(member_bytes // 2)))
    return buffer.getvalue()


def _index(tar: bytes) -> int:
    indexer = TarIndexer()
    view = memoryview(tar)
    for start in range(0, len(tar), CHUNK_BYTES):
        indexer.feed(view[start : start + CHUNK_BYTES])
    return len(indexer.finish())


def _scan(tar: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return len({member.name: (member.offset_data, member.size) for member in archive.getmembers()})


def _sum(tar: bytes) -> int:
    found: dict[str, tuple[int, int, int]] = {}
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = (member.offset_data, member.size, crc32c(file.read()))
    return len(found)


def _as_zip(tar: bytes) -> bytes:
    buffer = io.BytesIO()
    out = zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with tarfile.open(fileobj=io.BytesIO(tar)) as source, out:
        for member in source:
            file = source.extractfile(member)
            assert file is not None
            out.writestr(member.name, file.read())
    return buffer.getvalue()


def _mb_per_s(work: Callable[[bytes], int], data: bytes, size_bytes: int, members: int) -> Callable[[], float]:
    def measure() -> float:
        start = time.process_time()
        found = work(data)
        spent_s = time.process_time() - start
        assert found == members
        return size_bytes / spent_s / 1e6

    return measure


def _look_ups(index: MemberIndex, names: list[str], *, together: bool) -> Callable[[], float]:
    def measure() -> float:
        start = time.process_time()
        if together:
            for at in range(0, len(names), 1000):
                assert bool(np.all(index.find_many(names[at : at + 1000]).found))
        else:
            for name in names:
                index.find(name)
        return len(names) / (time.process_time() - start)

    return measure


def _reads(
    data: bytes, name: str, file: IO[bytes], *, in_order: bool = False, gap_bytes: int = gzip_points.GAP_BYTES
) -> Callable[[], float]:
    """Members of a shard in a file, each verified. `gap_bytes`: between the restart points of a tar.gz."""
    file.write(data)
    file.flush()
    with patch.object(gzip_points, "GAP_BYTES", gap_bytes):
        archive = open_archive(FdSource(file.fileno()), name)
    members = list(archive.index)
    wanted = members[:1000] if in_order else random.Random(2).sample(members, min(1000, len(members)))

    def measure() -> float:
        start = time.process_time()
        for member in wanted:
            archive.read_member(member)
        return len(wanted) / (time.process_time() - start)

    return measure


@click.command(context_settings={"show_default": True})
@click.option("--mib", default=200, help="Size of the tar.")
@click.option("--rounds", default=5)
@click.option("--no-write", is_flag=True, help="Print only.")
def main(mib: int, rounds: int, no_write: bool) -> None:
    tar = shard_of(mib << 20)
    members = (mib << 20) // MEMBER_BYTES
    contestants = {
        name: _mb_per_s(work, tar, len(tar), members) for name, work in ((INDEX, _index), (SCAN, _scan), (SUMMED, _sum))
    }
    packed = {
        "index of a tar.zst, seekable": ("s.tar.zst", b"".join(reframe([tar]))),
        "index of a tar.lz4, independent blocks": ("s.tar.lz4", bytes(lz4.frame.compress(tar, block_linked=False))),
        "index of a tar.gz, with its restart points": ("s.tar.gz", gzip.compress(tar, 1)),
        "index of a zip, deflated": ("s.zip", _as_zip(tar)),
    }
    for what, (name, data) in packed.items():
        contestants[what] = _mb_per_s(
            lambda data, name=name: len(index_shard(BytesSource(data), name)),
            data,
            len(tar),
            members,  # type: ignore[misc]
        )
    rates = run_rounds(contestants, rounds)
    rates[WANTED] = [float(WANTED_MB_S)] * rounds
    index = index_shard(BytesSource(tar), "s.tar")
    names = list(index.names())
    random.Random(1).shuffle(names)
    names = (names * 10)[:10_000]
    looked = run_rounds(
        {ALONE: _look_ups(index, names, together=False), TOGETHER: _look_ups(index, names, together=True)}, rounds
    )
    small = shard_of(20 << 20, SMALL_BYTES)
    ways = {PLAIN: ("s.tar", small), SEEKABLE: ("s.tar.zst", b"".join(reframe([small])))}
    ways["tar.lz4, independent blocks of 64 KiB"] = ("s.tar.lz4", bytes(lz4.frame.compress(small, block_linked=False)))
    ways[GZIP], ways["zip, deflated"] = ("s.tar.gz", gzip.compress(small, 1)), ("s.zip", _as_zip(small))
    with ExitStack() as files:

        def file() -> IO[bytes]:
            return files.enter_context(tempfile.TemporaryFile())

        readers = {what: _reads(data, name, file()) for what, (name, data) in ways.items()}
        name, packed_small = ways[GZIP]
        readers[GZIP_FAR] = _reads(packed_small, name, file(), gap_bytes=FAR_BYTES)
        readers[GZIP_IN_ORDER] = _reads(packed_small, name, file(), in_order=True)
        read = run_rounds(readers, rounds)
    text = "\n\n".join(
        [
            "# Member index",
            f"A tar of {len(tar) / 1e6:,.0f} MB with {members:,} members of {MEMBER_BYTES:,} bytes; {rounds} rounds. "
            "Rates are in MB of tar per second of CPU time. The first lines of `archive_index.py` describe what each "
            "contestant isolates.",
            f"Machine: {machine()}. Load (1 minute) at the end: {os.getloadavg()[0]:.0f}.",
            rates_table({name: values for name, values in rates.items() if name != WANTED}, "MB/s"),
            claims_table(judge(rates, CLAIMS)),
            f"Lookups among these members, per second of CPU time. The index takes {index.file_bytes / members:.0f} "
            "bytes per member.",
            rates_table(looked, "names/s"),
            f"Reads of whole members of {SMALL_BYTES:,} bytes, verified, from a file in the page cache, per second of "
            "CPU time. The order is random unless the row says otherwise.",
            rates_table(read, "members/s"),
            claims_table(
                judge(
                    read,
                    [Claim(SEEKABLE, PLAIN, 0.3), Claim(GZIP, GZIP_FAR, 3.0), Claim(GZIP_IN_ORDER, GZIP, 2.0)],
                )
            ),
        ]
    )
    print(text)
    if not no_write:
        TABLE.write_text(text + "\n")


if __name__ == "__main__":
    main()
