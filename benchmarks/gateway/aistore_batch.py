"""GetBatch over AIStore's HTTP API against single GETs through the same gateway.

Both ask for 128 random objects of 10 KiB at a time, and compare the length of each. *plain* clients use `http.client`
on connections that stay open, and walk through the headers of the tar; the *SDK* is AIStore's own, in a process of its
own. Each client shares the cores with the gateway, which is one process, and with the node, if there is one. When
other programs take the cores too, a single GET waits for one with each object, which favours batches; clients with
several connections wait less. An AIStore that runs already is measured too with `--peer`; clients follow its redirects
on connections that stay open, and its bucket `bench` must not exist: it is deleted at the end.

Found: GetBatch brings 20 to 39 times as many objects as single GETs, and 5 to 18 times as many as the GetBatch of
AIStore 5.0 with one proxy and one target, whose single GETs are 1.6 to 2.6 times as fast as ours.

    python -m benchmarks.gateway.aistore_batch --sdk build/aissdk/bin/python  # writes the table beside this file
    python -m benchmarks.gateway.aistore_batch --peer AIStore=http://127.0.0.1:8080 --no-table
"""

from __future__ import annotations

import http.client
import itertools
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
from benchmarks.gateway.peer import Peer, peer_option
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
    """A client of one connection for each server: that of the address, and one that it redirects to."""

    def __init__(self, url: str, seed: int) -> None:
        self._place = urlsplit(url).netloc
        self._connections: dict[str, http.client.HTTPConnection] = {}
        self._draw = random.Random(seed)

    def call(self, method: str, path: str, body: bytes | str | None = None) -> tuple[int, bytes]:
        """Make a request, also where it is redirected to, and return the answer's status and body."""
        place = self._place
        while True:
            connection = self._connections.setdefault(place, http.client.HTTPConnection(place, timeout=60))
            try:
                connection.request(method, path, body)
                answer = connection.getresponse()
            except ConnectionError:  # the server closed it while other contestants had their turns
                connection.close()
                connection.request(method, path, body)
                answer = connection.getresponse()
            data = answer.read()
            if answer.status not in (301, 307):
                return answer.status, data
            moved = urlsplit(answer.headers["Location"])
            place, path = moved.netloc, f"{moved.path}?{moved.query}"

    def _names(self) -> list[str]:
        return [f"{number:06d}" for number in self._draw.sample(range(OBJECTS), BATCH)]

    def single(self) -> None:
        """Get 128 objects, one after another."""
        for name in self._names():
            status, data = self.call("GET", f"/v1/objects/{BUCKET}/{name}?provider=ais")
            if status != 200 or len(data) != SIZE_BYTES:
                raise RuntimeError(f"{name}: {status}, {len(data):,} bytes")

    def batch(self) -> None:
        """Get 128 objects with one request."""
        names = self._names()
        message = {"in": [{"objname": name} for name in names], "strm": True, "coer": True}
        status, data = self.call("GET", f"/v1/ml/moss/{BUCKET}?provider=ais", json.dumps(message))
        if status != 200:
            raise RuntimeError(f"{status}: {data[:200]!r}")
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


def fill_peer(held: ExitStack, url: str) -> None:
    """Fill a server by AIStore's API, and delete the bucket at the end. Raises RuntimeError."""
    client = PlainClient(url, 0)

    def call(method: str, path: str, body: bytes | str) -> None:
        status, said = client.call(method, path, body)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status}: {said[:200]!r}")

    call("POST", f"/v1/buckets/{BUCKET}?provider=ais", json.dumps({"action": "create-bck"}))
    held.callback(call, "DELETE", f"/v1/buckets/{BUCKET}?provider=ais", json.dumps({"action": "destroy-bck"}))
    for number in range(OBJECTS):
        data = seeded_bytes(SIZE_BYTES, seed=number)
        call("PUT", f"/v1/objects/{BUCKET}/{number:06d}?provider=ais", data)


@click.command()
@click.option("--rounds", default=7, show_default=True)
@click.option("--sdk", help="A Python that has the package aistore.")
@click.option("--folder", default="/dev/shm", show_default=True, help="For the stores.")
@peer_option
@click.option("--table/--no-table", default=True, show_default=True, help="Write aistore_batch.md.")
def main(rounds: int, sdk: str | None, folder: str, peers: tuple[Peer, ...], table: bool) -> None:
    contestants: dict[str, Callable[[], float]] = {}
    claims: list[Claim] = []
    others = [peer.name for peer in peers]
    with tempfile.TemporaryDirectory(dir=folder) as made, ExitStack() as held:
        node = held.enter_context(NodeProcess(Path(made) / "node"))
        urls: dict[str, str] = {}
        clients: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {}
        for place, store in {"embedded": str(Path(made) / "store"), "one node": node.url}.items():
            fill(store)
            command = (sys.executable, "-m", "ais_loader.cli", "gateway", store, "--no-keys", "--port", "0", "--json")
            urls[place] = json.loads(line_of(held.enter_context(process(*command))))["url"]
        for peer in peers:
            fill_peer(held, peer.url)
            urls[peer.name] = peer.url
        for place, url in urls.items():
            clients = {
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
                wanted = WANTED if place not in others else 0.0
                claims.append(Claim(f"GetBatch, {place}, {name}", f"GET, {place}, {name}", wanted))
        for name, other in itertools.product(list(clients), others):
            pairs = ((f"{how}, embedded, {name}", f"{how}, {other}, {name}") for how in ("GET", "GetBatch"))
            claims += [Claim(subject, baseline, 0.0) for subject, baseline in pairs]
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
