"""GetBatch compared with plain files, single GETs and bare gRPC, with a warm page cache and checksums on.

This isolates the cost of a request: the same objects are read in a random order in six ways. "file loop" is
open/read/close in one Python process over as many plain files. A node is read as clients do by default, through lanes.
"echo" is grpcio sending the same bytes and doing nothing else.

    python -m benchmarks.reads.getbatch  # 10 KiB, 100 KiB, 1 MiB; writes the table beside this file
    python -m benchmarks.reads.getbatch --sizes 10240 --rounds 3 --no-write
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from ais_loader.bench.worker import Threads
from ais_loader.testing import NodeProcess
from benchmarks.kit import echo
from benchmarks.kit.files import plain_files, rate, read_files
from benchmarks.kit.harness import Claim, SizeReport, by_size, judge, label, run_rounds
from benchmarks.kit.load import Clients, fill, rate_of

BATCH = 128
CLIENTS = 4
IN_FLIGHT = 3
TABLE = Path(__file__).with_suffix(".md")

FILES = "file loop, 1 process"
EMBEDDED = f"embedded GetBatch ×{BATCH}, 1 thread"
BATCH_4 = f"node, GetBatch ×{BATCH}, {CLIENTS} clients, {IN_FLIGHT} in flight"
BATCH_1 = f"node, GetBatch ×{BATCH}, 1 client, {IN_FLIGHT} in flight"
GETS = f"node, single GET, {CLIENTS} clients"
ECHO_UNARY = f"gRPC unary echo, {CLIENTS} clients, thread-pool server"
ECHO_ASYNCIO = f"gRPC unary echo, {CLIENTS} clients, asyncio server"
ECHO_STREAM = f"gRPC stream echo, 1 client, {IN_FLIGHT} in flight"


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Objects per second of each way, in each round."""
    store = folder / "store"
    load = replace(fill(store, count, size_bytes), in_flight=1)
    paths = plain_files(folder / "files", count, size_bytes)
    random.Random(1).shuffle(paths)
    echoes = max(100, min(1000, (512 << 20) // size_bytes // CLIENTS))
    with ExitStack() as held:
        embedded = Threads(load, 0)
        held.callback(embedded.close)
        native = held.enter_context(NodeProcess([store]))
        clients = held.enter_context(Clients(CLIENTS))
        echo_server = held.enter_context(echo.EchoServer(size_bytes))
        echo_clients = held.enter_context(echo.EchoClients(echo_server.port, CLIENTS))
        echo_asyncio = held.enter_context(echo.EchoServer(size_bytes, asyncio=True))
        asyncio_clients = held.enter_context(echo.EchoClients(echo_asyncio.port, CLIENTS))
        one = replace(load, url=native.url, in_flight=IN_FLIGHT)
        many = replace(one, processes=CLIENTS)
        contestants: dict[str, Callable[[], float]] = {
            FILES: lambda: rate(count, lambda: read_files(paths)),
            EMBEDDED: lambda: rate_of(embedded),
            BATCH_4: lambda: clients.rate(many),
            BATCH_1: lambda: clients.rate(one),
            GETS: lambda: clients.rate(replace(many, workload="get", epochs=0, duration_s=1.0)),
            ECHO_UNARY: lambda: echo_clients.rate(echoes),
            ECHO_ASYNCIO: lambda: asyncio_clients.rate(echoes),
            ECHO_STREAM: lambda: echo.stream(echo_server.port, CLIENTS * echoes, IN_FLIGHT),
        }
        for work in contestants.values():  # connections, caches
            work()
        return run_rounds(contestants, rounds)


CLAIMS = {
    10 << 10: [
        Claim(BATCH_4, FILES, 0.3),
        Claim(BATCH_1, FILES, 0.25),
        Claim(GETS, ECHO_UNARY, 1.5),
        Claim(GETS, ECHO_ASYNCIO, 1.5),
        Claim(EMBEDDED, FILES, 0.6),
    ],
    1 << 20: [Claim(BATCH_1, ECHO_STREAM, 0.75)],
}
PAPER = {10 << 10: 15.0, 100 << 10: 6.2, 1 << 20: 1.7}
COUNTS = {10 << 10: 20_000, 100 << 10: 20_000, 1 << 20: 4_000}
"""Number of objects by size, all of which fit into the page cache of a machine with 16 GiB."""


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400,1048576", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Where the stores are made; else a temporary folder.")
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, folder: Path | None, write: bool) -> None:
    report = SizeReport("GetBatch", __doc__ or "", f"{rounds} rounds.")
    uplift = ["| object size | GET → GetBatch, 4 clients | the paper (16 nodes, 80 workers) |", "|---|---:|---:|"]
    for size_bytes, count, here in by_size(sizes, COUNTS, 4_000, folder):
        rates = measure(size_bytes, count, rounds, here)
        gain = judge(rates, [Claim(BATCH_4, GETS, 0.0)])[0].median
        uplift.append(f"| {label(size_bytes)} | {gain:.1f}× | {PAPER.get(size_bytes, float('nan')):.1f}× |")
        report.add_size(size_bytes, count, rates, CLAIMS.get(size_bytes, []))
    report.add("## From single GETs to GetBatch\n\n" + "\n".join(uplift) + "\n")
    report.conclude(TABLE if write else None)


if __name__ == "__main__":
    main()
