"""Rates of GETs and batches from one node and three, with the machine's limits beside them: the paper's table 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import ais_loader
from ais_loader.bench.crew import prepare
from ais_loader.testing import NodeProcess
from benchmarks.kit import echo
from benchmarks.kit.files import plain_files, rate, read_files
from benchmarks.kit.harness import Claim, label, run_rounds
from benchmarks.kit.load import Clients, Load
from benchmarks.report.limits import memcpy, through_socket
from tests.cluster_processes import ClusterProcesses

CLIENTS = 4
IN_FLIGHT = 3
NODES = 3
FILES, MEMCPY, ECHO = "file loop", "memcpy", "gRPC stream echo"
SOCKETS = {
    "Unix socket": {"tcp": False, "from_file": False},
    "TCP socket": {"tcp": True, "from_file": False},
    "Unix socket, sendfile": {"tcp": False, "from_file": True},
    "TCP socket, sendfile": {"tcp": True, "from_file": True},
}
ONE, DIRECT, TARGET = "1 node", f"{NODES} nodes, direct", f"{NODES} nodes, target"
COUNTS = {10 << 10: 12_000, 100 << 10: 6_000, 1 << 20: 1_500}


def batch_of(where: str, batch: int) -> str:
    return f"{where}, GetBatch ×{batch}"


def get(where: str) -> str:
    return f"{where}, GET"


def claims(batch: int) -> list[Claim]:
    """Return the targets of three nodes that share the cores of one, relative to that one."""
    return [
        Claim(batch_of(DIRECT, batch), batch_of(ONE, batch), 0.8),
        Claim(batch_of(TARGET, batch), batch_of(ONE, batch), 0.6),
    ]


def pairs(size_bytes: int, batch: int) -> dict[str, tuple[str, str]]:
    """Ratios by name: what is ours above a limit, above GET, and three nodes above one."""
    return {
        f"{label(size_bytes)}: {name}": pair
        for name, pair in {
            "batch ÷ GET": (batch_of(ONE, batch), get(ONE)),
            "batch ÷ file loop": (batch_of(ONE, batch), FILES),
            "batch ÷ gRPC echo": (batch_of(ONE, batch), ECHO),
            "batch of 3 nodes ÷ 1": (batch_of(DIRECT, batch), batch_of(ONE, batch)),
            "batch by a target ÷ 1": (batch_of(TARGET, batch), batch_of(ONE, batch)),
        }.items()
    }


def measure(size_bytes: int, count: int, rounds: int, batches: Sequence[int], folder: Path) -> dict[str, list[float]]:
    """Objects per second of each way, in each round."""
    paths = plain_files(folder / "files", count, size_bytes)
    blocks = max(100, min(5_000, (256 << 20) // size_bytes))
    with ExitStack() as held:
        node = held.enter_context(NodeProcess(folder / "one"))
        cluster = held.enter_context(ClusterProcesses(folder / "three", NODES))
        server = held.enter_context(echo.EchoServer(size_bytes))
        clients = held.enter_context(Clients(CLIENTS))
        contestants: dict[str, Callable[[], float]] = {
            FILES: lambda: rate(count, lambda: read_files(paths)),
            MEMCPY: lambda: memcpy(size_bytes, blocks),
            **{name: partial(through_socket, size_bytes, blocks, **how) for name, how in SOCKETS.items()},
            ECHO: lambda: echo.stream(server.port, min(blocks, 1_000), IN_FLIGHT),
        }
        for url, ways in ((node.url, {ONE: "auto"}), (cluster.url, {DIRECT: "direct", TARGET: "target"})):
            load = Load(url=url, objects=count, size=str(size_bytes), in_flight=IN_FLIGHT, processes=CLIENTS)
            with ais_loader.connect(url) as client:
                prepare(client, load)
            gets = replace(load, workload="get", epochs=0, duration_s=1.0)
            contestants[get(next(iter(ways)))] = partial(clients.rate, gets)
            for where, assembly in ways.items():
                for batch in batches:
                    way = replace(load, batch=batch, assembly=assembly)
                    contestants[batch_of(where, batch)] = partial(clients.rate, way)
        for work in contestants.values():  # connections, caches
            work()
        return run_rounds(contestants, rounds)
