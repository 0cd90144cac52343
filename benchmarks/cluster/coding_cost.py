"""Erasure coding on six nodes: the space that it saves, what coding costs, and reads of fragments, whole and degraded.

This isolates coding from everything else: a bucket with rs:4+2 is filled, measured while its objects are three copies,
and measured again when they are coded, on the same nodes. Processor time is that of all six nodes together, user and system,
without what they take when idle. All nodes share this machine's cores and page cache, so that only ratios mean
anything.

    python -m benchmarks.cluster.coding  # writes the table beside this file
    python -m benchmarks.cluster.coding --rounds 2 --no-write
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import grpc
import numpy as np

import ais_loader
from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from ais_loader.wire.generated import ais_replica_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2_grpc as rpc
from benchmarks.kit.harness import machine
from tests.cluster_processes import ClusterProcesses
from tests.peer_kit import PROCESS_OPERATOR

BUCKET, NODES, REDUNDANCY = "b", 6, "rs:4+2"
BATCH, BATCHES = 128, 30
LEFT_BYTES = NODES * 4 * (64 << 10)
GARBAGE_S, IDLE_S, DELAY_S = 8.0, 6.0, 40.0
TABLE = Path(__file__).with_suffix(".md")
CORPORA = {"10 KiB": (10 << 10, 10_000), "100 KiB": (100 << 10, 1000), "2 MiB": (2 << 20, 50)}
"""Size and number of objects."""
RATE_BYTES_PER_S = 50_000_000
_CLOCK_HZ = os.sysconf("SC_CLK_TCK")


class Corpus(NamedTuple):
    size_bytes: int
    copies_bytes: int
    coded_bytes: int
    processor_s: float


def processor_s(nodes: Sequence[NodeProcess]) -> float:
    """Processor time that these nodes have taken so far."""
    total = 0.0
    for node in nodes:
        fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _CLOCK_HZ
    return total


def stored_bytes(folder: Path) -> int:
    """Return the bytes that files of objects take on all drives, with the indexes of segments."""
    return sum(file.stat().st_blocks * 512 for file in folder.glob("*/*/objects/**/*") if file.is_file())


def coded_bytes(nodes: Sequence[NodeProcess]) -> int:
    total = 0
    for node in nodes:
        with PROCESS_OPERATOR.through(grpc.insecure_channel(node.peer_endpoint), node.peer_endpoint) as channel:
            total += rpc.RepairStub(channel).Progress(pb.ProgressRequest(), timeout=60).coding.bytes_coded
    return total


def code(cluster: ClusterProcesses, folder: Path, size_bytes: int, count: int) -> Corpus:
    """Fill the bucket, have it coded, and return what that took."""
    draw = random.Random(1)
    with ais_loader.connect(cluster.url) as client:
        bucket = client.create_bucket(BUCKET, redundancy=REDUNDANCY)
        bucket.put_many((f"{at:05}", draw.randbytes(size_bytes)) for at in range(count))
        copies = stored_bytes(folder)
        began_s = processor_s(cluster.nodes)
        time.sleep(IDLE_S)
        idle = (processor_s(cluster.nodes) - began_s) / IDLE_S
        assert not coded_bytes(cluster.nodes), f"filling took longer than {DELAY_S:g} s"
        begin, taken = time.monotonic(), processor_s(cluster.nodes)
        eventually(lambda: coded_bytes(cluster.nodes) > size_bytes * count - LEFT_BYTES, timeout_s=300, interval_s=0.5)
        taken = processor_s(cluster.nodes) - taken - idle * (time.monotonic() - begin)
        time.sleep(GARBAGE_S)
        return Corpus(size_bytes * count, copies, stored_bytes(folder), taken)


def latencies_s(client: ais_loader.Client, count: int, seed: int) -> list[float]:
    draw, taken = random.Random(seed), []
    for _ in range(BATCHES):
        names = [f"{at:05}" for at in draw.sample(range(count), BATCH)]
        began_s = time.perf_counter()
        with client.bucket(BUCKET).get_batch(names, assembly="direct") as batch:
            assert len(batch.tobytes()) == BATCH
        taken.append(time.perf_counter() - began_s)
    return taken


def reads(cluster: ClusterProcesses, count: int, rounds: int) -> dict[str, list[float]]:
    """Return mean latencies of batches by what is away: nothing, one node that stands still, two that are dead."""
    found: dict[str, list[float]] = {}

    def measure(what: str, harm: Callable[[], object] = bool) -> None:
        with ais_loader.connect(cluster.url) as client:
            latencies_s(client, count, 0)
            harm()
            latencies_s(client, count, 99)
            means = [float(np.mean(latencies_s(client, count, seed))) for seed in range(1, rounds + 1)]
        found[what] = means

    measure("all nodes are there")
    measure("one node stands still", cluster.nodes[5].pause)
    cluster.nodes[5].resume()
    measure("two nodes are dead", lambda: cluster.kill([4, 5]))
    return found


def run(rounds: int) -> str:
    lines = [
        "| objects | stored with 3 copies | stored at 4+2 | processor seconds per GB | of a core at 50 MB/s |",
        "|---|---:|---:|---:|---:|",
    ]
    latencies: dict[str, list[float]] = {}
    for name, (size_bytes, count) in CORPORA.items():
        arguments = ["--set", f"coding_delay_s={DELAY_S:g}"]
        with (
            throwaway_folder() as folder,
            ClusterProcesses(folder, NODES, arguments=arguments) as cluster,
        ):
            found = code(cluster, Path(folder), size_bytes, count)
            if not latencies:
                latencies = reads(cluster, count, rounds)
        per_byte = found.processor_s / found.size_bytes
        lines.append(
            f"| {name} × {count:,} | {found.copies_bytes / found.size_bytes:.2f}× "
            f"| **{found.coded_bytes / found.size_bytes:.2f}×** | {per_byte * 1e9:.1f} "
            f"| {per_byte * RATE_BYTES_PER_S:.0%} |"
        )
    lines += ["", f"| {BATCH} objects of 10 KiB | mean ms | ÷ all nodes |", "|---|---:|---:|"]
    [whole, *_] = latencies.values()
    for what, means in latencies.items():
        lines.append(
            f"| {what} | {1000 * np.median(means):.1f} | **{np.median(means) / np.median(whole):.2f}** "
            f"({min(means) / max(whole):.2f} – {max(means) / min(whole):.2f}) |"
        )
    return "\n".join(lines)


@click.command()
@click.option("--rounds", type=int, default=5, show_default=True)
@click.option("--write/--no-write", default=True)
def main(rounds: int, write: bool) -> None:
    load = os.getloadavg()[0]
    found = run(rounds)
    click.echo(found)
    if write:
        head = TABLE.read_text().partition("\n| objects |")[0].rstrip() if TABLE.exists() else "# Erasure coding"
        text = head.partition("\nMachine:")[0].rstrip()
        TABLE.write_text(
            f"{text}\n\nMachine: {machine()}. Load average at the start {load:.0f}: on a machine with other load, only "
            f"the ratios are meaningful.\n\n{found}\n"
        )


if __name__ == "__main__":
    main()
