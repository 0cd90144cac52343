"""Replica choice by load and hedging, with and without, on three nodes of which one is paused half of the time.

This isolates how much replica choice and hedging help the slowest batches, and what they cost when no node is slow. The
client code is the same, in one process; "neither" always reads the first copy and waits for it. All nodes share this
machine's cores, so reading from another copy is no faster here than reading would be without a fault.

    python -m benchmarks.cluster.copies  # writes the table beside this file
    python -m benchmarks.cluster.copies --rounds 2 --no-write
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import numpy as np

import ais_loader
from ais_loader.testing import NodeProcess
from ais_loader.transport.cluster.transport import RemoteTransport
from benchmarks.kit.harness import machine
from tests.cluster_processes import ClusterProcesses

BUCKET, BATCH, COUNT, SIZE_BYTES, NODES, COPIES = "b", 64, 600, 100 << 10, 3, 2
BATCHES = 60
STILL_S, GOING_S = 0.4, 0.4
TABLE = Path(__file__).with_suffix(".md")
WAYS = {"neither": (False, 0.0), "choice": (True, 0.0), "hedging": (False, 0.05), "both": (True, 0.05)}
"""Choice of copies by load, and the budget for hedges."""


@contextmanager
def pulses(node: NodeProcess) -> Iterator[None]:
    """The node stands still for a while, again and again."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(GOING_S):
            node.pause()
            over.wait(STILL_S)
            node.resume()

    thread = threading.Thread(target=run, name="pulses")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        node.resume()


def connected(url: str, choice: bool, hedge_budget: float) -> ais_loader.Client:
    client = ais_loader.connect(url, options=ais_loader.ClusterOptions(hedge_budget=hedge_budget))
    client.bucket(BUCKET).head("0")
    transport = client._transport
    assert isinstance(transport, RemoteTransport)
    if not choice:
        members = transport.members
        members.preferred = lambda found, key, buckets: found  # type: ignore[method-assign]
    return client


def latencies_s(client: ais_loader.Client, seed: int) -> tuple[list[float], int]:
    """Return the latencies of successive batches, and the number of their entries that were hedged."""
    draw = random.Random(seed)
    taken: list[float] = []
    hedged = 0
    for _ in range(BATCHES):
        names = [str(at) for at in draw.sample(range(COUNT), BATCH)]
        began_s = time.perf_counter()
        with client.bucket(BUCKET).get_batch(names, assembly="direct") as batch:
            assert len(batch.tobytes()) == BATCH
        taken.append(time.perf_counter() - began_s)
        hedged += batch.timing.hedged
    return taken, hedged


def table(found: dict[str, list[tuple[list[float], int]]]) -> str:
    """Format all rounds as one table. Ratios are within a round, whose four ways ran one after another."""
    lines = [
        "| what | batches | mean ms | P50 ms | P99 ms | entries hedged | mean ÷ neither | P50 ÷ neither |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for way, rounds in found.items():
        together = np.concatenate([taken for taken, _ in rounds]) * 1000
        hedged = sum(count for _, count in rounds) / (len(together) * BATCH)
        others = zip(rounds, found["neither"], strict=True)
        pairs = [(np.array(ours), np.array(theirs)) for (ours, _), (theirs, _) in others]
        means = [float(ours.mean() / theirs.mean()) for ours, theirs in pairs]
        middles = [float(np.median(ours) / np.median(theirs)) for ours, theirs in pairs]
        lines.append(
            f"| {way} | {len(together)} | {together.mean():.1f} | {np.quantile(together, 0.5):.1f} "
            f"| {np.quantile(together, 0.99):.1f} | {hedged:.1%} | {spread(means)} | {spread(middles)} |"
        )
    return "\n".join(lines)


def spread(ratios: Sequence[float]) -> str:
    """Median and range."""
    return f"**{np.median(ratios):.2f}** ({min(ratios):.2f} – {max(ratios):.2f})"


def measure(cluster: ClusterProcesses, rounds: int, faulty: Sequence[NodeProcess]) -> str:
    found: dict[str, list[tuple[list[float], int]]] = {way: [] for way in WAYS}
    with ExitStack() as held:
        clients = {way: held.enter_context(connected(cluster.url, *what)) for way, what in WAYS.items()}
        for client in clients.values():  # connections, and what is usual
            latencies_s(client, 0)
        for node in faulty:
            held.enter_context(pulses(node))
        names = list(clients)
        for number in range(rounds):
            for way in names[number % len(names) :] + names[: number % len(names)]:
                found[way].append(latencies_s(clients[way], 1 + number))
    return table(found)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--rounds", default=5, show_default=True)
@click.option("--write/--no-write", default=True, show_default=True)
def main(rounds: int, write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder, ClusterProcesses(folder, NODES, buckets={BUCKET: COPIES}) as cluster:
        with ais_loader.connect(cluster.url) as client:
            data = bytes(range(256)) * (SIZE_BYTES // 256)
            client.bucket(BUCKET).put_many((str(at), data) for at in range(COUNT))
        parts = [
            "# Copies by load, and hedging\n",
            (__doc__ or "").split("\n\n    python")[0].split("\n\n", 1)[1] + "\n",
            f"Machine: {machine()}. {rounds} rounds of {BATCHES} batches of {BATCH} objects of {SIZE_BYTES >> 10} KiB, "
            f'one at a time, assembly="direct", {NODES} nodes, {COPIES} copies. Load average at the start '
            f"{os.getloadavg()[0]:.0f}: on a machine with other load, only the ratios are meaningful.\n",
            f"## One node is paused for {STILL_S:g} s of every {STILL_S + GOING_S:g} s\n",
            measure(cluster, rounds, cluster.nodes[1:2]) + "\n",
            "## No node is slow\n",
            measure(cluster, rounds, []) + "\n",
        ]
    text = "\n".join(parts)
    click.echo(text)
    if write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
