"""A bucket through a transform that does nothing into a bucket: by the nodes' job, and by clients that pull and put.

    python -m benchmarks.etl.offline  # writes the table beside this file

Objects have 10 KiB, nodes are separate processes, and buckets have one copy. The job passes the objects to Python
workers, as many on each node as there are client processes. Each client process has its share of the names. One kind of
client fetches 128 objects with each batch and stores them with `put_many`; the other fetches and stores one object at a
time. The client processes are started before timing begins, like the workers. Each round runs every contestant once,
into its own bucket, and ratios are computed within a round.

Prediction, written before the first run: An object costs a job some 100 us on the node's event loop, 130 us for the way
to the worker and back, of which 50 us are on the worker's side, and 80 us to be stored: 0.3 ms of two cores, or some
5,000 objects per second. The clients' batches cost the node 15 us per object and a client 15 us; their puts cost the
node 80 us and a client 40 us: 0.15 ms of two cores. So a job with a transform that does nothing is not faster than
clients that do nothing, on a machine where both have the same two cores: 0.8 times, where 1.5 is wanted. What a job
saves, the network in between, does not exist here. A single call costs 0.5 ms on either side: the job handles 5 times
as many objects.
"""

from __future__ import annotations

import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import cloudpickle
import psutil

from ais_loader import connect
from ais_loader.testing import seeded_bytes
from ais_loader.wire.generated import ais_etl_pb2 as pb
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from benchmarks.kit.workers import Workers
from tests.cluster_processes import ClusterProcesses

SIZE_BYTES = 10 << 10
BATCH = 128
PROCESSES = 2
TABLE = Path(__file__).with_suffix(".md")
BUDGET = """## Where the time goes

The samples of py-spy during a job in which a thread of the node held the interpreter, by layer:

| layer | share |
|---|---:|
| store results, in groups of 128: event loop | 39 % |
| store results: threads for drives | 19 % |
| job: groups, bursts, counts, stamps | 11 % |
| to the workers | 6 % |
| from the workers | 4 % |
| look up what is there, read inputs | 3.5 % |
| delete the buckets of the round before | 4 % |
| list, wake each other, the node's own work | 14 % |

A worker takes some 10 us for an object. Objects pass to workers and back through memory that both have mapped, in
bursts of up to 64. With a separate message for each object, the way to the workers and back took 70 us on the event
loop, and an object of the job took 350 us of all processes. Most of the remaining time is spent in the store, and the
clients' PutMany costs the node as much there. A job takes a little less processor time than clients that do nothing,
but most of it in one process, whose interpreter has one core, whereas the clients' work is in three processes. Being
1.5 times as fast therefore requires a store with cheaper puts, or a network between the clients and the node."""
CLAIMS = [Claim("job", "batches and put_many", 1.5), Claim("job", "single gets and puts", 5.0)]


def nothing(data: memoryview) -> memoryview:
    return data


def _client(url: str, _: int, pipe: Connection) -> None:
    """Passes what it is told to through this process, until it is told nothing."""
    with connect(url) as client:
        while (told := pipe.recv()) is not None:
            to_name, names, in_batches = told
            source, to = client.bucket("from"), client.bucket(to_name)
            if in_batches:
                for start in range(0, len(names), BATCH):
                    some = names[start : start + BATCH]
                    to.put_many(list(zip(some, source.get_batch(some).tobytes(), strict=True)))
            else:
                for name in names:
                    to.put(name, source.get(name))
            pipe.send(None)


def contestants(
    held: ExitStack, count: int, nodes: int, cost: dict[str, list[float]]
) -> dict[str, Callable[[], float]]:
    folder = held.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
    arguments = ["--set", "etl_code=true", "--set", f"etl_workers={PROCESSES}"]
    cluster = held.enter_context(ClusterProcesses(folder, nodes, buckets={"from": 1}, arguments=arguments))
    python = pb.PythonCode(pickle=cloudpickle.dumps(nothing), python=f"{sys.version_info[0]}.{sys.version_info[1]}")
    cluster.map.transform.append(pb.Transform(name="nothing", uuid=uuid.uuid4().bytes, python=python))
    cluster.map.version += 1
    cluster.teach()
    client = held.enter_context(connect(cluster.url))
    names = [f"{at:06d}" for at in range(count)]
    client.bucket("from").put_many((name, seeded_bytes(SIZE_BYTES, at)) for at, name in enumerate(names))
    clients = held.enter_context(Workers(_client, cluster.url, PROCESSES))
    clients.ask([("from", [], True)] * PROCESSES)  # connects
    numbers = iter(range(1 << 20))

    def measured(what: str, passes: Callable[[str], Any], among: int) -> Callable[[], float]:
        def run() -> float:
            to_name = f"to-{next(numbers)}"
            client.create_bucket(to_name)
            before_s, began_s = _processor_s(), time.perf_counter()
            passes(to_name)
            wall_s = time.perf_counter() - began_s
            cost.setdefault(what, []).append((_processor_s() - before_s) / among * 1e6)
            client.delete_bucket(to_name, force=True)
            return among / wall_s

        return run

    few = names[: max(100, count // 10)]
    client.create_bucket("warm")
    client.bucket("from").transform("warm", etl="nothing")

    def by_clients(which: list[str], in_batches: bool) -> Callable[[str], Any]:
        return lambda to: clients.ask([(to, which[at::PROCESSES], in_batches) for at in range(PROCESSES)])

    return {
        "job": measured("job", lambda to: client.bucket("from").transform(to, etl="nothing"), count),
        "batches and put_many": measured("batches and put_many", by_clients(names, True), count),
        "single gets and puts": measured("single gets and puts", by_clients(few, False), len(few)),
    }


def _processor_s() -> float:
    """Return the CPU time of this process and its descendants."""
    total = 0.0
    here = psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


@click.command(help=__doc__)
@click.option("--count", default=10_000, show_default=True, help="Objects.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--nodes", default=1, show_default=True)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the table.")
def main(count: int, rounds: int, nodes: int, keep: bool) -> None:
    cost: dict[str, list[float]] = {}
    with ExitStack() as held:
        rates = run_rounds(contestants(held, count, nodes, cost), rounds)
    budget = [
        "| what | processor time of all processes, us for each object |",
        "|---|---:|",
        *(f"| {name} | {sorted(found)[len(found) // 2]:.0f} |" for name, found in cost.items()),
    ]
    publish(
        "A bucket into a bucket",
        __doc__,
        f"{rounds} rounds of {count:,} objects, nodes: {nodes}; nodes, workers and clients share the cores.",
        rates,
        "objects/s",
        CLAIMS,
        "\n".join(budget),
        BUDGET,
        table=TABLE if keep else None,
    )


if __name__ == "__main__":
    main()
