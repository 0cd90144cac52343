"""TLS against plaintext: the same reads of a node with --secure and of one without, over gRPC and over a Unix lane.

Both nodes have the same objects, and take turns in every round. The page cache is warm, every byte is compared with its
checksum, and client and nodes share the machine, so that it pays for both ends of the encryption.

    python -m benchmarks.reads.tls  # 10 KiB, 100 KiB, 1 MiB; writes the table beside this file
    python -m benchmarks.reads.tls --sizes 10240 --rounds 3 --no-write
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from ais_loader.objects.client import CA_VARIABLE
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, label, load, machine, rates_table, run_rounds
from benchmarks.kit.load import Clients, fill
from benchmarks.reads.getbatch import BATCH, CLIENTS, IN_FLIGHT

TABLE = Path(__file__).with_suffix(".md")
WAYS = {"gRPC": "grpc", "Unix lane": "auto"}
NODES = ("plaintext", "TLS")
COUNTS = {10 << 10: 10_000, 100 << 10: 4_000, 1 << 20: 750}


def batches(node: str, way: str) -> str:
    return f"{way}, {node}: GetBatch ×{BATCH}, 1 client, {IN_FLIGHT} in flight"


def gets(node: str, way: str) -> str:
    return f"{way}, {node}: single GET, {CLIENTS} clients"


def claims(way: str, at_least: float) -> list[Claim]:
    return [Claim(of("TLS", way), of("plaintext", way), at_least) for of in (batches, gets)]


CLAIMS = [*claims("gRPC", 0.0), *claims("Unix lane", 0.98)]
"""A lane of the same machine is not encrypted, and has to be as fast. What TLS costs over gRPC is reported."""


def measure(size_bytes: int, count: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Objects per second of each way, in each round."""
    wanted = replace(fill(folder / NODES[0], count, size_bytes), in_flight=IN_FLIGHT)
    fill(folder / NODES[1], count, size_bytes)
    identity = folder / "identity"
    os.environ[CA_VARIABLE] = str(identity / "ca.pem")  # for the clients' processes
    with ExitStack() as held:
        nodes = {
            name: held.enter_context(NodeProcess([folder / name], identity=identity if name == "TLS" else None))
            for name in NODES
        }
        clients = held.enter_context(Clients(CLIENTS))
        contestants: dict[str, Callable[[], float]] = {}
        for way, choice in WAYS.items():
            for name, node in nodes.items():
                one = replace(wanted, url=node.url, lane=choice)
                many = replace(one, processes=CLIENTS, workload="get", epochs=0, duration_s=1.0)
                contestants[batches(name, way)] = partial(clients.rate, one)
                contestants[gets(name, way)] = partial(clients.rate, many)
        for work in contestants.values():  # connections, caches
            work()
        return run_rounds(contestants, rounds)


@click.command(help=__doc__)
@click.option("--sizes", default="10240,102400,1048576", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, write: bool) -> None:
    parts = [
        f"# TLS against plaintext\n\n{(__doc__ or '').strip().splitlines()[0]}\n\nMachine: {machine()}. {load()}. "
        f"{rounds} rounds.\n"
    ]
    missed = 0
    for size_bytes in map(int, sizes.split(",")):
        count = COUNTS.get(size_bytes, 2_000)
        with tempfile.TemporaryDirectory() as here:
            rates = measure(size_bytes, count, rounds, Path(here))
        outcomes = judge(rates, CLAIMS)
        missed += sum(not outcome.reached for outcome in outcomes)
        section = (
            f"## {count:,} objects of {label(size_bytes)}\n\n{rates_table(rates, 'objects/s', size_bytes)}\n\n"
            f"{claims_table(outcomes)}\n"
        )
        click.echo(section)
        parts.append(section)
    conclude("\n".join(parts), TABLE if write else None, reached=not missed)


if __name__ == "__main__":
    main()
