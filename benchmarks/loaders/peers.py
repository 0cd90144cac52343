"""Other libraries compared with ais-loader: the same random batches of samples from local storage, as bytes.

    python -m venv build/peers && build/peers/bin/pip install --editable '.[dev]' \\
        mosaicml-streaming litdata webdataset 'datasets>=3' 'huggingface-hub<1'
    build/peers/bin/python -m benchmarks.loaders.peers  # writes the table beside this file

A peer that isn't installed is skipped.

A batch has 128 samples of random bytes. A pass reads every sample once, in an order that is drawn anew for each round
and is the same for all. The page cache is warm. One process reads, without workers, and requests a batch when it has
the previous one. Nothing is decoded, collated or shuffled in between. Each peer has its own format, uncompressed, made
from the same samples, on the local drive; nothing is downloaded. Before the rounds, and therefore outside the timed
part, the CRC-32 of each sample of each contestant is compared with that of the file.

Shards have 64 MiB, so that the first two sets have one and four. The third set has 1,000 shards of 20 samples: what is
done once for each shard of a batch costs there what it costs in a large dataset. Peers with shards of their own kind
have as many samples in each. The store's tars are 1,000 objects, and stay open.

The peers do less than a store: none has objects that change, and none compares a sample with a checksum when read in
the way used here. Their strength (streaming from an object store to a cache, which they shuffle well) isn't measured.

Prediction, written before the first run, relative to the file loop's rate, at 10 KiB and at 100 KiB: embedded 1.2 and
0.9; a node 0.7 and 0.8; tar with an index 2 and 1.3, because nothing is opened; mosaicml-streaming 0.5 and 0.9, because
it opens the shard for each sample; litdata 0.4 and 0.8; datasets 1.5 and 1, because it copies twice out of mapped
memory; WebDataset 0.25 and 0.6, because tarfile is Python.

Prediction for 1,000 shards, written before their first run, relative to the file loop: embedded objects and tar with an
index as with one shard; members of tars 1; mosaicml-streaming 0.6; litdata 0.05; datasets 1.5, because each batch
takes its rows from over a hundred tables; WebDataset 0.25, because it opens each tar. Found: ours are as predicted, and
datasets is at 3.8 too, and faster than embedded objects with one shard only.

The following differs from the prediction. datasets, which takes a batch out of mapped memory in C++ and checks nothing,
is as fast as embedded objects at 10 KiB, and litdata is far slower. According to its profile with default settings,
litdata decodes over 200 samples around each requested one, which suits readers that go through chunks in order.
`batch_decode=0`, set here, was no faster, and the reason isn't known, so the row says little about other ways to use
litdata. Its samples are copied to bytes, because it returns views of mapped memory; ours are views of the buffer into
which their batch was read.

Measured with mosaicml-streaming 0.10.0, litdata 0.2.76, datasets 5.0.1 and webdataset 1.0.2.
"""

from __future__ import annotations

import importlib.util
import io
import os
import random
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

import click

import ais_loader
from ais_loader import Client, Entry
from ais_loader.bench.filling import content
from ais_loader.testing import NodeProcess
from benchmarks.kit.files import rate
from benchmarks.kit.harness import Claim, conclude, judge, label, page, rates_table, run_rounds
from benchmarks.kit.load import Load, fill
from benchmarks.kit.processor_time import ProcessorTime

BATCH = 128
SHARD_BYTES = 64 << 20
SHARDS, PER_SHARD = 1_000, 20
"""Shards of the third set, and samples in each: those of benchmarks.reads.access_patterns."""
COUNTS = {10 << 10: 6_000, 100 << 10: 2_000}
TABLE = Path(__file__).with_suffix(".md")
FILES = "file loop"

Bytes: TypeAlias = bytes | memoryview
Read: TypeAlias = Callable[[Sequence[Sequence[int]]], Iterator[Iterable[Bytes]]]
"""Batches of samples' numbers to those samples' bytes, batch by batch."""


