"""What tests of transforms' servers share: servers of every framework and form, and stages that ask them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_loader.errors import VersionConflict
from ais_loader.wire.generated import ais_etl_pb2 as pb
from storage_node.etl.servers.stage import ServerStage
from storage_node.etl.transform_http import PutClaims, TransformHttp
from storage_node.etl.values import Content, Origin, PutResult, Spool
from storage_node.etl.webserver import FastAPIServer, FlaskServer, HTTPMultiThreadedServer, TransformServer
from storage_node.etl.worker.stage_context import StageContext
from storage_node.settings.config import ServerConfig
from storage_node.store.checksum import crc32c
from tests.etl.worker_kit import on_default_threads

HPUSH, HPULL = pb.TransformServer.HPUSH, pb.TransformServer.HPULL
WS = pb.TransformServer.WEBSOCKET
FRAMEWORKS: dict[str, type[TransformServer]] = {
    "fastapi": FastAPIServer,
    "flask": FlaskServer,
    "http": HTTPMultiThreadedServer,
}
CHANNELS = [
    ("fastapi", HPUSH), ("fastapi", HPULL), ("fastapi", WS), ("flask", HPUSH), ("flask", HPULL), ("http", HPUSH),
    ("http", HPULL),
]  # fmt: skip
"""Each framework with each communication that it has."""
ORIGIN = Origin("b", "größer/a #?%.txt", "7")


WAITING, GO_ON = threading.Event(), threading.Event()
"""With the argument "waits", a server in this process sets the one, and waits for the other."""


def made(data: bytes, path: str, args: Any) -> bytes:
    """What the transform of these tests makes: it does what the arguments say."""
    if "fail" in args:
        raise ValueError(args["fail"])
    if "sleep_s" in args:
        time.sleep(args["sleep_s"])
    if "waits" in args:
        WAITING.set()
        assert GO_ON.wait(180)
    if args.get("say") == "path":
        return path.encode()
    if args.get("say") == "args":
        return repr(args).encode()
    return data.upper() * args.get("repeat", 1)


class Whole:
    def transform(self, data: bytes, path: str, args: Any) -> bytes:
        return made(data, path, args)


class OfFile:
    def transform_file(self, file: str, path: str, args: Any) -> bytes:
        return made(Path(file).read_bytes(), path, args)


class Streaming:
    def transform_stream(self, chunks: Iterator[bytes], path: str, args: Any) -> Iterable[bytes]:
        if args.keys() & {"fail", "say", "sleep_s", "waits"}:
            yield made(b"", path, args)
            return  # without a look at its input
        for chunk in chunks:
            for _ in range(args.get("repeat", 1)):
                yield chunk.upper()


FORMS = {"transform": Whole, "transform_file": OfFile, "transform_stream": Streaming}


def new_server(framework: str, form: type = Whole, **attributes: Any) -> TransformServer:
    kind = type(f"{framework}{form.__name__}", (form, FRAMEWORKS[framework]), attributes)
    server: TransformServer = kind()
    return server


@dataclass
class Owner:
    """A node that takes results, as the write path does: whole, or not at all."""

    objects: dict[str, bytes] = field(default_factory=dict)
    claims: list[PutClaims] = field(default_factory=list)

    async def put(self, claims: PutClaims, chunks: AsyncIterator[bytes]) -> PutResult:
        data = b"".join([chunk async for chunk in chunks])
        if f"{claims.bucket}/{claims.name}" in self.objects and claims.extra.get("if_absent"):
            raise VersionConflict(f"{claims.bucket}/{claims.name} is there already")
        self.objects[f"{claims.bucket}/{claims.name}"] = data
        self.claims.append(claims)
        return PutResult(f"v{len(self.claims)}", len(data), crc32c(data))


@contextlib.asynccontextmanager
async def open_stage(
    address: str,
    communication: pb.TransformServer.Communication = HPUSH,
    *,
    allowed: Iterable[str] | None = None,
    fqn: bool = False,
    connections: int = 0,
    gone_after_s: float = 180.0,
    **limits: Any,
) -> AsyncIterator[tuple[ServerStage, TransformHttp]]:
    side = TransformHttp()
    folder = tempfile.TemporaryDirectory()
    config = ServerConfig(etl_servers=tuple(allowed or (address,)), etl_timeout_s=180)
    transform = pb.Transform(
        name="t",
        server=pb.TransformServer(address=address, communication=communication, fqn=fqn, connections=connections),
        limits=pb.TransformLimits(**limits),
    )
    context = StageContext(config, Spool(Path(folder.name)), on_default_threads, side)
    try:
        stage = ServerStage(transform, context, gone_after_s=gone_after_s)
    except BaseException:
        folder.cleanup()
        raise
    try:
        yield stage, side
    finally:
        await stage.close()
        await side.stop()
        folder.cleanup()


def of_file(path: Path, data: bytes) -> Content:
    """An input that is a file of its own."""
    path.write_bytes(data)
    return Content(len(data), crc32c(data), fd=os.open(path, os.O_RDONLY), path=str(path))


def bytes_of(content: Content) -> bytes:
    """Of an output, which is closed; it is what its size and checksum say."""
    data = b"".join(content.chunks())
    assert (content.size_bytes, content.checksum) == (len(data), crc32c(data))
    content.close()
    return data


def run(coroutine: Any, limit_s: float = 180) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await coroutine

    asyncio.run(bounded())
