"""S3 gateway against moto's server, an HTTP server of files, and our own client: GETs, PUTs, and many small objects.

All servers run at once, and take turns in every round; the client is the same for each: obstore in threads of this
process, or this project's own client. It shares the cores with the servers, so that
rates are those of the pair. Processor time of a server is its own, and depends less on what else the machine does. The
gateway verifies signatures and checksums, the others do not. Bytes lie in the page cache, and every length is compared.

- *gateway*: `ais-loader gateway` over an embedded store, one process.
- *gateway of a node*: two processes over `ais-loader serve`, whose processor time counts too.
- *gateway of node:///*: one process over the folder of that node, which small GETs are read from.
- *gateway before*: that of another tree, with `--before`; in the table, of the commit before small GETs were answered
  on the event loop.
- *moto*: moto's S3 server, which keeps objects in memory.
- *files*: aiohttp's `FileResponse`, which sends files with sendfile, without signatures and checksums.
- *own client*: this project's client on the same node.
- *digests alone*: MD5 and SHA-256 of the same bytes by hashlib in two threads, without a server: what S3 needs.
- Others are named by `--peer`: servers of other projects that run already, and know the key test-key with the secret
  test-secret. Their bucket `bench` must not exist; it is deleted at the end.

The row *S3 direct* of NVIDIA's article about small objects is a random single GET by S3. The same objects come as
bundles (`POST /BUCKET?bundle`, one tar) and by the client's own batches.

    python -m benchmarks.gateway.s3  # writes the table beside this file
    python -m benchmarks.gateway.s3 --rounds 3 --no-write --before /tmp/tree  # with a gateway of another tree's code
    python -m benchmarks.gateway.s3 --peer AIStore=http://127.0.0.1:8080/s3,2201,2202  # with a server and its processes

Predictions, written before the first run: GET of 1 MiB reaches 0.7 of the files, since aiohttp takes a copy of each
byte, and 5 times moto; GET of 10 KiB reaches 3 times moto, and half of the files, since signatures and threads cost
as much as aiohttp; an upload in parts reaches 0.4 of our own PUT, since two digests of each byte take a core's whole
time; a bundle brings 10 times as many objects as single GETs.

Predictions before reads were made faster: answered and sent by one thread, from memory that is used again, with
headers and body in one call, a GET of 1 MiB takes 700 µs of the gateway instead of 1,100, and reaches 0.8 of the
files and 2.6 times moto; over a node, one request instead of two takes 1,300 µs instead of 1,850; a bundle takes half
for an object of 1 MiB. Before uploads were made faster: a MiB of an upload takes a gateway of a node half the
processor time, since its client copied each small piece once for every piece that came after; a PUT of 1 MiB comes to
1.5 times moto.

Predictions before small GETs were answered on the event loop: one of 10 KiB takes 0.55 of the processor time, without
two changes of threads, a handle of the socket and the lock that each system call gives away; its rate is 1.5 times
that before, since the client takes its share of the cores; 1 MiB and the gateway of a node stay as they are.

Found: a GET of 1 MiB takes 0.64 of the processor time before, and reaches 1.7 times the rate before, 0.82 of the
files, 3.4 times moto and 0.92 of AIStore's S3. Files are not sent by sendfile: in a program that only sends 1 MiB from
the page cache, sendfile takes 98 to 129 µs and its receiver 145 to 150 µs, and sending what a checksum has just read
takes 80 to 95 µs and 85 to 100 µs. A bundle of 1 MiB gained nothing: its receiver takes as long as the gateway.

A GET of 10 KiB reached 0.41 of AIStore's, which is written in Go and verifies no signature, and 0.52 of versitygw's,
which does. Answered on the event loop, it takes 0.52 of the processor time before, and reaches 1.7 times the rate
before, 1.1 times AIStore's and 2.1 times versitygw's. In front of node:/// it takes 0.25 of what a gateway of the same
node and the node take over gRPC. Of what is left, an answer of aiohttp without any of this takes 0.4, the signature
0.18, and looking the object up, reading and verifying it 0.12. Other programs kept the machine busy in some of these
rounds, as the ranges of the rates show; processor times differ less. The sections of 10 KiB are of this run, the
others of the one before.

An upload in parts reaches 0.14 of our own PUT, and is missed by far. MD5 and SHA-256 of a MiB take 2.5 ms, our own
PUT 0.9 ms in all, and AIStore, which verifies no signature, reaches 0.24. Four MD5s side by side in the lanes of a
register take 0.47 ms for a MiB of each where hashlib takes 1.7, but uploads with them reached 0.93 of the rate
without them, as bodies rarely wait for their digests at the same moment: they were left out. A PUT of 1 MiB has not
become faster, and is as fast as moto's.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, cast

import boto3
import click
import obstore
import psutil
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from obstore.store import S3Store

from ais_loader import Client, Entry, connect
from ais_loader.testing import NodeProcess
from benchmarks.gateway.peer import Peer, peer_option
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, label, load, machine, rates_table, run_rounds
from tests.remote.s3_server import CREDENTIALS, S3Server

TABLE = Path(__file__).with_suffix(".md")
BUCKET = "bench"
GATEWAY, OF_NODE, OF_FOLDER, BEFORE = "gateway", "gateway of a node", "gateway of node:///", "gateway before"
MOTO, FILES, OWN = "moto", "files", "own client"
DIGESTS = "digests alone"
THREADS = 4
BATCH = 128
KIB, MIB = 1 << 10, 1 << 20
OBJECTS = {MIB: 64, 10 * KIB: 1024}
ROUND_GETS = {MIB: 200, 10 * KIB: 1200}
ROUND_PUTS = 60
OF_PEER = {MIB: 1.0, 10 * KIB: 0.7}
"""Wanted of the gateway's GETs, against those of each peer."""
UPLOAD_BYTES, PART_BYTES, PARTS_AT_ONCE = 256 * MIB, 16 * MIB, 4
_FILE_SERVER = """
import asyncio, os, sys
from aiohttp import web
async def get(request):
    return web.FileResponse(os.path.join(sys.argv[1], request.match_info["name"]))
async def main():
    app = web.Application()
    app.router.add_get("/bench/{name}", get)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


class Server:
    """A running server: its endpoint, and the processes whose processor time counts."""

    def __init__(self, endpoint: str, *pids: int) -> None:
        self.endpoint = endpoint
        self.store = S3Store(
            BUCKET, config={"endpoint": endpoint, "region": "us-east-1"}, client_options={"allow_http": True}
        )
        self._processes = [psutil.Process(pid) for pid in pids]

    def make_bucket(self) -> None:
        boto3.client("s3", endpoint_url=self.endpoint).create_bucket(Bucket=BUCKET)

    def delete_bucket(self) -> None:
        obstore.delete(self.store, [one["path"] for page in obstore.list(self.store) for one in page])
        boto3.client("s3", endpoint_url=self.endpoint).delete_bucket(Bucket=BUCKET)

    def put(self, name: str, data: bytes) -> None:
        obstore.put(self.store, name, data, use_multipart=False)

    def cpu_s(self) -> float:
        """Processor time so far, with children that run."""
        spent = 0.0
        for process in self._processes:
            for one in (process, *process.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    times = one.cpu_times()
                    spent += times.user + times.system
        return spent


@contextlib.contextmanager
def _process(*command: str, tree: Path | None = None) -> Iterator[tuple[int, str]]:
    """Run a program that prints a line when it is ready; give its pid and the line."""
    env = os.environ | ({"PYTHONPATH": str(tree)} if tree is not None else {})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=tree)
    try:
        stdout = cast(IO[str], process.stdout)
        yield process.pid, stdout.readline()
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def gateway(
    store: str, keys: Path, *more_pids: int, tree: Path | None = None, options: tuple[str, ...] = ()
) -> Iterator[Server]:
    """Run a gateway, of this code or of another tree's."""
    python = sys.executable if tree is None else str(tree / ".venv/bin/python")  # an environment has the integrations
    command = (python, "-m", "ais_loader.cli", "gateway", store, "--keys", str(keys), "--port", "0", "--json")
    with _process(*command, *options, tree=tree) as (pid, line):
        yield Server(json.loads(line)["url"], pid, *more_pids)


