"""Clients of S3 compared: obstore, which the nodes use, boto3 with threads, and AWS's Common Runtime (awscrt).

    python -m venv /tmp/clients && /tmp/clients/bin/pip install obstore boto3 awscrt
    /tmp/clients/bin/python benchmarks/remote/clients.py  # writes the table beside this file

The server is a process that answers every GET from memory, and checks no signature. It shares the cores with the
client, so that rates are those of the pair; the client's processor time is its own. A client reads every object into
memory, with a number of requests in flight. The Common Runtime is called as boto3 calls it, without boto3's files: its
S3 client, which requests ranges of 8 MiB. The median of several rounds is shown; the clients take turns.

Prediction, written before the first run: obstore needs 0.5 of boto3's processor time for 1 MB, 0.8 for 10 MB, and as
much as the Common Runtime.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MB = 10**6
BUCKET = "bucket"
SIZES_BYTES = (MB, 10 * MB)
IN_FLIGHT = (16, 64)
ROUND_BYTES = 1000 * MB
ROUNDS = 3
TABLE = Path(__file__).with_suffix(".md")
Read = Callable[[str, int, int], None]
"""Reads an object of this name so many times, with so many requests in flight."""


def serve() -> None:
    """Answer GETs of /BUCKET/SIZE, with ranges. Ends with its standard input."""
    content = memoryview(os.urandom(max(SIZES_BYTES)))

    def answer(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Nagle's algorithm would wait for 40 ms
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                size_bytes = int(line.split()[1].decode().partition("?")[0].rpartition("/")[2])
                start, end, status = 0, size_bytes, "200 OK"
                while (header := lines.readline()) not in (b"\r\n", b""):
                    if header.lower().startswith(b"range:"):
                        first, _, last = header.decode().partition("=")[2].strip().partition("-")
                        start, end, status = int(first), min(size_bytes, int(last) + 1), "206 Partial Content"
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Length: {end - start}\r\n"
                    f'Content-Range: bytes {start}-{end - 1}/{size_bytes}\r\nETag: "one"\r\n'
                    "Last-Modified: Tue, 01 Jan 2030 00:00:00 GMT\r\n\r\n"
                )
                connection.sendall(head.encode())
                connection.sendall(content[start:end])

    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        print(listening.getsockname()[1], flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
        while True:
            threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()


def obstore_reads(url: str) -> Read:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        config={"endpoint": url, "region": "us-east-1", "access_key_id": "k", "secret_access_key": "s"},
        client_options={"allow_http": True},
    )

    async def read(name: str, times: int, in_flight: int) -> None:
        turns = asyncio.Semaphore(in_flight)

        async def one() -> None:
            async with turns:
                result = await obstore.get_async(store, name)
                came = 0
                async for chunk in result.stream(min_chunk_size=1 << 20):
                    came += len(chunk)
                assert came == int(name)

        await asyncio.gather(*(one() for _ in range(times)))

    return lambda name, times, in_flight: asyncio.run(read(name, times, in_flight))


def boto3_reads(url: str) -> Read:
    import boto3
    from botocore.config import Config

    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=url, config=Config(max_pool_connections=max(IN_FLIGHT)), **keys)

    def read(name: str, times: int, in_flight: int) -> None:
        def one(_: int) -> None:
            assert len(client.get_object(Bucket=BUCKET, Key=name)["Body"].read()) == int(name)

        with ThreadPoolExecutor(in_flight) as pool:
            list(pool.map(one, range(times)))

    return read


def awscrt_reads(url: str) -> Read:
    from awscrt.auth import AwsCredentialsProvider
    from awscrt.http import HttpHeaders, HttpRequest
    from awscrt.io import ClientBootstrap, DefaultHostResolver, EventLoopGroup
    from awscrt.s3 import S3Client, S3RequestTlsMode, S3RequestType

    group = EventLoopGroup()
    bootstrap = ClientBootstrap(group, DefaultHostResolver(group))
    client = S3Client(
        bootstrap=bootstrap,
        region="us-east-1",
        credential_provider=AwsCredentialsProvider.new_static("k", "s"),
        tls_mode=S3RequestTlsMode.DISABLED,
    )
    host = url.removeprefix("http://")

    def read(name: str, times: int, in_flight: int) -> None:
        turns = threading.Semaphore(in_flight)

        def begun() -> Iterator[tuple[list[int], object]]:
            for _ in range(times):
                turns.acquire()
                came: list[int] = []
                request = client.make_request(
                    type=S3RequestType.GET_OBJECT,
                    request=HttpRequest("GET", f"/{BUCKET}/{name}", HttpHeaders([("host", host)])),
                    on_body=lambda chunk, came=came, **_: came.append(len(chunk)),
                )
                request.finished_future.add_done_callback(lambda _: turns.release())
                yield came, request.finished_future

        for came, finished in list(begun()):
            finished.result()  # type: ignore[attr-defined]
            assert sum(came) == int(name)

    return read


def used_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    from importlib.metadata import version

    names = ("obstore", "boto3", "awscrt")
    server = subprocess.Popen([sys.executable, __file__, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdout is not None and server.stdin is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    clients = {"obstore": obstore_reads(url), "boto3": boto3_reads(url), "awscrt": awscrt_reads(url)}
    found: dict[tuple[int, int, str], list[tuple[float, float]]] = {}
    try:
        for round_ in range(ROUNDS + 1):  # the first one opens connections, and does not count
            for size_bytes in SIZES_BYTES:
                for in_flight in IN_FLIGHT:
                    for name, read in clients.items():
                        began_s, began_used_s = time.monotonic(), used_s()
                        read(str(size_bytes), ROUND_BYTES // size_bytes, in_flight)
                        taken = time.monotonic() - began_s, used_s() - began_used_s
                        if round_:
                            found.setdefault((size_bytes, in_flight, name), []).append(taken)
    finally:
        server.stdin.close()
        server.wait(10)
    lines = [
        "# Clients of S3\n",
        (__doc__ or "").rstrip() + "\n",
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
        + f"; load average {os.getloadavg()[0]:.1f}. {ROUNDS} rounds of {ROUND_BYTES / 1e9:g} GB each.\n",
        "| object | in flight | client | MB/s | client's processor seconds per GB |",
        "|---|---:|---|---:|---:|",
    ]
    for (size_bytes, in_flight, name), taken in found.items():
        rate = statistics.median(ROUND_BYTES / MB / wall_s for wall_s, _ in taken)
        cost_s = statistics.median(cpu_s for _, cpu_s in taken) * 1e9 / ROUND_BYTES
        lines.append(f"| {size_bytes // MB} MB | {in_flight} | {name} | {rate:,.0f} | {cost_s:.2f} |")
    text = "\n".join(lines) + "\n"
    TABLE.write_text(text)
    print(text)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
