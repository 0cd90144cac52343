"""Tenant fairness: one greedy tenant with 16 sessions and three modest tenants with one session each, on one node.

This isolates how much of a node a tenant keeps when another one requests all it can get. Each modest tenant's rate
beside the greedy one is compared with a quarter of the rate that one of them reaches alone. "all as one tenant" is the
same set of clients without tenant names: what sessions get when the node does not distinguish them.

    python -m benchmarks.reads.fairness  # writes the table beside this file
    python -m benchmarks.reads.fairness --seconds 2 --rounds 1 --no-write
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import click

from ais_loader.bench.worker import Threads
from ais_loader.testing import NodeProcess
from benchmarks.kit.harness import Claim, judge, label
from benchmarks.kit.load import Load, fill, objects
from benchmarks.kit.pages import publish
from benchmarks.kit.workers import Workers

BATCH = 128
IN_FLIGHT = 3
GREEDY_PROCESSES, GREEDY_SESSIONS = 4, 4
MODEST = 3
COUNT = 4000
WARM_UP_S = 1.0
TABLE = Path(__file__).with_suffix(".md")

ALONE = "one modest tenant alone"
QUARTER = "a quarter of that"
BESIDE = [f"modest tenant {number + 1}, beside the greedy one" for number in range(MODEST)]
GREEDY = f"the greedy tenant, {GREEDY_PROCESSES * GREEDY_SESSIONS} sessions"
NAMELESS = [f"modest client {number + 1}, all as one tenant" for number in range(MODEST)]


def _work(given: Load, _: int, pipe: Connection) -> None:
    """Answers (tenant, sessions, seconds) with the objects per second that they got together."""
    while (command := pipe.recv()) is not None:
        tenant, sessions, seconds = command
        # Others still measure when these have measured.
        own = replace(given, tenant=tenant, duration_s=seconds + 2 * WARM_UP_S)
        crowd = [Threads(own, number) for number in range(sessions)]
        for threads in crowd:
            threads.start()
        time.sleep(WARM_UP_S)
        before, began_s = objects(crowd), time.perf_counter()
        time.sleep(seconds)
        rate = (objects(crowd) - before) / (time.perf_counter() - began_s)
        for threads in crowd:
            threads.join()
            threads.close()
        pipe.send(rate)


def measure(size_bytes: int, rounds: int, seconds: float, folder: Path) -> dict[str, list[float]]:
    """Objects per second of each, in each round."""
    store = folder / "store"
    wanted = replace(fill(store, COUNT, size_bytes), epochs=0, in_flight=IN_FLIGHT)
    rates: dict[str, list[float]] = {name: [] for name in (ALONE, QUARTER, *BESIDE, GREEDY, *NAMELESS)}
    with ExitStack() as held:
        node = held.enter_context(NodeProcess([store]))
        crowd = held.enter_context(Workers(_work, replace(wanted, url=node.url), MODEST + GREEDY_PROCESSES))
        crowd.ask([("", 1, 0.1)] * (MODEST + GREEDY_PROCESSES))  # imports, caches
        for _ in range(rounds):
            (alone,) = crowd.ask([("modest 1", 1, seconds)])
            rates[ALONE].append(alone)
            rates[QUARTER].append(alone / 4)
            greedy = [("greedy", GREEDY_SESSIONS, seconds)] * GREEDY_PROCESSES
            found = crowd.ask([*((f"modest {at + 1}", 1, seconds) for at in range(MODEST)), *greedy])
            for name, rate in zip(BESIDE, found, strict=False):
                rates[name].append(rate)
            rates[GREEDY].append(sum(found[MODEST:]))
            found = crowd.ask([("", sessions, seconds) for _, sessions, _ in [("", 1, 0)] * MODEST + greedy])
            for name, rate in zip(NAMELESS, found, strict=False):
                rates[name].append(rate)
    return rates


@click.command(help=__doc__)
@click.option("--size", "size_bytes", default=10 << 10, show_default=True, help="Object size in bytes.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--seconds", default=4.0, show_default=True, help="How long each measurement takes.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where the store is made; else a temporary folder.")
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(size_bytes: int, rounds: int, seconds: float, folder: Path | None, write: bool) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as here:
        rates = measure(size_bytes, rounds, seconds, Path(here))
    without = judge(rates, [Claim(name, QUARTER, 0.0) for name in NAMELESS])
    publish(
        "Fairness",
        __doc__,
        f"{rounds} rounds of {seconds:g} s; objects of {label(size_bytes)}, {BATCH} per batch, {IN_FLIGHT} batches in "
        "flight on each session. Clients and node share the cores.",
        rates,
        "objects/s",
        [Claim(name, QUARTER, 0.5) for name in BESIDE],
        "With all clients as one tenant, a modest client gets "
        f"{min(o.median for o in without):.2f} to {max(o.median for o in without):.2f} of that quarter.",
        table=TABLE if write else None,
        size_bytes=size_bytes,
    )


if __name__ == "__main__":
    main()
