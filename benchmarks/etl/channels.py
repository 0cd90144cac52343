"""The cost of passing an object through a transform that does nothing, by channel and by kind of server.

    python -m benchmarks.etl.channels  # writes the table beside this file

The transform returns its input, so only the way to it and back is measured. A stage of a node, as batches and jobs use
it, passes objects of 10 KiB through, as many at once as it has connections. The server is one separate process. Inputs
are in memory and, for fqn, in a file each. The node counts the bytes of each output and computes its checksum. Each
round runs every contestant once, and ratios are computed within a round.

Prediction, written before the first run: hpush by FastAPI takes about 0.7 ms. Two thirds of that is HTTP in Python by
uvicorn and Starlette, and the rest is aiohttp, whose parser is in C. The standard library's server takes as long,
because it parses headers with Python's e-mail parser; Flask takes 1.2 times as long. hpull adds a second request: 1.8
times as long. A WebSocket has no headers to parse: 2 times as many objects as hpush. fqn changes little at 10 KiB:
opening the file costs what is saved by not sending it. A Python function, in a worker at the other end of a socket
pair, needs neither HTTP nor WebSocket frames: 1.5 times as many objects as the fastest server. A command is a process
for each object: 300 objects per second.

The results are as predicted. In a first run, hpush by FastAPI reached 180 objects per second: small packets were held
back for 40 ms on the connections of a listener that was created without naming TCP, because asyncio then does not
configure them to send at once.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import cloudpickle

from ais_loader.testing import seeded_bytes
from ais_loader.wire.generated import ais_etl_pb2 as pb
from benchmarks.kit.echo import ServerProcess
from benchmarks.kit.harness import Claim, run_rounds
from benchmarks.kit.pages import publish
from storage_node.etl.run.node_transforms import open_stage
from storage_node.etl.transform_http import TransformHttp
from storage_node.etl.values import Content, Origin, Spool, TransformStage
from storage_node.etl.webserver import FastAPIServer, FlaskServer, HTTPMultiThreadedServer
from storage_node.etl.worker.stage_context import StageContext
from storage_node.settings.config import ServerConfig

SIZE_BYTES = 10 << 10
AT_ONCE = 8
FUNCTION = "function"
TABLE = Path(__file__).with_suffix(".md")

_Communication = pb.TransformServer
FRAMEWORKS = {"FastAPI": FastAPIServer, "Flask": FlaskServer, "http.server": HTTPMultiThreadedServer}
CHANNELS = {"FastAPI": ("hpush", "hpull", "ws"), "Flask": ("hpush", "hpull"), "http.server": ("hpush", "hpull")}
COMMUNICATION = {"hpush": _Communication.HPUSH, "hpull": _Communication.HPULL, "ws": _Communication.WEBSOCKET}
CLAIMS = [
    Claim("ws FastAPI", "hpush FastAPI", 1.2),
    *(Claim(FUNCTION, name, 1.0) for name in ("hpush FastAPI", "ws FastAPI", "hpush http.server")),
    Claim("ws FastAPI fqn", "hpush FastAPI fqn", 1.2),
]


def _serve(given: tuple[str, str], ready: Connection) -> None:
    framework, folder = given

    class Nothing(FRAMEWORKS[framework]):  # type: ignore[misc]
        file_roots = (folder,)

        def transform(self, data: bytes, path: str, args: Any) -> bytes:
            return data

    with Nothing().running() as url:
        ready.send(int(url.rpartition(":")[2]))
        threading.Event().wait()


def nothing(data: memoryview) -> memoryview:
    return data


def nothing_by_path(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


@contextmanager
def _files(folder: Path, count: int) -> Iterator[list[Content]]:
    contents = []
    for number in range(count):
        path = folder / str(number)
        content = Content.of(seeded_bytes(SIZE_BYTES, number))
        assert content.data is not None
        path.write_bytes(content.data)
        contents.append(Content(SIZE_BYTES, content.checksum, fd=os.open(path, os.O_RDONLY), path=str(path)))
    try:
        yield contents
    finally:
        for content in contents:
            content.close()


async def _passed(stage: TransformStage, contents: list[Content], count: int) -> float:
    """Objects per second."""
    left = iter(range(count))

    async def worker() -> None:
        for number in left:
            content = contents[number % len(contents)]
            made = await stage.run(Origin("b", str(number), "1"), content, "")
            assert made.checksum == content.checksum
            made.close()

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))  # connections are made, code is warm
    left = iter(range(count))
    began_s = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - began_s)


def contestants(held: ExitStack, count: int) -> dict[str, Callable[[], float]]:
    folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
    files = held.enter_context(_files(folder, 64))
    memory = [Content.of(seeded_bytes(SIZE_BYTES, number)) for number in range(64)]
    loop = asyncio.new_event_loop()
    held.callback(loop.close)
    found: dict[str, Callable[[], float]] = {}

    def run(stage: TransformStage, contents: list[Content]) -> float:
        return loop.run_until_complete(_passed(stage, contents, count))

    async def opened(transform: pb.Transform) -> TransformStage:
        settings = ServerConfig(etl_code=True, etl_servers=(transform.server.address,))
        side = TransformHttp()
        held.callback(lambda: loop.run_until_complete(side.stop()))
        stage = open_stage(transform, StageContext(settings, Spool(folder / "spool"), asyncio.to_thread, side))
        held.callback(lambda: loop.run_until_complete(stage.close()))
        return stage

    def add(name: str, transform: pb.Transform, contents: list[Content]) -> None:
        transform.name = name
        stage = loop.run_until_complete(opened(transform))
        found[name] = lambda: run(stage, contents)

    add(FUNCTION, pb.Transform(python=_code(nothing)), memory)
    add(f"{FUNCTION} fqn", pb.Transform(python=_code(nothing_by_path, path=True)), files)
    add("command", pb.Transform(command=pb.Command(argument=["cat"])), memory)
    for framework, channels in CHANNELS.items():
        server = held.enter_context(ServerProcess(_serve, (framework, str(folder))))
        address = f"http://127.0.0.1:{server.port}"
        for channel in channels:
            for fqn in (False, True):
                given = pb.TransformServer(
                    address=address, communication=COMMUNICATION[channel], fqn=fqn, connections=AT_ONCE
                )
                add(
                    f"{channel} {framework}{' fqn' if fqn else ''}",
                    pb.Transform(server=given),
                    files if fqn else memory,
                )
    return found


def _code(function: Callable[..., Any], path: bool = False) -> pb.PythonCode:
    return pb.PythonCode(
        pickle=cloudpickle.dumps(function), python=f"{sys.version_info[0]}.{sys.version_info[1]}", path=path
    )


@click.command(help=__doc__)
@click.option("--count", default=1000, show_default=True, help="Objects in each round.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--keep/--no-keep", default=True, show_default=True, help="Write the table.")
def main(count: int, rounds: int, keep: bool) -> None:
    with ExitStack() as held:
        rates = run_rounds(contestants(held, count), rounds)
    publish(
        "Channels to transforms",
        __doc__,
        f"{rounds} rounds of {count:,} objects, {AT_ONCE} at once; node and server share the cores. The process of a "
        "fast server and that of the node are equally busy; the ratios are what counts.",
        rates,
        "objects/s",
        CLAIMS,
        table=TABLE if keep else None,
    )


if __name__ == "__main__":
    main()