class Samples:
    """`count` samples of `size_bytes` random bytes each: those that `fill` puts into a store."""

    def __init__(self, count: int, size_bytes: int, per_shard: int = 0) -> None:
        """`per_shard`: number of samples in a shard; by default, those of 64 MiB."""
        self.count, self.size_bytes = count, size_bytes
        self.per_shard = per_shard or SHARD_BYTES // size_bytes
        self.shards = -(-count // self.per_shard)

    def __getitem__(self, number: int) -> bytes:
        return bytes(content(number, self.size_bytes))

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(self.count))


@dataclass(frozen=True, slots=True)
class Room:
    """Where a contestant finds its place: an empty folder, the samples to write there, and a node that has them."""

    folder: Path
    samples: Samples
    served: Load
    held: ExitStack


@dataclass(frozen=True, slots=True)
class Peer:
    """A contestant: `make` writes the samples in its format and returns how they are read."""

    name: str
    make: Callable[[Room], Read]
    order: str
    request: str
    checksums: str
    network: str
    package: str | None = None
    """Name for `pip install`; None if it is installed anyway."""
    module: str = ""

    @property
    def installed(self) -> bool:
        return self.package is None or importlib.util.find_spec(self.module) is not None


def files(room: Room) -> Read:
    folder, samples = room.folder, room.samples
    paths = [str(folder / f"{number:06d}") for number in range(samples.count)]
    for path, sample in zip(paths, samples, strict=True):
        Path(path).write_bytes(sample)

    def load(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    return lambda batches: ([load(paths[number]) for number in batch] for batch in batches)


def get_batches(client: Client, load: Load) -> Read:
    names = load.names
    return lambda batches: (
        [item.data for item in client.get_batch([names[number] for number in batch], bucket=load.bucket)]
        for batch in batches
    )


def embedded(room: Room) -> Read:
    load = fill(room.folder, room.samples.count, room.samples.size_bytes)
    return get_batches(room.held.enter_context(ais_loader.connect(room.folder, mode="r")), load)


def served(room: Room) -> Read:
    return get_batches(room.held.enter_context(ais_loader.connect(room.served.url, mode="r")), room.served)


def members(room: Room) -> Read:
    """Members of tars in an embedded store."""
    samples, shards = room.samples, tar_shards(room.folder, room.samples)
    with ais_loader.connect(room.folder / "store") as client:
        client.create_bucket("shards").put_many((Path(path).name, Path(path).read_bytes()) for path in shards)
    client = room.held.enter_context(ais_loader.connect(room.folder / "store", mode="r"))
    entries = [
        Entry("shards", Path(shards[number // samples.per_shard]).name, f"{number:06d}.bin")
        for number in range(samples.count)
    ]
    return lambda batches: (
        [item.data for item in client.get_batch([entries[number] for number in batch])] for batch in batches
    )


def tar_shards(folder: Path, samples: Samples) -> list[str]:
    per_shard = samples.per_shard
    paths = []
    for first in range(0, samples.count, per_shard):
        paths.append(str(folder / f"s-{len(paths):04d}.tar"))
        with tarfile.open(paths[-1], "w", format=tarfile.USTAR_FORMAT) as shard:
            for number in range(first, min(first + per_shard, samples.count)):
                member = tarfile.TarInfo(f"{number:06d}.bin")
                member.size = samples.size_bytes
                shard.addfile(member, io.BytesIO(samples[number]))
    return paths


def indexed_tar(room: Room) -> Read:
    folder, samples = room.folder, room.samples
    places: list[tuple[int, int, int]] = []
    for path in tar_shards(folder, samples):
        descriptor = os.open(path, os.O_RDONLY)
        room.held.callback(os.close, descriptor)
        with tarfile.open(path) as archive:
            places += [(descriptor, member.size, member.offset_data) for member in archive]
    return lambda batches: ([os.pread(*places[number]) for number in batch] for batch in batches)


def mosaic(room: Room) -> Read:
    folder, samples = room.folder, room.samples
    from streaming import MDSWriter, StreamingDataset

    # A sample has a few bytes of its own in a shard, and a shard a header.
    size_limit = samples.per_shard * (samples.size_bytes + 16) + 2048
    with MDSWriter(out=str(folder), columns={"data": "bytes"}, size_limit=size_limit) as writer:
        for sample in samples:
            writer.write({"data": sample})
    dataset = StreamingDataset(local=str(folder), shuffle=False, batch_size=BATCH)
    return lambda batches: ([dataset[number]["data"] for number in batch] for batch in batches)


def lightning(room: Room) -> Read:
    folder, samples = room.folder, room.samples
    os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"
    from litdata import StreamingDataset, optimize
    from litdata.streaming.item_loader import PyTreeLoader

    numbers = list(range(samples.count))
    optimize(samples.__getitem__, numbers, str(folder), chunk_size=samples.per_shard, num_workers=1, verbose=False)
    dataset = StreamingDataset(str(folder), shuffle=False, item_loader=PyTreeLoader(batch_decode=0))
    # Views of mapped memory come: nothing would be read without the copy.
    return lambda batches: ([bytes(dataset[number]) for number in batch] for batch in batches)


def hugging_face(room: Room) -> Read:
    folder, samples = room.folder, room.samples
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features({"data": datasets.Value("binary")})
    table = datasets.Dataset.from_dict({"data": list(samples)}, features=features)
    table.save_to_disk(str(folder), num_shards=-(-samples.count // samples.per_shard))
    dataset = datasets.load_from_disk(str(folder))
    return lambda batches: (dataset[batch]["data"] for batch in batches)


def sequential(room: Room) -> Read:
    folder, samples = room.folder, room.samples
    import webdataset

    dataset = webdataset.WebDataset(tar_shards(folder, samples), shardshuffle=False)

    def read(batches: Sequence[Sequence[int]]) -> Iterator[list[bytes]]:
        stream = iter(dataset)
        return ([next(stream)["bin"] for _ in batch] for batch in batches)

    return read


PEERS = [
    Peer(FILES, files, "random", "no: a file each", "no", "no"),
    Peer("ais-loader, embedded", embedded, "random", "yes", "all", "no"),
    Peer(
        "ais-loader, from a node",
        served,
        "random",
        "yes",
        "all",
        "yes: the node is another process, and the lane a Unix socket",
    ),
    Peer("ais-loader, embedded, members of tars", members, "random", "yes", "all", "no"),
    Peer("tar and an index, by pread", indexed_tar, "random", "no: a read each", "no", "no"),
    Peer("mosaicml-streaming", mosaic, "random", "no", "no", "no", "mosaicml-streaming", "streaming"),
    Peer("litdata", lightning, "random", "no", "no", "no", "litdata", "litdata"),
    Peer("datasets", hugging_face, "random", "yes", "no", "no", "datasets", "datasets"),
    Peer("WebDataset", sequential, "**sequential only**", "no: a stream", "no", "no", "webdataset", "webdataset"),
]


def orders(samples: Samples) -> Iterator[list[list[int]]]:
    """Pass by pass: batches of every sample's number once. Each contestant draws the same."""
    draw = random.Random(2)
    while True:
        order = draw.sample(range(samples.count), samples.count)
        yield [order[at : at + BATCH] for at in range(0, samples.count, BATCH)]


def check(peer: Peer, read: Read, samples: Samples) -> None:
    """One pass, which also warms up.

    Raises:
        SystemExit: a sample isn't what it should be.
    """
    batches = next(orders(samples))
    if peer.make is sequential:
        numbers = range(samples.count)
        batches = [list(numbers[at : at + BATCH]) for at in range(0, samples.count, BATCH)]
    found = 0
    for batch, arrived in zip(batches, read(batches), strict=True):
        if [zlib.crc32(data) for data in arrived] != [zlib.crc32(samples[number]) for number in batch]:
            raise SystemExit(f"{peer.name} returned other bytes than the files have")
        found += 1
    if found != len(batches):
        raise SystemExit(f"{peer.name} returned {found} of {len(batches)} batches")


def contestant(read: Read, samples: Samples) -> Callable[[], float]:
    passes = orders(samples)

    def run() -> float:
        batches, total = next(passes), 0

        def work() -> None:
            nonlocal total
            for batch in read(batches):
                for data in batch:
                    total += len(data)

        found = rate(samples.count, work)
        if total != samples.count * samples.size_bytes:
            raise SystemExit(f"{total:,} bytes came of {samples.count * samples.size_bytes:,}")
        return found

    return run


def ratios_table(rates: dict[str, list[float]]) -> str:
    """Against the file loop, within a round: as `claims_table`, of what nobody has promised."""
    lines = [f"| ÷ {FILES} | median | range |", "|---|---:|---:|"]
    for outcome in judge(rates, [Claim(name, FILES, 0) for name in rates if name != FILES]):
        ratios = outcome.ratios
        lines.append(f"| {outcome.claim.subject} | **{outcome.median:.2f}** | {min(ratios):.2f} – {max(ratios):.2f} |")
    return "\n".join(lines)


def measure(peers: Sequence[Peer], samples: Samples, rounds: int, folder: Path) -> str:
    with ExitStack() as held:
        contestants: dict[str, Callable[[], float]] = {}
        load = fill(folder / "node", samples.count, samples.size_bytes)
        node = held.enter_context(NodeProcess(folder / "node"))
        spent = ProcessorTime(node.pid)
        for number, peer in enumerate(peers):
            place = folder / str(number)
            place.mkdir()
            read = peer.make(Room(place, samples, replace(load, url=node.url), held))
            check(peer, read, samples)
            contestants[peer.name] = spent.of(peer.name, contestant(read, samples), samples.count)
        rates = run_rounds(contestants, rounds)
    return "\n\n".join(
        [
            f"## {samples.count:,} samples of {label(samples.size_bytes)}, {samples.shards:,} shards",
            rates_table(rates, "samples/s", samples.size_bytes),
            ratios_table(rates),
            spent.table("a sample"),
        ]
    )


def what_they_do(peers: Sequence[Peer]) -> str:
    lines = [
        "| what | order | one request a batch | compared with checksums | over a socket |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {peer.name} | {peer.order} | {peer.request} | {peer.checksums} | {peer.network} |" for peer in peers]
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400", show_default=True, help="Sample sizes in bytes.")
@click.option("--shards", default=SHARDS, show_default=True, help=f"Shards of {PER_SHARD} samples; 0: leave them out.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--write/--no-write", default=True, show_default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, shards: int, rounds: int, write: bool) -> None:
    skipped = [f"{peer.name} is skipped: pip install {peer.package}" for peer in PEERS if not peer.installed]
    for line in skipped:
        click.echo(line)
    peers = [peer for peer in PEERS if peer.installed]
    sections = []
    sets = [
        Samples(COUNTS.get(size_bytes, 2_000), size_bytes) for size_bytes in map(int, filter(None, sizes.split(",")))
    ]
    if shards:
        sets.append(Samples(shards * PER_SHARD, 10 << 10, PER_SHARD))
    for samples in sets:
        with tempfile.TemporaryDirectory() as here:
            sections.append(measure(peers, samples, rounds, Path(here)))
        click.echo(sections[-1])
    versions = ", ".join(f"{peer.package} {version(peer.package)}" for peer in peers if peer.package)
    setting = f"{versions}. {rounds} rounds; batches of {BATCH}."
    text = page(
        "Other libraries", __doc__ or "", setting, *skipped, "## What each does", what_they_do(peers), *sections
    )
    conclude(text + "\n", TABLE if write else None, reached=True)


if __name__ == "__main__":
    main()
