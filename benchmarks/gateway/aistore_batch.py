"""GetBatch over AIStore's HTTP API against single GETs through the same gateway.

Both ask for 128 random objects of 10 KiB at a time, and compare the length of each. *plain* clients use `http.client`
on connections that stay open, and walk through the headers of the tar; the *SDK* is AIStore's own, in a process of its
own. Each client shares the cores with the gateway, which is one process, and with the node, if there is one. When
other programs take the cores too, a single GET waits for one with each object, which favours batches; clients with
several connections wait less.

    python -m benchmarks.gateway.aistore_batch --sdk build/aissdk/bin/python  # writes the table beside this file
"""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast
from urllib.parse import urlsplit

import click

from ais_loader import connect
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish

TABLE = Path(__file__).with_suffix(".md")
BUCKET = "bench"
OBJECTS, SIZE_BYTES, BATCH = 2048, 10 << 10, 128
THREADS = 4
WANTED = 8.0
_BLOCK = 512
_SDK = """
import random, sys, time
from aistore.sdk import Client
bucket = Client(sys.argv[1]).bucket(sys.argv[2])
client, count, size, chosen = Client(sys.argv[1]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
draw = random.Random(1)
print("ready", flush=True)
for line in sys.stdin:
    how, repeats = line.split()
    began, done = time.perf_counter(), 0
    for _ in range(int(repeats)):
        names = [f"{number:06d}" for number in draw.sample(range(count), chosen)]
        if how == "batch":
            found = [len(data) for _, data in client.batch(names, bucket).get()]
        else:
            found = [len(bucket.object(name).get_reader().read_all()) for name in names]
        assert found == [size] * chosen, found[:3]
        done += chosen
    print(done / (time.perf_counter() - began), flush=True)
"""


@contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield started
    finally:
        started.terminate()
        started.wait(20)


def line_of(running: subprocess.Popen[str]) -> str:
    return cast(IO[str], running.stdout).readline()


class PlainClient:
    """A client of one connection."""

    def __init__(self, url: str, seed: int) -> None:
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        self._draw = random.Random(seed)

    def _names(self) -> list[str]:
        return [f"{number:06d}" for number in self._draw.sample(range(OBJECTS), BATCH)]

    def single(self) -> None:
        """Get 128 objects, one after another."""
        for name in self._names():
            self._connection.request("GET", f"/v1/objects/{BUCKET}/{name}?provider=ais")
            answer = self._connection.getresponse()
            data = answer.read()
            if answer.status != 200 or len(data) != SIZE_BYTES:
                raise RuntimeError(f"{name}: {answer.status}, {len(data):,} bytes")

    def batch(self) -> None:
        """Get 128 objects with one request."""
        names = self._names()
        message = {"in": [{"objname": name} for name in names], "strm": True, "coer": True}
        self._connection.request("GET", f"/v1/ml/moss/{BUCKET}?provider=ais", json.dumps(message))
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {data[:200]!r}")
        at = 0
        for name in names:
            header = data[at : at + _BLOCK]
            found = header[:100].rstrip(b"\0").decode(), int(header[124:135], 8)
            if found != (f"{BUCKET}/{name}", SIZE_BYTES):
                raise RuntimeError(f"{name}: found {found}")
            at += _BLOCK + SIZE_BYTES + -SIZE_BYTES % _BLOCK
        if any(data[at:]):
            raise RuntimeError("bytes follow the last member")


def plain(url: str, how: str, threads: int, repeats: int) -> Callable[[], float]:
    """Return a function that measures objects per second of several clients at once."""
    clients = [PlainClient(url, seed) for seed in range(threads)]
    pool = ThreadPoolExecutor(threads)

    def one(client: PlainClient) -> None:
        for _ in range(repeats):
            getattr(client, how)()

    def measured() -> float:
        began_s = time.perf_counter()
        list(pool.map(one, clients))
        return threads * repeats * BATCH / (time.perf_counter() - began_s)

    return measured


def of_sdk(running: subprocess.Popen[str], how: str, repeats: int) -> Callable[[], float]:
    def measured() -> float:
        stdin = cast(IO[str], running.stdin)
        stdin.write(f"{how} {repeats}\n")
        stdin.flush()
        return float(line_of(running))

    return measured


def fill(url: str) -> None:
    with connect(url) as client:
        bucket = client.create_bucket(BUCKET)
        bucket.put_many((f"{number:06d}", seeded_bytes(SIZE_BYTES, seed=number)) for number in range(OBJECTS))


@click.command()
@click.option("--rounds", default=7, show_default=True)
@click.option("--sdk", help="A Python that has the package aistore.")
@click.option("--folder", default="/dev/shm", show_default=True, help="For the stores.")
@click.option("--table/--no-table", default=True, show_default=True, help="Write aistore_batch.md.")
def main(rounds: int, sdk: str | None, folder: str, table: bool) -> None:
    contestants: dict[str, Callable[[], float]] = {}
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory(dir=folder) as made, ExitStack() as held:
        node = held.enter_context(NodeProcess(Path(made) / "node"))
        for place, store in {"embedded": str(Path(made) / "store"), "one node": node.url}.items():
            fill(store)
            command = (sys.executable, "-m", "ais_loader.cli", "gateway", store, "--no-keys", "--port", "0", "--json")
            url = json.loads(line_of(held.enter_context(process(*command))))["url"]
            clients: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
                "plain": (plain(url, "single", 1, 3), plain(url, "batch", 1, 40)),
                f"plain, {THREADS} connections": (plain(url, "single", THREADS, 1), plain(url, "batch", THREADS, 10)),
            }
            if sdk is not None:
                arguments = (url, BUCKET, str(OBJECTS), str(SIZE_BYTES), str(BATCH))
                running = held.enter_context(process(sdk, "-c", _SDK, *arguments))
                line_of(running)
                clients["SDK"] = of_sdk(running, "single", 2), of_sdk(running, "batch", 20)
            for name, (single, batch) in clients.items():
                contestants[f"GET, {place}, {name}"] = single
                contestants[f"GetBatch, {place}, {name}"] = batch
                claims.append(Claim(f"GetBatch, {place}, {name}", f"GET, {place}, {name}", WANTED))
        for measure in contestants.values():
            measure()
        rates = run_rounds(contestants, rounds)
    publish(
        "GetBatch over AIStore's API",
        __doc__,
        f"{rounds} rounds; {OBJECTS:,} objects of 10 KiB in memory, {BATCH} at a time.",
        rates,
        "objects/s",
        claims,
        table=TABLE if table else None,
        size_bytes=SIZE_BYTES,
    )


if __name__ == "__main__":
    main()
