"""Processor time of a batch from three nodes against one, and what bare sockets take for the same bytes.

The same objects, on one node and spread over three; one client, three batches of 128 in flight. With "direct", the
client merges the owners' answers; with "target", one node does it. All share this machine's cores, so the rate that
three nodes reach, relative to one, is bounded by the processor time that they take together for an object.

The limits do as little as possible: servers send blocks of a file with sendfile, in the order requested, and the client
receives each block into memory that is reused, and computes its checksum. The limits are one server alone, three
servers with a third of the blocks each, and one server that passes on what it gets from two others.

    python -m benchmarks.cluster_budget            # 10 KiB, 100 KiB, 1 MiB; writes the tables beside this file
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, NamedTuple, Self

import click
import psutil

import ais_loader
from ais_loader.testing import NodeProcess
from ais_loader.testing.cluster import ClusterProcesses
from ais_loader.wire.checksum import crc32c
from benchmarks.clients import get_batches, object_names
from benchmarks.cluster import BATCH, NODES, put_all
from benchmarks.cluster_assembly import IN_FLIGHT
from benchmarks.getbatch import label
from benchmarks.harness import Claim, claims_table, conclude, judge, page, run_rounds
from benchmarks.two_trees import processor_clock

TABLE = Path(__file__).with_suffix(".md")
COUNTS = {10 << 10: 9_600, 100 << 10: 3_840, 1 << 20: 768}
"""Objects of a round: whole batches."""
ONE, DIRECT, TARGET = "1 node", f"{NODES} nodes, direct", f"{NODES} nodes, target"
ONE_SERVER, SERVERS, RELAY = "limit: 1 server", f"limit: {NODES} servers", "limit: 1 server passes on 2 others'"
_REST_S = 3.0
_REQUEST = struct.Struct("<I")


class Took(NamedTuple):
    """A round: seconds of processor time for an object, of all processes; and how they are divided."""

    all_s: float
    rate: float
    client: tuple[float, float]
    """User and system."""
    servers: tuple[float, float]


# -- bare sockets


def _exactly(sock: socket.socket, room: memoryview) -> None:
    while room:
        if not (came := sock.recv_into(room, 0, socket.MSG_WAITALL)):
            raise EOFError
        room = room[came:]


def _requests(asking: socket.socket) -> Sequence[int]:
    """How many blocks are asked for next; nothing when nobody asks any more."""
    asked = asking.recv(_REQUEST.size, socket.MSG_WAITALL)
    return _REQUEST.unpack(asked) if len(asked) == _REQUEST.size else ()


def _blocks(size_bytes: int) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the process that reads it ends with it
    file.write(bytes(size_bytes))
    file.flush()
    return file


def _serve(asking: socket.socket, size_bytes: int) -> None:
    file = _blocks(size_bytes)
    while asked := _requests(asking):
        for _ in range(asked[0]):
            asking.sendfile(file, 0, size_bytes)


def _relay(asking: socket.socket, others: Sequence[socket.socket], size_bytes: int) -> None:
    file, room = _blocks(size_bytes), memoryview(bytearray(size_bytes))
    while asked := _requests(asking):
        for number, other in enumerate(others, 1):
            other.sendall(_REQUEST.pack(len(range(number, asked[0], NODES))))
        for at in range(asked[0]):
            if at % NODES:
                _exactly(others[at % NODES - 1], room)
                asking.sendall(room)
            else:
                asking.sendfile(file, 0, size_bytes)


class Servers:
    """Bare servers that answer one client: `count` that it asks, or one that asks two others for it."""

    def __init__(self, size_bytes: int, count: int, *, relay: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self._size_bytes = size_bytes
        self._processes: list[BaseProcess] = []
        asked: list[socket.socket] = []

        def start(target: Callable[..., None], *arguments: object) -> socket.socket:
            here, there = socket.socketpair()
            for end in (here, there):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            process = context.Process(target=target, args=(there, *arguments, size_bytes), daemon=True)
            process.start()
            there.close()
            self._processes.append(process)
            return here

        if relay:
            others = [start(_serve) for _ in range(NODES - 1)]
            asked.append(start(_relay, others))
            for other in others:
                other.close()
        else:
            asked.extend(start(_serve) for _ in range(count))
        self._asked = asked

    @property
    def pids(self) -> list[int]:
        return [int(process.pid or 0) for process in self._processes]

    def fetch(self, count: int) -> None:
        """Whole batches, in the order asked for."""
        room = memoryview(bytearray(self._size_bytes))
        batches = count // BATCH
        for number in range(batches + IN_FLIGHT):
            if number < batches:
                for at, sock in enumerate(self._asked):
                    sock.sendall(_REQUEST.pack(len(range(at, BATCH, len(self._asked)))))
            if number >= IN_FLIGHT:
                for at in range(BATCH):
                    _exactly(self._asked[at % len(self._asked)], room)
                    crc32c(room)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for sock in self._asked:
            sock.close()
        for process in self._processes:
            process.join(10)
            process.terminate()


# -- measuring


def taken(work: Callable[[], object], count: int, pids: Sequence[int]) -> Took:
    clocks = [time.process_time, *map(processor_clock, pids)]
    servers = [psutil.Process(pid) for pid in pids]

    def divided() -> tuple[list[float], list[float]]:
        here, there = os.times(), [server.cpu_times() for server in servers]
        return [here.user, here.system], [sum(one.user for one in there), sum(one.system for one in there)]

    before, before_s, start = divided(), sum(clock() for clock in clocks), time.perf_counter()
    work()
    wall_s, all_s, after = time.perf_counter() - start, sum(clock() for clock in clocks) - before_s, divided()
    client, there = (
        ((then[0] - now[0]) / count, (then[1] - now[1]) / count) for now, then in zip(before, after, strict=True)
    )
    return Took(all_s / count, count / wall_s, client, there)


def at_rest(pids: Sequence[int]) -> float:
    """Milliseconds of processor time for each second in which nobody asks for anything."""
    clocks = [processor_clock(pid) for pid in pids]
    before_s = sum(clock() for clock in clocks)
    time.sleep(_REST_S)
    return 1000 * (sum(clock() for clock in clocks) - before_s) / _REST_S


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> tuple[dict[str, list[Took]], float, float]:
    """Each way's rounds, and what one node and several take at rest."""
    names = object_names(count)
    with ExitStack() as held:
        node = held.enter_context(NodeProcess(folder / "one"))
        cluster = held.enter_context(ClusterProcesses(folder / "several", NODES))
        ways: dict[str, Callable[[], Took]] = {}
        for url, pids, chosen in (
            (node.url, [node.pid], {ONE: "auto"}),
            (cluster.url, [one.pid for one in cluster.nodes], {DIRECT: "direct", TARGET: "target"}),
        ):
            client = held.enter_context(ais_loader.connect(url))
            put_all(client, count, size_bytes)
            for way, assembly in chosen.items():
                fetch = partial(get_batches, client, names, BATCH, IN_FLIGHT, 0, {"assembly": assembly})
                ways[way] = partial(taken, fetch, count, pids)
        for limit, servers in (
            (ONE_SERVER, Servers(size_bytes, 1)),
            (SERVERS, Servers(size_bytes, NODES)),
            (RELAY, Servers(size_bytes, 1, relay=True)),
        ):
            held.enter_context(servers)
            ways[limit] = partial(taken, partial(servers.fetch, count), count, servers.pids)
        for once in ways.values():  # connections, caches
            once()
        rest = at_rest([node.pid]), at_rest([one.pid for one in cluster.nodes])
        return run_rounds(ways, rounds), *rest


