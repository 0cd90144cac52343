"""Three ways to read samples from tar shards: sequential reading, random single GETs, and GetBatch.

    python -m benchmarks.reads.access_patterns  # writes the table, the plots and their numbers beside this file
    python -m benchmarks.reads.access_patterns --redraw  # draws the plots from these numbers, without measuring

A batch has 64 samples of 40 KB, as in table 2 of "GetBatch: Distributed Multi-Object Retrieval for ML Data Loading".
The latency of a batch is the time from its request until its last byte has arrived. The latency of a sample is the time
since the previous sample arrived. There is one client, which requests a batch when it has the previous one. Random GETs
and GetBatch draw the same samples. The sequential reader goes through the shards in random order, as WebDataset does,
and reads ahead within its shard. (A shuffle buffer behind it would change the order in which samples are used, not what
is read.)

Prediction, written before the first run: The P50 of GetBatch is 0.8 to 1.5 times that of sequential reading, because 64
headers in Python's tarfile cost about as much as 64 frames and checksums. The P99 of GetBatch is below that of
sequential reading, whose batches sometimes open a shard. Random GETs take 8 to 15 times as long as GetBatch, at 0.5 ms
each. Three nodes take 1.5 to 2.5 times as long as one, on two cores.

With 16 shards of 1,000 samples, a batch took 3.2 ms with GetBatch, 6.6 ms by sequential reading and 61 ms by random
GETs. 1,000 small shards cost GetBatch nothing, and sequential reading the opening of three shards for a batch.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import tarfile
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click

import ais_loader
from ais_loader import Bucket, Client, Entry
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import load, machine
from benchmarks.kit.plots import new_figure, save
from tests.cluster_processes import ClusterProcesses

BUCKET = "b"
MEMBER_BYTES = 40_000
BATCH = 64
PERCENTS = (50, 95, 99)
TABLE = Path(__file__).with_suffix(".md")
BARS = Path(__file__).with_name("access_patterns.png")
PLOT = Path(__file__).with_name("access_patterns_distribution.png")
CURVES = Path(__file__).with_name("access_patterns.json")
"""The numbers behind both plots, which can be redrawn from them."""

SEQUENTIAL, RANDOM_GET, GET_BATCH = "sequential reading", "random GETs", "GetBatch"
GET_BATCH_AHEAD, GET_BATCH_CLUSTER = "GetBatch, 2 asked for ahead", "GetBatch from 3 nodes"
COLOURS = {
    SEQUENTIAL: "#1b7837",
    RANDOM_GET: "#c0392b",
    GET_BATCH: "#2166ac",
    GET_BATCH_AHEAD: "#92c5de",
    GET_BATCH_CLUSTER: "#762a83",
}


class Sample(NamedTuple):
    shard: str
    member: str


@dataclass
class Latencies:
    """In seconds, of one round or of several."""

    batches_s: array[float] = field(default_factory=lambda: array("d"))
    samples_s: array[float] = field(default_factory=lambda: array("d"))

    def add(self, moments_s: Sequence[float]) -> None:
        """One batch: when it was asked for, then when each of its samples was in hand."""
        self.batches_s.append(moments_s[-1] - moments_s[0])
        self.samples_s.extend(later - earlier for earlier, later in pairwise(moments_s))

    def extend(self, other: Latencies) -> None:
        self.batches_s.extend(other.batches_s)
        self.samples_s.extend(other.samples_s)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A ratio of two latencies in one round, and what it is to be at most or at least."""

    subject: str
    percent: int
    baseline: str
    limit: float
    at_most: bool

    def ratios(self, rounds: Mapping[str, Sequence[Latencies]]) -> list[float]:
        pairs = zip(rounds[self.subject], rounds[self.baseline], strict=True)
        return [percentile(a.batches_s, self.percent) / percentile(b.batches_s, self.percent) for a, b in pairs]

    def reached(self, ratio: float) -> bool:
        return ratio <= self.limit if self.at_most else ratio >= self.limit


WANTED = (
    Wanted(GET_BATCH, 50, SEQUENTIAL, 1.5, at_most=True),
    Wanted(GET_BATCH, 99, SEQUENTIAL, 2.0, at_most=True),
    Wanted(RANDOM_GET, 50, GET_BATCH, 5.0, at_most=False),
)

Pattern = Callable[[Sequence[Sequence[Sample]]], Latencies]
"""Reads as many batches as it is given."""


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest value that so many of a hundred are not above."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def make_shard(path: Path, number: int, members: int) -> list[Sample]:
    """Contents differ between shards, and within one as a ring of random bytes does."""
    ring = memoryview(seeded_bytes(MEMBER_BYTES + members, seed=number))
    samples = []
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for position in range(members):
            member = tarfile.TarInfo(f"{number:03d}-{position:06d}.bin")
            member.size = MEMBER_BYTES
            archive.addfile(member, io.BytesIO(ring[position : position + MEMBER_BYTES]))
            samples.append(Sample(path.name, member.name))
    return samples


