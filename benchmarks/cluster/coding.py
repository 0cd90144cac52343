"""Erasure coding against copies: reads of small objects from six nodes, with all of them and with one frozen.

Both buckets survive the loss of two nodes: one has three copies of each object, the other one is coded 4+2. The same
client reads the same batches of random objects, one at a time, in the same run. All nodes and the client share this
machine's cores, so a read that takes more work takes longer here, even where it would only use more machines.

    python -m benchmarks.cluster.coding  # writes the table beside this file
    python -m benchmarks.cluster.coding --rounds 2 --no-write
"""

from __future__ import annotations

import os
import random
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import grpc
import numpy as np

import ais_loader
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.generated import ais_replica_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2_grpc as rpc
from ais_loader.wire.redundancy import companion_name
from benchmarks.kit.harness import machine
from tests.cluster_processes import ClusterProcesses
from tests.peer_kit import PROCESS_OPERATOR

NODES, DATA, PARITY = 6, 4, 2
COUNT, SIZE_BYTES, BATCH, BATCHES = 4000, 10 << 10, 128, 10
BUCKETS = "copies", "coded"
RECOVERED_S = 3.0
"""Time after which a node that goes on is asked again."""
LEFT_BYTES = NODES * DATA * (64 << 10)
"""Less than a group on each node stays as copies."""
TABLE = Path(__file__).with_suffix(".md")
PREDICTION = """Predicted before the first run: coded reads take three to six times as long as copies on one machine,
because each batch takes two hops and about 36 requests between nodes instead of 6. With one node frozen, they take at
most 1.3 times as long as with all nodes, because a known failure is not waited for, and a sixth of the entries costs
four reads instead of one.

Coded reads take longer than that. Each of the 36 requests takes the ordinary path of a batch on its node, about 1 ms of
processor time on both sides, while whole small objects are answered from memory. A gathering node that knew the places
of coded objects would need 12.
"""


@contextmanager
def coded_nodes(folder: Path) -> Iterator[ClusterProcesses]:
    """Six nodes with the buckets "copies" and "coded"."""
    settings = {"coding_delay_s": 2.0, "repair_interval_s": 1}
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    buckets = {"copies": PARITY + 1, "coded": PARITY + 1}
    with ClusterProcesses(folder, NODES, buckets=buckets, arguments=arguments) as cluster:
        parent = next(bucket for bucket in cluster.map.bucket if bucket.name == "coded")
        parent.coding.data, parent.coding.parity = DATA, PARITY
        companion = companion_name(parent.uuid)
        cluster.map.bucket.add(name=companion, uuid=uuid.uuid4().bytes, copies=1, min_copies=1, coded_of=parent.uuid)
        cluster.map.version += 1
        cluster.teach()
        yield cluster


def coded_bytes(node: NodeProcess) -> int:
    with PROCESS_OPERATOR.through(grpc.insecure_channel(node.peer_endpoint), node.peer_endpoint) as channel:
        found: int = rpc.RepairStub(channel).Progress(pb.ProgressRequest(), timeout=60).coding.bytes_coded
        return found


def batches_ms(client: ais_loader.Client, bucket: str, seed: int, count: int) -> list[float]:
    """Return the times of successive batches."""
    draw, taken = random.Random(seed), list[float]()
    for _ in range(count):
        names = [f"{at:05}" for at in draw.sample(range(COUNT), BATCH)]
        began_s = time.perf_counter()
        with client.bucket(bucket).get_batch(names) as batch:
            assert len(batch.tobytes()) == BATCH
        taken.append((time.perf_counter() - began_s) * 1000)
    return taken


def measure(client: ais_loader.Client, seed: int) -> dict[str, float]:
    """Return the median time of a batch of each bucket. The first batches learn which nodes are slow."""
    for bucket in BUCKETS:
        batches_ms(client, bucket, 0, 2)
    return {bucket: float(np.median(batches_ms(client, bucket, seed, BATCHES))) for bucket in BUCKETS}


def measure_all(cluster: ClusterProcesses, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the times of each round, by which nodes there are."""
    draw = random.Random(0)
    objects = [(f"{at:05}", draw.randbytes(SIZE_BYTES)) for at in range(COUNT)]
    away = cluster.nodes[-1]
    with ais_loader.connect(cluster.url, options=ais_loader.ClusterOptions(retry_s=60.0)) as client:
        client.bucket("copies").put_many(objects)
        client.bucket("coded").put_many(objects)
        wanted_bytes = COUNT * SIZE_BYTES - LEFT_BYTES
        eventually(lambda: sum(map(coded_bytes, cluster.nodes)) >= wanted_bytes, timeout_s=300)
        found: dict[str, list[dict[str, float]]] = {"all nodes": [], "one node frozen": []}
        for number in range(1, rounds + 1):
            found["all nodes"].append(measure(client, number))
            away.pause()
            found["one node frozen"].append(measure(client, number))
            away.resume()
            time.sleep(RECOVERED_S)
    return found


def spread(values: Sequence[float]) -> str:
    return f"{np.median(values):.2f} ({min(values):.2f} – {max(values):.2f})"


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--rounds", default=5, show_default=True)
@click.option("--write/--no-write", default=True, show_default=True)
def main(rounds: int, write: bool) -> None:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, coded_nodes(Path(folder)) as cluster:
        found = measure_all(cluster, rounds)
    lines = [
        "| nodes | copies, ms | coded, ms | coded ÷ copies | coded ÷ coded with all nodes |",
        "|---|---:|---:|---:|---:|",
    ]
    for label, times in found.items():
        copies, coded = ([one[bucket] for one in times] for bucket in BUCKETS)
        whole = [one["coded"] for one in found["all nodes"]]
        ratios = [[one / other for one, other in zip(coded, others, strict=True)] for others in (copies, whole)]
        lines.append(f"| {label} | {' | '.join(map(spread, (copies, coded, *ratios)))} |")
    parts = [
        "# Erasure coding against copies\n",
        (__doc__ or "").split("\n\n    python")[0].split("\n\n", 1)[1] + "\n",
        PREDICTION,
        f"Machine: {machine()}. {COUNT:,} objects of {SIZE_BYTES >> 10} KiB, batches of {BATCH}, medians of {rounds} "
        f"rounds of {BATCHES} batches; ratios are within a round. Load average at the start {load:.0f}: on a "
        "machine with other load, only the ratios are meaningful, and they vary.\n",
        "\n".join(lines) + "\n",
    ]
    text = "\n".join(parts)
    click.echo(text)
    if write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
