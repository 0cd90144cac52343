"""Memory of a gateway's process with 256 clients that read 1 MiB, put 1 MiB, and ask for 4 MiB as a batch, at once.

In one round, all clients do so as fast as they can. In another, each stops halfway until all others have come as far as
the gateway lets them. The peak of the resident memory is read from /proc.

    python -m benchmarks.gateway.memory  # writes the table beside this file
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

import ais_loader
from ais_loader.testing import NodeProcess, peak_rss_bytes, reset_peak_rss, rss_bytes
from benchmarks.kit.harness import machine
from benchmarks.kit.load import fill

TABLE = Path(__file__).with_suffix(".md")
MIB = 1 << 20
CLIENTS = 256
LIMIT_BYTES = 200 * MIB
TIMEOUT_S = 120.0
PAUSE_S = 5.0
_HOST = "Host: localhost"
"""Without keys, a gateway on loopback refuses other names."""


class Clients:
    """Clients of a gateway that accepts requests without signatures, over raw sockets with small buffers."""

    def __init__(self, port: int, bucket: str, name: str) -> None:
        self._port, self._bucket, self._name = port, bucket, name
        self._halfway = threading.Event()
        self._stopped_halfway = False

    def _socket(self) -> socket.socket:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        sock.settimeout(TIMEOUT_S)
        sock.connect(("127.0.0.1", self._port))
        return sock

    def get(self, number: int) -> int:
        """Read the object; returns the number of bytes of its body, or 0 if the gateway was too busy."""
        with self._socket() as sock:
            sock.sendall(f"GET /{self._bucket}/{self._name} HTTP/1.1\r\n{_HOST}\r\nConnection: close\r\n\r\n".encode())
            answer = sock.recv(64 << 10)
            self._wait()
            while piece := sock.recv(1 << 20):
                answer += piece
        head, _, body = answer.partition(b"\r\n\r\n")
        return len(body) if b" 200 " in head.partition(b"\r\n")[0] else 0

    def batch(self, number: int) -> int:
        """Read four objects with one request; returns the number of bytes of one, or 0 if the gateway was too busy."""
        body = json.dumps([self._name] * 4).encode()
        head = f"POST /{self._bucket}?bundle= HTTP/1.1\r\n{_HOST}\r\nConnection: close\r\nContent-Length: {len(body)}"
        with self._socket() as sock:
            sock.sendall(f"{head}\r\n\r\n".encode() + body)
            answer = sock.recv(64 << 10)
            status = answer.partition(b"\r\n")[0]
            self._wait()
            size_bytes = len(answer)
            while piece := sock.recv(1 << 20):
                size_bytes += len(piece)
                answer = answer[-8:] + piece
        is_whole = b" 200 " in status and size_bytes > 4 * MIB and answer.endswith(b"0\r\n\r\n")
        return MIB if is_whole else 0

    def put(self, number: int) -> int:
        """Put an object; returns the number of bytes, or 0 if the gateway was too busy."""
        lines = (_HOST, f"Content-Length: {MIB}", "Connection: close")
        head = "\r\n".join([f"PUT /{self._bucket}/put-{number} HTTP/1.1", *lines, "", ""])
        with self._socket() as sock:
            sock.sendall(head.encode() + bytes(MIB // 2))
            self._wait()
            sock.sendall(bytes(MIB // 2))
            answer = b""
            while piece := sock.recv(1 << 20):
                answer += piece
        return MIB if b" 200 " in answer.partition(b"\r\n")[0] else 0

    def _wait(self) -> None:
        if self._stopped_halfway:
            self._halfway.wait()

    def run(self, call: Callable[[int], int], *, stops: bool) -> int:
        """Make a call by all clients at once, and return how many succeeded."""
        self._halfway.clear()
        self._stopped_halfway = stops
        with ThreadPoolExecutor(CLIENTS) as pool:
            moved = [pool.submit(call, number) for number in range(CLIENTS)]
            if stops:
                time.sleep(PAUSE_S)
                self._halfway.set()
            return sum(one.result() == MIB for one in moved)


@click.command(help=__doc__)
@click.option("--write/--no-write", default=True, help=f"Write the table to {TABLE.name}.")
def main(write: bool) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        load = fill(store, 1, MIB)
        with NodeProcess([store]) as node:
            command = [
                sys.executable,
                "-m",
                "ais_loader.cli",
                "gateway",
                node.url,
                "--no-keys",
                "--port",
                "0",
                "--json",
            ]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                try:
                    assert process.stdout is not None
                    port = int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
                    with ais_loader.connect(node.url) as client:
                        assert len(client.bucket(load.bucket).get(load.names[0])) == MIB
                    clients = Clients(port, load.bucket, load.names[0])
                    clients.get(0)
                    rows.append(("after one request", 1, rss_bytes(process.pid)))
                    for what, call in (
                        ("read 1 MiB", clients.get),
                        ("put 1 MiB", clients.put),
                        ("ask for a batch of 4 MiB", clients.batch),
                    ):
                        for how, stops in (("at full speed", False), ("and stop halfway", True)):
                            reset_peak_rss(process.pid)
                            succeeded = clients.run(call, stops=stops)
                            rows.append((f"{CLIENTS} clients {what} {how}", succeeded, peak_rss_bytes(process.pid)))
                finally:
                    process.terminate()
    lines = ["| what | succeeded | peak, MiB | limit |", "|---|---:|---:|---:|"]
    lines += [f"| {what} | {count} | {value >> 20} | {LIMIT_BYTES >> 20} |" for what, count, value in rows]
    first_line = (__doc__ or "").strip().splitlines()[0]
    text = f"# Memory of a gateway\n\n{first_line}\n\nMachine: {machine()}.\n\n" + "\n".join(lines) + "\n"
    click.echo(text)
    if write:
        TABLE.write_text(text)
    raise SystemExit(0 if all(count and value < LIMIT_BYTES for _, count, value in rows) else 1)


if __name__ == "__main__":
    main()