# -- the patterns


def members_in_order(bucket: Bucket, shards: Sequence[str]) -> Iterator[bytes]:
    for shard in shards:
        with bucket.reader(shard) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as archive:
            for member in archive:
                content = archive.extractfile(member)
                assert content is not None
                yield content.read()


def sequential(bucket: Bucket, shards: Sequence[str]) -> Pattern:
    def run(batches: Sequence[Sequence[Sample]]) -> Latencies:
        order = list(shards)
        shuffle = random.Random(batches[0][0].member)
        found = Latencies()
        stream: Iterator[bytes] = iter(())
        for batch in batches:
            moments_s = [time.perf_counter()]
            for _ in batch:
                data = next(stream, None)
                if data is None:
                    shuffle.shuffle(order)
                    stream = members_in_order(bucket, list(order))
                    data = next(stream)
                assert len(data) == MEMBER_BYTES
                moments_s.append(time.perf_counter())
            found.add(moments_s)
        return found

    return run


def random_get(bucket: Bucket) -> Pattern:
    def run(batches: Sequence[Sequence[Sample]]) -> Latencies:
        found = Latencies()
        for batch in batches:
            moments_s = [time.perf_counter()]
            for sample in batch:
                assert len(bucket.get(sample.shard, member=sample.member)) == MEMBER_BYTES
                moments_s.append(time.perf_counter())
            found.add(moments_s)
        return found

    return run


def get_batch(client: Client, in_flight: int = 1) -> Pattern:
    """With several in flight a batch counts from when the one before was in hand: it is what a consumer waits."""

    def run(batches: Sequence[Sequence[Sample]]) -> Latencies:
        found = Latencies()
        wanted = ([Entry(BUCKET, sample.shard, sample.member) for sample in batch] for batch in batches)
        moments_s = [time.perf_counter()]
        for batch in client.get_batches(wanted, in_flight=in_flight):
            for item in batch:
                assert len(item.data) == MEMBER_BYTES
                moments_s.append(time.perf_counter())
            found.add(moments_s)
            moments_s = [time.perf_counter()]
        return found

    return run


# -- what came of it


def latency_rows(pooled: Mapping[str, Latencies], values_of: Callable[[Latencies], Sequence[float]]) -> str:
    lines = ["| ms | P50 | P95 | P99 | mean |", "|---|---:|---:|---:|---:|"]
    for name, latencies in pooled.items():
        values = values_of(latencies)
        cells = [percentile(values, percent) for percent in PERCENTS] + [statistics.fmean(values)]
        lines.append(f"| {name} | " + " | ".join(f"{cell * 1e3:.3g}" for cell in cells) + " |")
    return "\n".join(lines)


def wanted_rows(rounds: Mapping[str, Sequence[Latencies]]) -> tuple[str, bool]:
    lines = ["| batch latency | wanted | median | range | |", "|---|---:|---:|---:|---|"]
    all_reached = True
    for wanted in WANTED:
        ratios = wanted.ratios(rounds)
        median = statistics.median(ratios)
        reached = wanted.reached(median)
        all_reached = all_reached and reached
        lines.append(
            f"| {wanted.subject} ÷ {wanted.baseline}, P{wanted.percent} | {'≤' if wanted.at_most else '≥'} "
            f"{wanted.limit:g} | **{median:.2f}** | {min(ratios):.2f} – {max(ratios):.2f} "
            f"| {'reached' if reached else 'MISSED'} |"
        )
    return "\n".join(lines), all_reached


def curves(pooled: Mapping[str, Latencies]) -> dict[str, dict[str, list[list[float]]]]:
    """Return the plotted curves for JSON: by pattern, for batches and samples, [ms, share that takes as long]."""
    return {
        name: {"batches": _curve(latencies.batches_s), "samples": _curve(latencies.samples_s)}
        for name, latencies in pooled.items()
    }


def _curve(seconds: Sequence[float]) -> list[list[float]]:
    values = sorted(seconds)
    shares = [10 ** (-step / 100) for step in range(240)]  # down to 0.004
    return [[round(1e3 * values[int((1 - share) * len(values))], 6), round(share, 6)] for share in shares]


def plot(found: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], path: Path) -> None:
    """How many batches, and samples, take longer than so long."""
    figure, axes = new_figure(2, width=4.2)
    for panel, what, title in zip(axes[0], ("batches", "samples"), (f"a batch of {BATCH}", "a sample"), strict=True):
        for name, of in found.items():
            panel.plot(*zip(*of[what], strict=True), color=COLOURS[name], label=name)
        panel.set(title=title, xlabel="ms", xscale="log", yscale="log", ylim=(0.004, 1.05))
        panel.set_yticks([1 - percent / 100 for percent in PERCENTS], [f"P{percent}" for percent in PERCENTS])
        panel.minorticks_off()
    axes[0][0].set_ylabel("take longer than")
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(found), fontsize=7)  # beside no curve there is room
    save(figure, path)


