"""Remote storage for tests: moto's S3, a web server whose answers a test decides, and backends for them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ais_loader.wire.remote import Remote
from storage_node.remote.drivers.gate import Gate
from storage_node.remote.location.backend import Backend
from storage_node.remote.location.host_limiter import HostLimiters
from storage_node.remote.location.usage import Usage, UsageCounts
from storage_node.settings.declarations import RemoteSettings

BUCKET = "a-bucket"
UUID = "0123"
MIB = 1 << 20
ANY_HOST = ("--set", "remote_hosts=any")
"""Arguments of a node that reaches servers of tests, and sends them the credentials of its environment."""


@contextlib.contextmanager
def moto_server() -> Iterator[str]:
    """Run moto's S3 with one bucket. Yields its URL."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        moto_s3().create_bucket(BUCKET, "us-east-1")
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def moto_s3() -> Any:
    """The state behind moto's S3, which is in this process."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


def moto_put(key: str, data: bytes) -> None:
    moto_s3().put_object(BUCKET, key, data)


def moto_keys() -> list[str]:
    return sorted(moto_s3().buckets[BUCKET].keys.keys())


def settings(**changed: Any) -> RemoteSettings:
    """Settings with ranges of the smallest size of a part. Requests are repeated for long."""
    values = {
        "retry_s": 180.0,
        "timeout_s": 180.0,
        "large_object_bytes": 5 * MIB,
        "range_bytes": 5 * MIB,
        "hosts": ("any",),
    }
    return RemoteSettings(**{**values, "hedge_budget": 0.0, **changed})


class OneBackend(Backend):
    """A backend with a limiter and counters of its own."""

    def __init__(self, remote: Remote, file_roots: list[Path] | None = None, **changed: Any) -> None:
        self.usage = Usage()
        chosen = settings(**changed)
        self.limiters = HostLimiters(chosen.max_requests)
        self.gate = Gate()
        usage = self.usage.of_bucket(UUID)
        super().__init__(remote, chosen, self.limiters, usage, file_roots=file_roots, gate=self.gate)

    async def close(self) -> None:
        await super().close()
        self.gate.close()

    @property
    def counts(self) -> UsageCounts:
        (counts,) = self.usage.snapshot().values()
        return counts


async def chunked(data: bytes, chunk_bytes: int = 300_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), chunk_bytes):
        yield data[start : start + chunk_bytes]


async def read(backend: Backend, name: str) -> bytes:
    found = await backend.get(name)
    assert found is not None
    async with found:
        return await found.read()


async def names(backend: Backend, prefix: str = "", start_after: str = "") -> list[str]:
    return [one.name async for page in backend.list(prefix, start_after) for one in page]


@dataclass
class Asked:
    """A request as the server got it. Headers have lower-case names."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    number: int
    """Number of requests before it."""

    @property
    def range(self) -> tuple[int, int] | None:
        """The requested bytes, from the first to before the last."""
        given = self.headers.get("range", "")
        if not given:
            return None
        start, _, last = given.removeprefix("bytes=").partition("-")
        return int(start), int(last) + 1


@dataclass
class Reply:
    """An answer. `cut_bytes`: the connection is closed after this part of the body. `pause_s`: after each byte."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut_bytes: int | None = None
    pause_s: float = 0.0


def content(asked: Asked, data: bytes, etag: str = '"v1"', cut_bytes: int | None = None) -> Reply:
    """The answer of a storage that has `data`, to a GET with or without a range."""
    headers = {"ETag": etag, "Last-Modified": "Tue, 01 Jan 2030 00:00:00 GMT"}
    if asked.headers.get("if-match", etag) != etag:
        return Reply(412)
    if asked.range is None:
        return Reply(200, data, headers, cut_bytes)
    start, end = asked.range
    end = min(end, len(data))
    if start >= len(data):
        return Reply(416)
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
    return Reply(206, data[start:end], headers, cut_bytes)


class DecidedServer:
    """A web server on loopback whose answers a function decides. None: the connection is closed without one."""

    def __init__(self, decide: Callable[[Asked], Reply | None]) -> None:
        self.asked: list[Asked] = []
        lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with lock:
                    asked = Asked(
                        self.command,
                        self.path,
                        {name.lower(): value for name, value in self.headers.items()},
                        body,
                        len(server.asked),
                    )
                    server.asked.append(asked)
                reply = decide(asked)
                if reply is None:
                    self.close_connection = True
                    return
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                if not {"Content-Length", "Transfer-Encoding"} & reply.headers.keys():
                    self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.send_body(reply)
                if reply.cut_bytes is not None:
                    self.close_connection = True

            def send_body(self, reply: Reply) -> None:
                step = 1 if reply.pause_s else max(1, len(reply.body))
                with contextlib.suppress(ConnectionError):
                    for at in range(0, len(reply.body[: reply.cut_bytes]), step):
                        self.wfile.write(reply.body[: reply.cut_bytes][at : at + step])
                        time.sleep(reply.pause_s)

            do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = answer

            def log_message(self, *_: Any) -> None:
                pass

        class Http(ThreadingHTTPServer):
            request_queue_size = 128  # with the default, 5, many connections at once wait a second

        self._http = Http(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> DecidedServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def remote(self, **changed: Any) -> Remote:
        return Remote(f"s3://{BUCKET}", endpoint=self.url, **changed)
