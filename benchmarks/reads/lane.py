"""The lane beside gRPC: the same sessions over a socket and over gRPC, compared with bare gRPC and plain files.

Isolates what carries the bytes: the same client, node, objects and order, once by a lane and once with lane="grpc".
The page cache is warm, every byte is compared with its checksum, by the node or by the client, and client and node
share the machine. "echo" is grpcio sending as many bytes and doing nothing else.

    python -m benchmarks.reads.lane  # 10 KiB, 100 KiB, 1 MiB; writes the table beside this file
    python -m benchmarks.reads.lane --sizes 10240 --rounds 3 --no-write
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from ais_loader.testing import NodeProcess
from benchmarks.kit import echo
from benchmarks.kit.files import plain_files, rate, read_files
from benchmarks.kit.harness import Claim, SizeReport, by_size, run_rounds
from benchmarks.kit.load import Clients, fill
from benchmarks.reads.getbatch import BATCH, CLIENTS, IN_FLIGHT

TABLE = Path(__file__).with_suffix(".md")
WAYS = {"lane": "auto", "gRPC": "grpc"}
FILES = "file loop, 1 process"
ECHO_UNARY = f"gRPC unary echo, {CLIENTS} clients"
ECHO_STREAM = f"gRPC stream echo, 1 client, {IN_FLIGHT} in flight"
COUNTS = {10 << 10: 20_000, 100 << 10: 8_000, 1 << 20: 1_500}


def batches(way: str, clients: int) -> str:
    return f"{way}: GetBatch ×{BATCH}, {clients} client{'s' if clients > 1 else ''}, {IN_FLIGHT} in flight"


def gets(way: str) -> str:
    return f"{way}: single GET, {CLIENTS} clients"


CLAIMS = {
    10 << 10: [
        Claim(batches("lane", 1), FILES, 0.85),
        Claim(batches("lane", CLIENTS), FILES, 0.8),
        Claim(gets("lane"), gets("gRPC"), 1.5),
        Claim(batches("lane", 1), batches("gRPC", 1), 1.0),
    ],
    100 << 10: [Claim(batches("lane", 1), batches("gRPC", 1), 2.0)],
    1 << 20: [
        Claim(batches("lane", 1), ECHO_STREAM, 2.5),
        Claim(gets("lane"), ECHO_UNARY, 2.0),
        Claim(batches("lane", 1), batches("gRPC", 1), 2.0),
    ],
}
"""The wanted ratios, as they were written before anything was measured on this code."""


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Objects per second of each way, in each round."""
    wanted = replace(fill(folder / "store", count, size_bytes), in_flight=IN_FLIGHT)
    paths = plain_files(folder / "files", count, size_bytes)
    random.Random(1).shuffle(paths)
    echoes = max(100, min(1000, (256 << 20) // size_bytes // CLIENTS))
    with ExitStack() as held:
        node = held.enter_context(NodeProcess([folder / "store"]))
        echo_server = held.enter_context(echo.EchoServer(size_bytes))
        echo_clients = held.enter_context(echo.EchoClients(echo_server.port, CLIENTS))
        clients = held.enter_context(Clients(CLIENTS))
        contestants: dict[str, Callable[[], float]] = {FILES: lambda: rate(len(paths), lambda: read_files(paths))}
        for way, choice in WAYS.items():
            one = replace(wanted, url=node.url, lane=choice)
            many = replace(one, processes=CLIENTS)
            contestants[batches(way, 1)] = partial(clients.rate, one)
            contestants[batches(way, CLIENTS)] = partial(clients.rate, many)
            contestants[gets(way)] = partial(clients.rate, replace(many, workload="get", epochs=0, duration_s=1.0))
        contestants[ECHO_UNARY] = partial(echo_clients.rate, echoes)
        contestants[ECHO_STREAM] = partial(echo.stream, echo_server.port, CLIENTS * echoes, IN_FLIGHT)
        for work in contestants.values():  # connections, caches
            work()
        return run_rounds(contestants, rounds)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400,1048576", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, write: bool) -> None:
    report = SizeReport("The lane beside gRPC", __doc__ or "", f"{rounds} rounds.")
    for size_bytes, count, folder in by_size(sizes, COUNTS, 2_000):
        rates = measure(size_bytes, count, rounds, folder)
        report.add_size(size_bytes, count, rates, CLAIMS.get(size_bytes, []))
    report.conclude(TABLE if write else None)


if __name__ == "__main__":
    main()
