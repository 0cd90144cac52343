"""Targets of this library, each a ratio within one run, measured by the benchmark in whose table it is."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ais_loader
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import Claim, Outcome, judge, label
from benchmarks.kit.load import fill
from benchmarks.reads import getbatch, lane, memory, object_file
from benchmarks.reads.access_patterns import percentile
from benchmarks.writes import put

MIB = 1 << 20
_WARM_UP_BATCHES = 50
_BATCHES = 400
_BATCH = 128


def of_size(size_bytes: int, rates: Mapping[str, Sequence[float]], claims: Sequence[Claim]) -> list[Outcome]:
    """Judge like `judge`. The outcomes name the objects' size."""
    ends = f"of {label(size_bytes)}"
    named = {f"{name} {ends}": found for name, found in rates.items()}
    return judge(named, [Claim(f"{one.subject} {ends}", f"{one.baseline} {ends}", one.at_least) for one in claims])


def outcomes(rounds: int, total_mb: int = 200, stream_gib: int = 2) -> Iterator[list[Outcome]]:
    """A list for each benchmark, when it is done."""
    for size_bytes, count in lane.COUNTS.items():
        with tempfile.TemporaryDirectory() as here:
            rates = lane.measure(size_bytes, count // 2, rounds, Path(here))
        yield of_size(size_bytes, rates, lane.CLAIMS[size_bytes])
    with tempfile.TemporaryDirectory() as here:
        rates = getbatch.measure(MIB, 1_000, rounds, Path(here))
    yield of_size(MIB, rates, [Claim(getbatch.EMBEDDED, getbatch.FILES, 0.6)])
    for member_mb in (1, 10, 100):
        with tempfile.TemporaryDirectory() as here:
            rates = object_file.measure(member_mb * 10**6, total_mb * 10**6, rounds, Path(here) / "run")
        ends = f", members of {member_mb} MB"
        named = {f"{name}{ends}": found for name, found in rates.items()}
        yield judge(named, [Claim(f"ObjectFile, gRPC{ends}", f"local file{ends}", 0.9)])
    by_size = {}
    for size_bytes in (put.CLAIM_BYTES, put.MEDIUM_BYTES, put.LARGE_BYTES):
        with tempfile.TemporaryDirectory() as here:
            by_size[size_bytes] = put.measure("process", size_bytes, 32 * MIB, 2_000, rounds, Path(here))
    yield put.claims(by_size, "process")
    with tempfile.TemporaryDirectory() as here:
        yield half_load(rounds, Path(here))
    with tempfile.TemporaryDirectory() as here:
        yield growth(stream_gib, Path(here))


def half_load(rounds: int, folder: Path) -> list[Outcome]:
    """Latencies of batches that are asked for one by one, twice as seldom as they could be."""
    store = folder / "store"
    load = fill(store, 12_000, 10 << 10)
    names = load.names
    found: dict[str, list[float]] = {"3 × P50 of a batch at half load": [], "its P99": []}
    with NodeProcess([store]) as node, ais_loader.connect(node.url) as client:
        bucket = client.bucket(load.bucket)

        def took_s(names: Sequence[str]) -> float:
            began_s = time.perf_counter()
            assert len(bucket.get_batch(names).tobytes()) == len(names)
            return time.perf_counter() - began_s

        for seed in range(rounds):
            draw = random.Random(seed)
            drawn = [draw.sample(names, _BATCH) for _ in range(_WARM_UP_BATCHES + _BATCHES)]
            pause_s = 2 * sorted(took_s(batch) for batch in drawn[:_WARM_UP_BATCHES])[_WARM_UP_BATCHES // 2]
            latencies_s = []
            due_s = time.perf_counter()
            for batch in drawn[_WARM_UP_BATCHES:]:
                due_s = max(due_s + pause_s, time.perf_counter())
                time.sleep(max(0.0, due_s - time.perf_counter()))
                latencies_s.append(took_s(batch))
            for name, value in zip(found, (3 * percentile(latencies_s, 50), percentile(latencies_s, 99)), strict=True):
                found[name].append(value)
    subject, baseline = found
    return judge(found, [Claim(subject, baseline, 1.0)])


def growth(gib: int, folder: Path) -> list[Outcome]:
    store = folder / "store"
    load = fill(store, 1_000, MIB)
    with NodeProcess([store]) as node, ais_loader.connect(node.url) as client:
        _, of_client, of_node = memory.stream(node, client, load, gib << 30)
    sides = {
        f"growth of the {side} over {gib} GiB": [float(max(size, MIB))]
        for side, size in (("client", of_client), ("node", of_node))
    }
    limit = {"256 MiB": [float(memory.LIMIT_BYTES)]}
    return judge(sides | limit, [Claim("256 MiB", side, 1.0) for side in sides])
