"""Costs of GetBatch on real nodes: what the model of large clusters is fed with, and compared with.

This measures the processor time of nodes and of their client for batches of 1 to 128 entries of 1 KiB to 1 MiB from one
node, and for one batch from 3, 5 and 9 nodes. It fits the cost of a request, an entry and a byte to them, and measures
the rates with which the model is compared. Each node is a process on a machine of its own, made of namespaces, so that
no client maps a node's memory. All batches are read from the page cache.

    python -m benchmarks.cluster.costs  # some minutes; writes costs.json, which `benchmarks.cluster.model` reads
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import click
import numpy as np

import ais_loader
from ais_loader.bench.crew import prepare
from benchmarks.kit.counted_cluster import CountedCluster
from benchmarks.kit.harness import load, machine
from benchmarks.kit.load import Clients, Load

Point: TypeAlias = tuple[int, int, int, float]
"""Nodes, entries, bytes of each, seconds."""
COSTS = Path(__file__).with_suffix(".json")
KIB, MIB = 1 << 10, 1 << 20
SIZES, ENTRIES = (KIB, 10 * KIB, 100 * KIB, MIB), (1, 2, 4, 16, 64, 128)
OBJECTS, STORED_BYTES, IDLE_S, ROUND_S = 2000, 256 * MIB, 5.0, 1.5
CLUSTERS, CLUSTER_BATCH, CLUSTER_SIZE = (1, 3, 5, 9), 128, 10 * KIB
RATES = tuple((size, clients) for size in SIZES[1:] for clients in (1, 4))
RATE_OBJECTS, BATCH, IN_FLIGHT = {10 * KIB: 40_000, 100 * KIB: 8_000, MIB: 1_000}, 128, 3


class Counted:
    """Batches from a running cluster, in processor seconds of its nodes and of this process."""

    def __init__(self, cluster: CountedCluster, client: ais_loader.Client) -> None:
        self._cluster, self._client = cluster, client
        idle = cluster.cost(lambda: time.sleep(IDLE_S))
        self._idle = idle.nodes_s / idle.wall_s, idle.client_s / idle.wall_s

    def fill(self, size_bytes: int) -> list[str]:
        """Store objects of a size in a bucket named after it; return their names."""
        bucket = self._client.create_bucket(f"b{size_bytes}", copies=1)
        names = [f"{number:05}" for number in range(min(OBJECTS, STORED_BYTES // size_bytes))]
        bucket.put_many((name, bytes(size_bytes)) for name in names)
        return names

    def batch(self, size_bytes: int, names: Sequence[str], entries: int) -> tuple[float, float]:
        """Mean costs of a batch of so many random objects, for the nodes and for the client."""

        def read() -> None:
            wanted = [ais_loader.Entry(f"b{size_bytes}", name) for name in random.sample(names, entries)]
            with self._client.get_batch(wanted) as items:
                assert sum(len(item.data) for item in items) == entries * size_bytes

        began_s = time.monotonic()
        for _ in range(20):  # connections are made, and the page cache is filled
            read()
        times = max(20, int(ROUND_S / (time.monotonic() - began_s) * 20))
        cost = self._cluster.cost(read, times)
        nodes_s, client_s = (idle * cost.wall_s for idle in self._idle)
        return cost.nodes_s - nodes_s, cost.client_s - client_s


def fitted(points: Sequence[Point]) -> tuple[list[float], float]:
    """Fit seconds of a request, of a request of one entry, of an entry and of a byte to measured seconds.

    The sum of squares of relative errors is the least. Also returns the mean relative error.
    """
    rows = np.array(
        [
            [nodes if entries > 1 else 0, entries == 1, entries if entries > 1 else 0, entries * size_bytes]
            for nodes, entries, size_bytes, _ in points
        ]
    )
    seconds = np.array([seconds for *_, seconds in points])
    found = np.linalg.lstsq(rows / seconds[:, None], np.ones(len(points)), rcond=None)[0]
    return [float(one) for one in found], float(np.mean(np.abs(rows @ found / seconds - 1)))


def measured_batches(root: Path) -> list[tuple[int, int, int, float, float]]:
    """(nodes, entries, size, processor seconds of the nodes, of the client) of batches that the client assembles."""
    found = []
    for nodes in CLUSTERS:
        with CountedCluster(root / str(nodes), nodes) as cluster, ais_loader.connect(cluster.url) as client:
            counted = Counted(cluster, client)
            for size_bytes in SIZES if nodes == 1 else (CLUSTER_SIZE,):
                names = counted.fill(size_bytes)
                for entries in ENTRIES if nodes == 1 else (CLUSTER_BATCH,):
                    found.append((nodes, entries, size_bytes, *counted.batch(size_bytes, names, entries)))
                    click.echo(f"{found[-1]}")
    return found


def measured_rates(root: Path) -> list[tuple[int, int, float]]:
    """Objects per second of one node and its clients, by (size, clients)."""
    found = []
    with CountedCluster(root, 1) as cluster, Clients(max(clients for _, clients in RATES)) as crowd:
        for size_bytes, clients in RATES:
            given = Load(
                url=cluster.url,
                bucket=f"rate-{size_bytes}",
                objects=min(OBJECTS, STORED_BYTES // size_bytes),
                size=str(size_bytes),
                processes=clients,
                batch=BATCH,
                in_flight=IN_FLIGHT,
                epochs=max(1, RATE_OBJECTS[size_bytes] // min(OBJECTS, STORED_BYTES // size_bytes)),
            )
            with ais_loader.connect(cluster.url) as client:
                prepare(client, given)
            crowd.rate(given)
            found.append((size_bytes, clients, crowd.rate(given)))
            click.echo(f"{size_bytes} bytes, {clients} clients: {found[-1][2]:,.0f}/s")
    return found


@click.command(help=__doc__)
@click.option("--write/--no-write", default=True, show_default=True, help="Whether to write costs.json.")
def main(write: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        batches = measured_batches(root / "batches")
        rates = measured_rates(root / "rates")
    node, node_error = fitted([(of[0], of[1], of[2], of[3]) for of in batches])
    client, client_error = fitted([(of[0], of[1], of[2], of[4]) for of in batches])
    named = ("request_s", "single_s", "entry_s", "byte_s")
    costs = {f"node_{name}": one for name, one in zip(named, node, strict=True)}
    costs |= {f"client_{name}": one for name, one in zip(named, client, strict=True)}
    clusters = [
        (nodes, node_s, client_s)
        for nodes, entries, size_bytes, node_s, client_s in batches
        if (entries, size_bytes) == (CLUSTER_BATCH, CLUSTER_SIZE)
    ]
    errors = {"node": node_error, "client": client_error}
    found: dict[str, object] = {"machine": f"{machine()}; {load()}", "costs": costs, "mean_error": errors}
    found |= {"rates": rates, "clusters": clusters}
    text = json.dumps(found, indent=1) + "\n"
    click.echo(text)
    if write:
        COSTS.write_text(text)


if __name__ == "__main__":
    main()
