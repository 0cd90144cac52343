"""Cost of erasure coding on six nodes: processor time, beside that of the puts, and the space that it saves.

This isolates coding from everything else: a bucket with rs:4+2 is filled, measured while its objects are three copies,
and measured again when they are coded. Processor time is that of all six nodes together, user and system, without what
they take when idle. All nodes share this machine's cores, so that only ratios mean anything.

    python -m benchmarks.cluster.coding_cost  # writes the table beside this file
    python -m benchmarks.cluster.coding_cost --no-write
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
import grpc

import ais_loader
from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from ais_loader.wire.generated import ais_replica_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2_grpc as rpc
from benchmarks.kit.harness import machine
from tests.cluster_processes import ClusterProcesses
from tests.peer_kit import PROCESS_OPERATOR

BUCKET, NODES, REDUNDANCY = "b", 6, "rs:4+2"
LEFT_BYTES = NODES * 4 * (64 << 10)
GARBAGE_S, IDLE_S, DELAY_S = 8.0, 6.0, 60.0
TABLE = Path(__file__).with_suffix(".md")
CORPORA = {"10 KiB": (10 << 10, 20_000), "100 KiB": (100 << 10, 2000), "2 MiB": (2 << 20, 100)}
"""Size and number of objects."""
_CLOCK_HZ = os.sysconf("SC_CLK_TCK")


class Corpus(NamedTuple):
    size_bytes: int
    copies_bytes: int
    coded_bytes: int
    put_s: float
    """Processor time of the nodes while the objects were put."""
    code_s: float
    """While they were coded."""


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
    """Fill a bucket, wait until it is coded, and return what both took."""
    draw = random.Random(1)
    with ais_loader.connect(cluster.url) as client:
        bucket = client.create_bucket(BUCKET, redundancy=REDUNDANCY)
        began_s, before_s = time.monotonic(), processor_s(cluster.nodes)
        bucket.put_many((f"{at:05}", draw.randbytes(size_bytes)) for at in range(count))
        put_s = processor_s(cluster.nodes) - before_s
        copies_bytes = stored_bytes(folder)
        time.sleep(max(0.0, DELAY_S - 2 * IDLE_S - (time.monotonic() - began_s)))
        before_s = processor_s(cluster.nodes)
        time.sleep(IDLE_S)
        idle = (processor_s(cluster.nodes) - before_s) / IDLE_S
        assert not coded_bytes(cluster.nodes), f"filling took longer than {DELAY_S:g} s"
        began_s, before_s = time.monotonic(), processor_s(cluster.nodes)
        eventually(lambda: coded_bytes(cluster.nodes) > size_bytes * count - LEFT_BYTES, timeout_s=300, interval_s=2.0)
        time.sleep(GARBAGE_S)  # removing the copies is a part of the cost
        code_s = processor_s(cluster.nodes) - before_s - idle * (time.monotonic() - began_s)
        return Corpus(size_bytes * count, copies_bytes, stored_bytes(folder), put_s, code_s)


def run() -> str:
    lines = [
        "| objects | stored as 3 copies | stored at 4+2 | processor seconds per GB, put | coded | coded ÷ put |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, (size_bytes, count) in CORPORA.items():
        arguments = ["--set", f"coding_delay_s={DELAY_S:g}"]
        with throwaway_folder() as folder, ClusterProcesses(folder, NODES, arguments=arguments) as cluster:
            found = code(cluster, Path(folder), size_bytes, count)
        gigabytes = found.size_bytes / 1e9
        lines.append(
            f"| {name} × {count:,} | {found.copies_bytes / found.size_bytes:.2f}× "
            f"| **{found.coded_bytes / found.size_bytes:.2f}×** | {found.put_s / gigabytes:.0f} "
            f"| {found.code_s / gigabytes:.0f} | **{found.code_s / found.put_s:.2f}** |"
        )
    return "\n".join(lines)


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.option("--write/--no-write", default=True, show_default=True)
def main(write: bool) -> None:
    load, found = os.getloadavg()[0], run()
    click.echo(found)
    if write:
        head = TABLE.read_text().partition("\nMachine:")[0].rstrip()
        TABLE.write_text(
            f"{head}\n\nMachine: {machine()}. Load average at the start {load:.0f}: on a machine with other load, only "
            f"the ratios are meaningful.\n\n{found}\n"
        )


if __name__ == "__main__":
    main()
