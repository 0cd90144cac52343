"""Kept results of transforms, and batches beside a transform job: each compared with the same without.

    python -m benchmarks.etl.cache  # writes the table beside this file

One node is a separate process, and an embedded store runs in this process. Objects have 10 KiB, and the transform
returns its input, so that a kept result has the size of its object. A GET of a kept result is compared with a plain
GET, and a batch of 128 kept results with a plain batch of the same names, each over the same connection. Then batches
of 128 plain objects are fetched one after another: alone, and while the node passes another bucket through a Python
function that takes 2 ms of a core for each object, with as many workers as there are cores. Each round runs every
contestant once, and ratios are computed within a round. For a latency, the ratio is that of the inverses, so that
larger is always better.

Prediction, written before the first run: A GET of a kept result looks into the catalog's entry and a dictionary, where
a plain GET opens and reads a file: 1.0 to 1.2 times its rate by gRPC, where most of the time is gRPC's, and 0.8 in the
embedded store, where names of transforms are looked up in Python and a plain GET is a few system calls. A batch needs
some 6 us of Python for each kept entry, where the native reader needs 4 us for a plain one: 0.7. Beside a job, whose
workers have a lower priority but whose node has one event loop, a batch has to wait for the job's turns on that loop:
0.6 of the batches per second, and a P99 that is twice as long.

Other processes kept the machine so busy that single rounds differ by more than what is claimed, so read the medians. A
GET of a kept result by gRPC is no faster than a plain one, which is also answered on the event loop and needs no lookup
of names: 0.8 where 1.0 was predicted. Batches are as predicted, and lose less beside a job than predicted, except at
the 99th percentile. A first run had its stores on a memory file system, where plain GETs were four times slower than
kept results, because a read there cannot be tried without waiting. The stores of this table are on a drive.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click

from ais_loader import Bucket, Client, Entry, Stage, connect
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.testing.node import NodeProcess
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish

SIZE_BYTES = 10 << 10
BATCH = 128
KEPT = 1024
"""Objects of which results are kept."""
GETS_AT_A_TIME = 20
WORK_S = 0.002
TABLE = Path(__file__).with_suffix(".md")
CLAIMS = [
    Claim("node: GET of a kept result", "node: GET", 0.8),
    Claim("embedded: GET of a kept result", "embedded: GET", 0.8),
    Claim("node: batch of kept results", "node: batch", 0.7),
    Claim("embedded: batch of kept results", "embedded: batch", 0.7),
    Claim("batches beside a job", "batches alone", 0.5),
    Claim("1 / P99 beside a job", "1 / P99 alone", 1 / 3),
]


def same(data: memoryview) -> memoryview:
    return data


def work(data: memoryview, seconds: float) -> bytes:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        made = hashlib.sha256(data).digest()
    return made


def _gets(bucket: Bucket, names: list[str], etl: str | None) -> float:
    """Objects per second, by the median of some at a time: others use this machine too."""
    took_s = []
    for first in range(0, len(names), GETS_AT_A_TIME):
        began_s = time.perf_counter()
        for name in names[first : first + GETS_AT_A_TIME]:
            assert len(bucket.get(name, etl=etl)) == SIZE_BYTES
        took_s.append(time.perf_counter() - began_s)
    return GETS_AT_A_TIME / _median(took_s)


def _batches(client: Client, names: list[str], etl: str | None, seconds: float) -> list[float]:
    """How long each took, one after another."""
    took_s: list[float] = []
    until_s = time.perf_counter() + seconds
    while (began_s := time.perf_counter()) < until_s:
        first = BATCH * len(took_s) % (len(names) - BATCH + 1)
        entries = [Entry("b", name, etl=etl) for name in names[first : first + BATCH]]
        assert sum(len(item.data) for item in client.get_batch(entries)) == BATCH * SIZE_BYTES
        took_s.append(time.perf_counter() - began_s)
    return took_s


def _filled(client: Client, jobs: int) -> list[str]:
    names = [f"{at:06d}" for at in range(KEPT)]
    bucket = client.create_bucket("b")
    bucket.put_many((name, seeded_bytes(SIZE_BYTES, at)) for at, name in enumerate(names))
    client.etl.init("same", same)
    list(client.get_batch([Entry("b", name, etl="same") for name in names]))  # from now on they are kept
    if jobs:
        client.create_bucket("from").put_many((f"{at:06d}", seeded_bytes(SIZE_BYTES, at)) for at in range(jobs))
        client.etl.init("work", work)
    return names


def contestants(
    held: ExitStack, count: int, seconds: float, p99: dict[str, list[float]]
) -> dict[str, Callable[[], float]]:
    """`p99`: takes, by contestant, the inverse of the 99th percentile of each round's batches."""
    folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
    node = held.enter_context(NodeProcess([folder / "node"], arguments=["--set", "etl_code=true"]))
    jobs = 20_000
    found: dict[str, Callable[[], float]] = {}
    clients = {
        "node": held.enter_context(connect(node.url)),
        "embedded": held.enter_context(connect(folder / "embedded")),
    }
    for where, client in clients.items():
        names = _filled(client, jobs if where == "node" else 0)
        wanted = [names[at % len(names)] for at in range(count)]
        bucket = client.bucket("b")
        for what, etl in (("", None), (" of a kept result", "same")):
            found[f"{where}: GET{what}"] = lambda bucket=bucket, wanted=wanted, etl=etl: _gets(bucket, wanted, etl)  # type: ignore[misc]
        for what, etl in (("", None), (" of kept results", "same")):
            found[f"{where}: batch{what}"] = lambda client=client, names=names, etl=etl: (  # type: ignore[misc]
                1 / _median(_batches(client, names, etl, seconds))
            )
    client = clients["node"]
    names = [f"{at:06d}" for at in range(KEPT)]
    numbers = iter(range(1 << 20))

    def alone() -> float:
        return rate("1 / P99 alone", _batches(client, names, None, 2 * seconds))

    def beside() -> float:
        client.create_bucket(to := f"to-{next(numbers)}")
        job = client.bucket("from").transform(to, etl=Stage("work", {"seconds": WORK_S}), wait=False)
        eventually(lambda: job.refresh().counts.transformed > 0)
        try:
            took_s = _batches(client, names, None, 2 * seconds)
            assert job.refresh().state == "running", "the job ended before the batches did: give it more objects"
        finally:
            job.stop()
            client.delete_bucket(to, force=True)
        return rate("1 / P99 beside a job", took_s)

    def rate(which: str, took_s: list[float]) -> float:
        p99.setdefault(which, []).append(1 / sorted(took_s)[int(len(took_s) * 0.99)])
        return len(took_s) / sum(took_s)

    return {**found, "batches alone": alone, "batches beside a job": beside}


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


@click.command(help=__doc__)
@click.option("--count", default=400, show_default=True, help="GETs in each round.")
@click.option("--seconds", default=1.0, show_default=True, help="Of batches in each round; twice as many beside a job.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the table.")
def main(count: int, seconds: float, rounds: int, keep: bool) -> None:
    with ExitStack() as held:
        p99: dict[str, list[float]] = {}
        rates = run_rounds(contestants(held, count, seconds, p99), rounds) | p99
    publish(
        "Kept results, and batches beside a job",
        __doc__,
        f"{rounds} rounds; node, workers and client share the cores.",
        rates,
        "a second",
        CLAIMS,
        table=TABLE if keep else None,
    )


if __name__ == "__main__":
    main()