def table(took: dict[str, list[Took]]) -> str:
    lines = [
        "| µs of an object | client, user | system | servers, user | system | all | objects/s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for way, rounds in took.items():
        whole = 1e6 * statistics.median(one.all_s for one in rounds)
        # Of all rounds together: the kernel counts these in steps of 10 ms.
        parts = [sum(part) for part in zip(*((*one.client, *one.servers) for one in rounds), strict=True)]
        divided = " | ".join(f"{whole * part / max(sum(parts), 1e-9):,.0f}" for part in parts)
        lines.append(f"| {way} | {divided} | **{whole:,.0f}** | {statistics.median(o.rate for o in rounds):,.0f} |")
    return "\n".join(lines)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400,1048576", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=15, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, write: bool) -> None:
    sections, reached = [], True
    for size_bytes in map(int, sizes.split(",")):
        with tempfile.TemporaryDirectory() as here:
            took, one_ms, several_ms = measure(size_bytes, COUNTS.get(size_bytes, 1_280), rounds, Path(here))
        outcomes = judge(
            {way: [1 / one.all_s for one in of] for way, of in took.items()},
            [
                Claim(DIRECT, ONE, 0.8),
                Claim(TARGET, ONE, 0.6),
                Claim(SERVERS, ONE_SERVER, 0),
                Claim(RELAY, ONE_SERVER, 0),
            ],
        )
        reached &= all(outcome.reached for outcome in outcomes)
        sections.append(
            f"## {label(size_bytes)}\n\n{table(took)}\n\n{claims_table(outcomes)}\n\nAt rest, one node takes "
            f"{one_ms:.0f} ms of each second, and {NODES} nodes take {several_ms:.0f}.\n"
        )
        click.echo(sections[-1])
    text = page(
        "Processor time of several nodes",
        __doc__ or "",
        f"{rounds} rounds, medians; ratios are taken within a round, of objects per second of processor time.",
        *sections,
    )
    conclude(text, TABLE if write else None, reached=reached)


if __name__ == "__main__":
    main()
