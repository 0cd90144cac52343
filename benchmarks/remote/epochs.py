"""Epochs over a remote bucket: what the plan of a BatchLoader saves.

    python -m benchmarks.remote.epochs  # writes the table beside this file

The cloud is an S3 server (moto) behind a proxy that adds 50 ms to each request. A trainer reads batches of 16 in a
shuffled order, and computes for a fixed time in each step. *First epoch*: everything is cold; the BatchLoader has told
the node its next 64 steps. *Half cache*: the bucket may keep half of its bytes, and each epoch has another order. LRU
is computed from the same order: what a cache of that size would fetch.

Prediction, written before the first run: the first epoch takes 1.1 times as long as the second, as its first step waits
for one batch from the cloud, and later ones for nothing. With half of the bytes, the plan fetches 0.55 of the objects
in each epoch: half is the least that any cache can do, and copies that a batch holds cannot be evicted. LRU fetches
more than 0.8, since each object is used once per epoch, a whole epoch apart on average.

The first run had 0.89 with the plan, more than the 0.77 without it: fetches ahead evicted what later steps needed, and
copies that were just read stayed. Both are evicted by the plan since then.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

import ais_loader
from ais_loader import BatchLoader, Client, MapDataset, Remote, ShufflePlan
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import conclude, page
from tests.remote.backend_kit import ANY_HOST
from tests.remote.fault_proxy import FaultProxy
from tests.remote.s3_server import CREDENTIALS, S3Server

TABLE = Path(__file__).with_suffix(".md")
LATENCY_S = 0.05
BATCH = 16
EPOCHS = 4
"""Epochs with the half cache; the first one, which fetches everything, does not count."""


def filled(server: S3Server, objects: int, size_bytes: int) -> tuple[str, list[str]]:
    """Return a new bucket of the cloud, and its names."""
    bucket, data = server.bucket(), seeded_bytes(size_bytes, seed=1)
    names = [f"{number:05}" for number in range(objects)]
    for name in names:
        server.put(bucket, name, data)
    return bucket, names


def trained(loader: BatchLoader, compute_s: float) -> tuple[float, float]:
    """Train for one epoch. Return its time in seconds, and how much of it the trainer waited for batches."""
    began_s, waited_s, batches = time.perf_counter(), 0.0, iter(loader)
    while True:
        at_s = time.perf_counter()
        try:
            next(batches)
        except StopIteration:
            return time.perf_counter() - began_s, waited_s
        waited_s += time.perf_counter() - at_s
        time.sleep(compute_s)


def loader_of(client: Client, bucket: str, names: Sequence[str], expect_steps: int) -> BatchLoader:
    plan = ShufflePlan(len(names), BATCH, seed=1)
    return BatchLoader(MapDataset(client, names, bucket=bucket), plan, expect_steps=expect_steps)


def lru_misses(orders: Iterable[Sequence[int]], capacity: int) -> list[int]:
    """Return how many objects a cache of `capacity` objects fetches in each epoch, if it evicts the least recently used
    one."""
    kept: OrderedDict[int, None] = OrderedDict()
    misses = []
    for order in orders:
        missed = 0
        for number in order:
            if number in kept:
                kept.move_to_end(number)
                continue
            missed += 1
            kept[number] = None
            if len(kept) > capacity:
                kept.popitem(last=False)
        misses.append(missed)
    return misses


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--objects", default=320, show_default=True)
@click.option("--size-bytes", default=100_000, show_default=True, help="Of one object.")
@click.option("--compute-s", default=0.25, show_default=True, help="Time of one step.")
@click.option("--table/--no-table", default=True, show_default=True, help="Write epochs.md.")
def main(rounds: int, objects: int, size_bytes: int, compute_s: float, table: bool) -> None:
    os.environ.update(CREDENTIALS)
    epochs: list[tuple[float, float, float, float]] = []
    shares: dict[str, list[float]] = {"with the plan": [], "without it": []}
    with (
        tempfile.TemporaryDirectory() as root,
        S3Server() as server,
        FaultProxy(server.endpoint) as proxy,
        NodeProcess(Path(root) / "node", arguments=ANY_HOST) as node,
        ais_loader.connect(node.url) as client,
    ):
        proxy.latency_s = LATENCY_S
        for round_ in range(rounds):
            cloud, names = filled(server, objects, size_bytes)
            bucket = client.create_bucket(f"r{round_}", remote=Remote(f"s3://{cloud}", endpoint=proxy.url)).name
            loader = loader_of(client, bucket, names, 64)
            epochs.append((*trained(loader, compute_s), *trained(loader, compute_s)))
        cloud, names = filled(server, objects, size_bytes)
        half = objects // 2 * size_bytes
        for at, found in enumerate(shares.values()):
            remote = Remote(f"s3://{cloud}", endpoint=proxy.url, cache_bytes=half)
            loader = loader_of(client, client.create_bucket(f"half{at}", remote=remote).name, names, 64 * (not at))
            for epoch in range(EPOCHS):
                proxy.forget()
                trained(loader, compute_s / 5)
                if epoch:
                    found.append(proxy.count("GET") / objects)
    plan = ShufflePlan(objects, BATCH, seed=1)
    orders = [[int(n) for step in range(plan.steps(e) or 0) for n in plan.batch(e, step)] for e in range(EPOCHS)]
    lru = [missed / objects for missed in lru_misses(orders, objects // 2)[1:]]
    ratios = [first / second for first, _, second, _ in epochs]
    ratio, share = statistics.median(ratios), statistics.median(shares["with the plan"])
    lines = [
        "| what | median | range | wanted |",
        "|---|---:|---:|---:|",
        f"| first epoch ÷ second epoch, time | **{ratio:.2f}** | {min(ratios):.2f} – {max(ratios):.2f} | ≤ 1.2 |",
        *(
            f"| wait of the trainer in the {name} epoch | {statistics.median(waits):.2f} s "
            f"| {min(waits):.2f} – {max(waits):.2f} s | |"
            for name, waits in (("first", [one[1] for one in epochs]), ("second", [one[3] for one in epochs]))
        ),
        *(
            f"| requests of an epoch ÷ objects, half cache, {what} | **{statistics.median(found):.2f}** "
            f"| {min(found):.2f} – {max(found):.2f} | {wanted} |"
            for what, found, wanted in (
                ("with the plan", shares["with the plan"], "≤ 0.6"),
                ("without it", shares["without it"], ""),
                ("LRU, computed", lru, ""),
            )
        ),
    ]
    setting = (
        f"{rounds} rounds of {objects} objects of {size_bytes:,} bytes; {LATENCY_S * 1000:g} ms for each request; "
        f"steps of {BATCH} objects and {compute_s:g} s."
    )
    text = page("Epochs over a remote bucket", __doc__ or "", setting, "\n".join(lines))
    click.echo(text)
    conclude(text + "\n", TABLE if table else None, reached=ratio <= 1.2 and share <= 0.6)


if __name__ == "__main__":
    main()
