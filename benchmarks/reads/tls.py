"""TLS against plaintext: the same reads of a node with --secure and of one without, over gRPC and over a Unix lane.

Both nodes have the same objects, and take turns in every round. The page cache is warm, and every byte is compared with
its checksum. What is measured is the processor time of client and node together, which both pay for the encryption: it
tells less of what else the machine does than a wall clock.

    python -m benchmarks.reads.tls  # 10 KiB, 100 KiB, 1 MiB; writes the table beside this file
    python -m benchmarks.reads.tls --sizes 10240 --rounds 3 --no-write
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click
import psutil

from ais_loader import Client, ClusterOptions, Entry, connect
from ais_loader.testing import NodeProcess
from ais_loader.values.options import LaneChoice
from benchmarks.kit.harness import Claim, SizeReport, by_size, run_rounds
from benchmarks.kit.load import fill

TABLE = Path(__file__).with_suffix(".md")
BATCH = 128
WAYS: dict[str, LaneChoice] = {"gRPC": "grpc", "Unix lane": "auto"}
NODES = ("plaintext", "TLS")
COUNTS = {10 << 10: 12_800, 100 << 10: 3_840, 1 << 20: 512}
GETS = 512


def batches(node: str, way: str) -> str:
    return f"{way}, {node}: GetBatch ×{BATCH}"


def gets(node: str, way: str) -> str:
    return f"{way}, {node}: single GET"


def claims(way: str, at_least: float) -> list[Claim]:
    return [Claim(of("TLS", way), of("plaintext", way), at_least) for of in (batches, gets)]


CLAIMS = [*claims("gRPC", 0.0), *claims("Unix lane", 0.98)]
"""A lane of the same machine is not encrypted, and has to be as fast. What TLS costs over gRPC is reported."""


def read_batches(client: Client, entries: list[Entry]) -> int:
    wanted: Iterator[list[Entry]] = (entries[at : at + BATCH] for at in range(0, len(entries), BATCH))
    return sum(1 for batch in client.get_batches(wanted) for item in batch if item.data is not None)


def read_single(client: Client, entries: list[Entry]) -> int:
    bucket = client.bucket(entries[0].bucket)
    for entry in entries[:GETS]:
        bucket.get(entry.name)
    return min(GETS, len(entries))


def per_processor_s(node: psutil.Process, read: Callable[[], int]) -> float:
    """Return the objects read for each second of processor time of this process and the node."""
    before, began_s = node.cpu_times(), time.process_time()
    count = read()
    own_s, after = time.process_time() - began_s, node.cpu_times()
    return count / (own_s + after.user + after.system - before.user - before.system)


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Objects per second of processor time of each way, in each round."""
    identity = folder / "identity"
    contestants: dict[str, Callable[[], float]] = {}
    with ExitStack() as held:
        for name in NODES:
            entries = fill(folder / name, count, size_bytes).entries
            node = held.enter_context(NodeProcess([folder / name], identity=identity if name == "TLS" else None))
            process = psutil.Process(node.pid)
            for way, choice in WAYS.items():
                client = held.enter_context(
                    connect(node.url, ca=node.ca_file or None, options=ClusterOptions(lane=choice, retry_s=60.0))
                )
                for of, read in ((batches, read_batches), (gets, read_single)):
                    contestants[of(name, way)] = partial(per_processor_s, process, partial(read, client, entries))
        for work in contestants.values():  # connections, caches
            work()
        return run_rounds(contestants, rounds)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400,1048576", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, write: bool) -> None:
    setting = f"{rounds} rounds. Rates are objects per second of processor time, of client and node together."
    report = SizeReport("TLS against plaintext", __doc__ or "", setting)
    for size_bytes, count, folder in by_size(sizes, COUNTS, 1_280):
        rates = measure(size_bytes, count, rounds, folder)
        report.add_size(size_bytes, count, rates, CLAIMS, unit="objects/CPU-s")
    report.conclude(TABLE if write else None)


if __name__ == "__main__":
    main()