def plot_medians(found: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], path: Path) -> None:
    """The median latency of a batch, for the three patterns on one node, each with one batch in flight."""
    names = {RANDOM_GET: "64 individual GETs", SEQUENTIAL: "sequential reads", GET_BATCH: "one GetBatch"}
    figure, axes = new_figure(1, width=6.4, height=1.7)
    panel = axes[0][0]
    for at, (name, label) in enumerate(names.items()):
        median_ms = min(ms for ms, share in found[name]["batches"] if share <= 0.5)
        panel.barh(label, median_ms, color=COLOURS[name], height=0.6)
        panel.annotate(f"{median_ms:.2g} ms", (median_ms, at), xytext=(4, 0), textcoords="offset points", va="center")
    panel.set(xlabel=f"median time for a batch of {BATCH} samples from tar shards, in ms")
    panel.margins(x=0.12)
    panel.grid(axis="y", visible=False)
    panel.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def measure(shards: int, members: int, batches: int, rounds: int, here: Path) -> dict[str, list[Latencies]]:
    """Latencies of each pattern in each round, whose order turns."""
    samples = []
    paths = [here / f"shard-{number:03d}.tar" for number in range(shards)]
    for number, path in enumerate(paths):
        samples.extend(make_shard(path, number, members))
    with ExitStack() as held:
        node = held.enter_context(NodeProcess([here / "drive"]))
        nodes = held.enter_context(ClusterProcesses(here / "cluster", 3, buckets={BUCKET: 1}))
        client = held.enter_context(ais_loader.connect(node.url))
        several = held.enter_context(ais_loader.connect(nodes.url))
        bucket = client.create_bucket(BUCKET)
        for path in paths:
            bucket.put(path.name, path)
            several.bucket(BUCKET).put(path.name, path)
            path.unlink()
        patterns = {
            SEQUENTIAL: sequential(bucket, [path.name for path in paths]),
            RANDOM_GET: random_get(bucket),
            GET_BATCH: get_batch(client),
            GET_BATCH_AHEAD: get_batch(client, in_flight=3),
            GET_BATCH_CLUSTER: get_batch(several),
        }
        choose = random.Random(1)
        warming = [samples[first : first + BATCH] for first in range(0, len(samples), max(BATCH, members // 2))]
        for pattern in patterns.values():
            pattern([batch for batch in warming if len(batch) == BATCH])
        found: dict[str, list[Latencies]] = {name: [] for name in patterns}
        names = list(patterns)
        for number in range(rounds):
            drawn = [choose.choices(samples, k=BATCH) for _ in range(batches)]
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                found[name].append(patterns[name](drawn))
    return found


@click.command(help=__doc__)
@click.option("--shards", default=1000, show_default=True)
@click.option("--members", default=20, show_default=True, help="Of each shard.")
@click.option("--batches", default=200, show_default=True, help="In each round, of each pattern.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep table and plot beside this file.")
@click.option("--note", default="", help="A line for the table, on how it was made.")
@click.option("--redraw", is_flag=True, help="Draw both plots from their stored numbers, without measuring.")
def main(
    shards: int, members: int, batches: int, rounds: int, folder: Path | None, write: bool, note: str, redraw: bool
) -> None:
    if redraw:
        stored = json.loads(CURVES.read_text())
        plot(stored, PLOT)
        plot_medians(stored, BARS)
        return
    with tempfile.TemporaryDirectory(dir=folder) as here:
        found = measure(shards, members, batches, rounds, Path(here))
    pooled = {name: Latencies() for name in found}
    for name, latencies in found.items():
        for one in latencies:
            pooled[name].extend(one)
    claims, reached = wanted_rows(found)
    text = (
        f"# Access patterns\n\n{note and note + chr(10) * 2}{(__doc__ or '').strip()}\n\nMachine: {machine()}; "
        f"{load()}. {shards} shards of {members:,} members; {rounds} rounds of {batches} batches of each pattern; "
        "the patterns take turns. All data is in the page cache, and client and nodes share the cores. Percentiles "
        "cover all rounds. Each ratio is computed within a round, and the median over the rounds counts.\n\n"
        f"## A batch of {BATCH}\n\n{latency_rows(pooled, lambda one: one.batches_s)}\n\n"
        f"## A sample\n\n{latency_rows(pooled, lambda one: one.samples_s)}\n\n"
        f"## Claims\n\n{claims}\n\n![Share of batches and of samples that take longer]({PLOT.name})\n"
    )
    click.echo(text)
    if write:
        TABLE.write_text(text)
        CURVES.write_text(json.dumps(curves(pooled)))
        plot(curves(pooled), PLOT)
        plot_medians(curves(pooled), BARS)
    raise SystemExit(0 if reached else 1)


if __name__ == "__main__":
    main()