class Setting:
    """All servers, filled with the same objects of one size."""

    def __init__(
        self, held: ExitStack, folder: Path, size_bytes: int, before: Path | None, peers: tuple[Peer, ...]
    ) -> None:
        keys = folder / "keys.json"
        rows = [{"access_key": CREDENTIALS["AWS_ACCESS_KEY_ID"], "secret_key": CREDENTIALS["AWS_SECRET_ACCESS_KEY"]}]
        keys.touch(mode=0o600)
        keys.write_text(json.dumps(rows))
        self.size_bytes = size_bytes
        self.names = [f"{number:06d}" for number in range(OBJECTS[size_bytes])]
        self.data = random.Random(size_bytes).randbytes(size_bytes)
        with connect(folder / "store") as client:
            self._fill(client)
        self.node = held.enter_context(NodeProcess(folder / "drive"))
        self.client = held.enter_context(connect(self.node.url))
        self._fill(self.client)
        files = folder / "files"
        files.mkdir()
        for name in self.names:
            (files / name).write_bytes(self.data)
        moto = held.enter_context(S3Server())
        port = held.enter_context(_process(sys.executable, "-c", _FILE_SERVER, str(files)))
        self.servers = {
            GATEWAY: held.enter_context(gateway(str(folder / "store"), keys)),
            OF_NODE: held.enter_context(gateway(self.node.url, keys, self.node.pid, options=("--processes", "2"))),
            OF_FOLDER: held.enter_context(gateway(f"node://{folder / 'drive'}", keys, self.node.pid)),
            MOTO: Server(moto.endpoint, moto._process.pid),
            FILES: Server(f"http://127.0.0.1:{port[1].strip()}", port[0]),
        }
        if before is not None:
            with connect(folder / "before") as client:
                self._fill(client)
            self.servers[BEFORE] = held.enter_context(gateway(str(folder / "before"), keys, tree=before))
        self.servers[MOTO].make_bucket()
        for name in self.names:
            self.servers[MOTO].put(name, self.data)
        self.peers = [peer.name for peer in peers]
        for peer in peers:
            server = self.servers[peer.name] = Server(peer.url, *peer.pids)
            server.make_bucket()
            held.callback(server.delete_bucket)
            for name in self.names:
                server.put(name, self.data)
        self.pool = held.enter_context(ThreadPoolExecutor(THREADS))
        self.two = held.enter_context(ThreadPoolExecutor(2))
        self._spent: dict[str, list[tuple[float, float]]] = {}

    def _fill(self, client: Client) -> None:
        client.create_bucket(BUCKET).put_many((name, self.data) for name in self.names)

    def measured(self, name: str, server: Server | None, work: Callable[[], int]) -> Callable[[], float]:
        """Pieces of work per second; keeps the processor time of client and server."""

        def run() -> float:
            client_s, server_s = time.process_time(), server.cpu_s() if server is not None else 0.0
            start = time.perf_counter()
            pieces = work()
            took_s = time.perf_counter() - start
            client_s = time.process_time() - client_s
            server_s = (server.cpu_s() if server is not None else 0.0) - server_s
            self._spent.setdefault(name, []).append((client_s / pieces, server_s / pieces))
            return pieces / took_s

        return run

    def spent_table(self, piece: str) -> str:
        """Processor times as Markdown, and forget them."""
        lines = [f"| processor time, µs for {piece} | server | client |", "|---|---:|---:|"]
        for name, rounds in self._spent.items():
            client, server = (1e6 * statistics.median(side) for side in zip(*rounds, strict=True))
            lines.append(f"| {name} | {server:,.0f} | {client:,.0f} |")
        self._spent.clear()
        return "\n".join(lines)

    def forget(self) -> None:
        self._spent.clear()

    # The work of a round. Every function returns the number of objects.

    def gets(self, server: Server) -> int:
        names = random.choices(self.names, k=ROUND_GETS[self.size_bytes])

        def get(name: str) -> int:
            return len(cast(Any, obstore.get(server.store, name).bytes()))

        assert all(size == self.size_bytes for size in self.pool.map(get, names))
        return len(names)

    def puts(self, server: Server) -> int:
        list(self.pool.map(lambda number: server.put(f"put-{number}", self.data), range(ROUND_PUTS)))
        return ROUND_PUTS

    def own_puts(self) -> int:
        bucket = self.client.bucket(BUCKET)
        list(self.pool.map(lambda number: bucket.put(f"own-{number}", self.data), range(ROUND_PUTS)))
        return ROUND_PUTS

    def own_gets(self) -> int:
        bucket = self.client.bucket(BUCKET)
        names = random.choices(self.names, k=ROUND_GETS[self.size_bytes])
        assert all(len(data) == self.size_bytes for data in self.pool.map(bucket.get, names))
        return len(names)

    def bundles(self, server: Server) -> int:
        batches = self._batches()
        return sum(self.pool.map(lambda names: bundled(server.endpoint, names, self.size_bytes), batches))

    def own_batches(self) -> int:
        requests = ([Entry(BUCKET, name) for name in names] for names in self._batches())
        return sum(1 for batch in self.client.get_batches(requests) for item in batch if item.data is not None)

    def _batches(self) -> list[list[str]]:
        count = max(2, 4 * ROUND_GETS[self.size_bytes] // BATCH if self.size_bytes < MIB else 2)
        return [random.choices(self.names, k=BATCH) for _ in range(count)]


def bundled(endpoint: str, names: list[str], size_bytes: int) -> int:
    """Fetch a bundle of objects and return their number. Raises AssertionError unless all are there."""
    body = json.dumps(names).encode()
    url = f"{endpoint}/{BUCKET}?bundle="
    signed = AWSRequest(method="POST", url=url, data=body)
    signed.headers["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest()
    keys = Credentials(CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    S3SigV4Auth(keys, "s3", "us-east-1").add_auth(signed)
    host = endpoint.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.request("POST", f"/{BUCKET}?bundle=", body=body, headers={**dict(signed.headers), "Host": host})
        answer = connection.getresponse()
        assert answer.status == 200
        with tarfile.open(fileobj=answer, mode="r|") as tar:
            sizes = [member.size for member in tar]
        answer.read()  # the end, so that the connection is not cut
    assert sizes == [size_bytes] * len(names)
    return len(names)


def upload(server: Server, data: bytes) -> int:
    """Upload one object in parts."""
    obstore.put(server.store, "large", data, use_multipart=True, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE)
    return len(data) // MIB


def digests(pool: ThreadPoolExecutor, pieces: Sequence[bytes]) -> int:
    """Compute what S3 needs of each of the pieces, and return their number."""
    kinds = (partial(hashlib.md5, usedforsecurity=False), hashlib.sha256)
    made = [pool.submit(lambda kind, piece: kind(piece).digest(), kind, piece) for piece in pieces for kind in kinds]
    assert all(one.result() for one in made)
    return len(pieces)


def own_upload(client: Client, data: bytes) -> int:
    client.bucket(BUCKET).put("large", data)
    return len(data) // MIB


def section(
    setting: Setting, title: str, piece: str, work: Mapping[str, tuple[Server | None, Callable[[], int]]],
    claims: list[Claim], rounds: int, size_bytes: int | None,
) -> tuple[str, int]:  # fmt: skip
    """Measure, and return a section of the page, and how many claims were missed."""
    contestants = {name: setting.measured(name, server, call) for name, (server, call) in work.items()}
    for call in contestants.values():  # connections, caches
        call()
    setting.forget()
    rates = run_rounds(contestants, rounds)
    outcomes = judge(rates, [claim for claim in claims if claim.subject in rates and claim.baseline in rates])
    unit = f"{piece}/s"
    parts = [f"## {title}", rates_table(rates, unit, size_bytes), setting.spent_table(piece), claims_table(outcomes)]
    text = "\n\n".join(parts)
    click.echo(text + "\n")
    return text, sum(not outcome.reached for outcome in outcomes)


def sections(setting: Setting, rounds: int, only: set[str]) -> Iterator[tuple[str, int]]:
    servers, size_bytes = setting.servers, setting.size_bytes
    size = label(size_bytes)
    ours = [name for name in (GATEWAY, OF_NODE, BEFORE) if name in servers]
    floor = [Claim(GATEWAY, name, 0.0) for name in (BEFORE, *setting.peers)]
    if "get" in only:
        work: dict[str, tuple[Server | None, Callable[[], int]]] = {
            name: (server, partial(setting.gets, server)) for name, server in servers.items()
        }
        claims = [Claim(GATEWAY, MOTO, 3.0), Claim(GATEWAY, FILES, 0.8 if size_bytes == MIB else 0.0)]
        claims += [Claim(GATEWAY, BEFORE, 0.0), *(Claim(GATEWAY, name, OF_PEER[size_bytes]) for name in setting.peers)]
        yield section(setting, f"GET of {size}", "object", work, claims, rounds, size_bytes)
    if "put" in only and size_bytes == MIB:
        work = {name: (servers[name], partial(setting.puts, servers[name])) for name in (*ours, MOTO, *setting.peers)}
        work[OWN] = (servers[OF_NODE], setting.own_puts)
        work[DIGESTS] = (None, partial(digests, setting.two, [setting.data] * ROUND_PUTS))
        claims = [Claim(GATEWAY, MOTO, 0.0), Claim(OF_NODE, OWN, 0.0), Claim(GATEWAY, DIGESTS, 0.0), *floor]
        yield section(setting, f"PUT of {size}", "object", work, claims, rounds, size_bytes)
    if "upload" in only and size_bytes == MIB:
        data = random.Random(1).randbytes(PART_BYTES) * (UPLOAD_BYTES // PART_BYTES)
        names = (*ours, MOTO, *setting.peers)
        work = {name: (servers[name], partial(upload, servers[name], data)) for name in names}
        work[OWN] = (servers[OF_NODE], partial(own_upload, setting.client, data))
        pieces = [data[at : at + MIB] for at in range(0, UPLOAD_BYTES, MIB)]
        work[DIGESTS] = (None, partial(digests, setting.two, pieces))
        claims = [Claim(OF_NODE, OWN, 0.5), Claim(GATEWAY, OWN, 0.5), Claim(GATEWAY, DIGESTS, 0.0), *floor]
        title = f"PUT of {UPLOAD_BYTES >> 20} MiB, in parts of {PART_BYTES >> 20} MiB, {PARTS_AT_ONCE} at once"
        yield section(setting, title, "MiB", work, claims, min(rounds, 3), MIB)
    if "many" in only:
        direct, bundle, batch, single = "S3 direct", "bundle", "own batches", "own single GETs"
        node = servers[OF_NODE]
        work = {
            direct: (node, partial(setting.gets, node)),
            bundle: (node, partial(setting.bundles, node)),
            single: (node, setting.own_gets),
            batch: (node, setting.own_batches),
        }
        claims = [Claim(bundle, direct, 0.0), Claim(batch, direct, 0.0), Claim(single, direct, 0.0)]
        title = f"S3 direct: random objects of {size} of a node, singly and {BATCH} at once"
        yield section(setting, title, "object", work, claims, rounds, size_bytes)


@click.command(help=__doc__)
@click.option("--sizes", default=f"{10 * KIB},{MIB}", show_default=True, help="Object sizes in bytes.")
@click.option("--rounds", default=7, show_default=True)
@click.option("--only", default="get,put,upload,many", show_default=True)
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Root of another tree with a .venv.",
)
@peer_option
@click.option("--write/--no-write", default=True, help=f"Write the tables to {TABLE.name}.")
def main(sizes: str, rounds: int, only: str, before: Path | None, peers: tuple[Peer, ...], write: bool) -> None:
    os.environ.update(CREDENTIALS)
    what, _, rest = (__doc__ or "").partition("\n\n")
    text = [
        f"# S3 gateway\n\n{what}\n\n{rest.strip()}\n\nMachine: {machine()}; {load()} at the start. {rounds} rounds; "
        f"{THREADS} requests at once."
    ]
    missed = 0
    for size_bytes in map(int, sizes.split(",")):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
            setting = Setting(held, Path(folder), size_bytes, before, peers)
            for part, failed in sections(setting, rounds, set(only.split(","))):
                text.append(part)
                missed += failed
    conclude("\n\n".join(text) + "\n", TABLE if write else None, reached=not missed)


if __name__ == "__main__":
    main()
