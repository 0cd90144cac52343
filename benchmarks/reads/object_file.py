"""`tarfile.extractall` from an object, as a file and as a plain stream, compared with the same from a local file.

    python -m benchmarks.reads.object_file  # writes the table beside this file

The grid is that of NVIDIA's post on ObjectFile ("Enhancing ObjectFile Performance with Zero-Copy Techniques", 2024),
scaled to one machine. "stream echo" is a grpcio server that only streams the file, in messages of 1 MiB or of 4 MiB,
the size that our plain stream uses, to the same tarfile. Prediction, written before the first run: over gRPC,
extraction reaches 0.6 to 0.8 of the local file's rate, since extraction itself writes every byte to files; the reader
is level with the echo; and each interruption, every 64 MiB, costs some milliseconds (the proxy that cuts runs in the
client's process and costs more than the cuts).

Where the time goes at 100 MB: for each GB, the thread that extracts spends about 0.65 s of CPU time (0.42 of it on
writing the files, 0.12 in grpcio, which copies a message three times before Python has it), gRPC's own threads spend
0.17 s, and the node 0.48 s, all on two cores. A local file takes 0.54 s on one core. Seven runs on three machines gave
0.55 to 0.69. The following gained nothing: receiving frames in a thread of its own, which contends for the GIL with
tarfile's 16 KiB reads (+12% of CPU time); a Unix socket instead of TCP (11 to 16% slower); messages of 1 to 3 MiB; and
other read chunks of gRPC.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import click
import grpc

import ais_loader
from ais_loader.testing import NodeProcess, seeded_bytes
from benchmarks.kit.echo import ServerProcess, channel_to, serve
from benchmarks.kit.harness import Claim, claims_table, conclude, judge, machine, rates_table, run_rounds
from tests.faulty_link import FaultyLink

MB = 1_000_000
CHUNK_BYTES = 1 << 20
BROKEN_EVERY_BYTES = 64 << 20
TABLE = Path(__file__).with_suffix(".md")


def make_tar(path: Path, member_bytes: int, total_bytes: int) -> None:
    content = seeded_bytes(member_bytes, seed=member_bytes)
    with tarfile.open(path, "w") as archive:
        for number in range(total_bytes // member_bytes):
            member = tarfile.TarInfo(f"{number:06d}.bin")
            member.size = member_bytes
            archive.addfile(member, io.BytesIO(content))


# -- the baseline over gRPC


def _serve_file(path: str, ready: Connection) -> None:
    def stream(request: bytes, context: object) -> Iterator[bytes]:
        with open(path, "rb") as file:
            while chunk := file.read(int(request)):
                yield chunk

    serve({"File": grpc.unary_stream_rpc_method_handler(stream)}, ready)


class _EchoFile(io.RawIOBase):
    """Adapter of a stream of messages for tarfile, without retries and checks."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        parts = []
        while size:
            if not len(self._rest):
                self._rest = memoryview(next(self._messages, b""))
                if not len(self._rest):
                    break
            part, self._rest = self._rest[:size], self._rest[size:]
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


# -- contestants


def extract(opened: Callable[[], Any], folder: Path, total_bytes: int, *, stream: bool) -> Callable[[], float]:
    """MB/s of `extractall`."""

    def run() -> float:
        target = folder / "out"
        start = time.perf_counter()
        file: IO[bytes]
        with opened() as file:
            # The stream mode of tarfile copies through its own buffer; it gets blocks of the same size everywhere.
            mode: Any = "r|" if stream else "r:"
            with tarfile.open(fileobj=file, mode=mode, bufsize=CHUNK_BYTES) as archive:
                archive.extractall(target, filter="data")
        rate = total_bytes / MB / (time.perf_counter() - start)
        shutil.rmtree(target)
        return rate

    return run


def measure(member_bytes: int, total_bytes: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    folder.mkdir()
    shard = folder / "shard.tar"
    make_tar(shard, member_bytes, total_bytes)
    with ExitStack() as held:
        echo = held.enter_context(ServerProcess(_serve_file, str(shard)))
        channel = held.enter_context(channel_to(echo.port))
        node = held.enter_context(NodeProcess([folder / "drive"]))
        link = held.enter_context(FaultyLink(node.url))
        near = held.enter_context(ais_loader.connect(node.url)).create_bucket("tars")
        near.put("shard.tar", shard)
        linked = held.enter_context(ais_loader.connect(link.url)).bucket("tars")
        embedded = held.enter_context(ais_loader.connect(folder / "embedded")).create_bucket("tars")
        embedded.put("shard.tar", shard)
        os.sync()

        def through_the_link(cut_every: int | None) -> Any:
            link.cut_every(cut_every)
            return linked.open("shard.tar")

        def echoed(message_bytes: int) -> Any:
            return _EchoFile(channel.unary_stream("/echo/File")(b"%d" % message_bytes))

        def contestant(opened: Callable[[], Any], *, stream: bool = False) -> Callable[[], float]:
            return extract(opened, folder, total_bytes, stream=stream)

        rates = run_rounds(
            {
                "local file": contestant(partial(shard.open, "rb")),
                "ObjectFile, gRPC": contestant(lambda: near.open("shard.tar")),
                "ObjectFile, through a proxy": contestant(lambda: through_the_link(None)),
                "ObjectFile, cut every 64 MiB": contestant(lambda: through_the_link(BROKEN_EVERY_BYTES)),
                "ObjectFile, embedded": contestant(lambda: embedded.open("shard.tar")),
                "ObjectReader, gRPC": contestant(lambda: near.reader("shard.tar"), stream=True),
                "stream echo": contestant(partial(echoed, CHUNK_BYTES), stream=True),
                "stream echo, 4 MiB": contestant(partial(echoed, 4 * CHUNK_BYTES), stream=True),
            },
            rounds,
        )
    return rates


@click.command(help=__doc__)
@click.option("--member-mb", "members", multiple=True, type=int, default=(1, 10, 100), show_default=True)
@click.option("--total-mb", default=500, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=None)
@click.option("--write/--no-write", default=True, show_default=True, help="Keep the table beside this file.")
def main(members: tuple[int, ...], total_mb: int, rounds: int, folder: Path | None, write: bool) -> None:
    sections, reached = [], True
    for member_mb in members:
        with tempfile.TemporaryDirectory(dir=folder) as here:
            rates = measure(member_mb * MB, total_mb * MB, rounds, Path(here) / "run")
        outcomes = judge(
            rates,
            [
                Claim("ObjectFile, gRPC", "local file", 0.6),
                Claim("ObjectReader, gRPC", "stream echo", 1.0),
                Claim("ObjectReader, gRPC", "stream echo, 4 MiB", 1.0),
                Claim("ObjectFile, cut every 64 MiB", "ObjectFile, through a proxy", 0.0),
                Claim("ObjectFile, embedded", "local file", 0.0),
            ],
        )
        reached = reached and all(outcome.reached for outcome in outcomes)
        sections.append(
            f"## {total_mb} MB in members of {member_mb} MB\n\n{rates_table(rates, 'MB/s')}\n\n{claims_table(outcomes)}"
        )
        click.echo(sections[-1] + "\n")
    text = (
        f"# ObjectFile and ObjectReader\n\n{(__doc__ or '').strip()}\n\nMachine: {machine()}. {rounds} rounds; client, "
        "node, and the files that are written share it.\n\n" + "\n\n".join(sections) + "\n"
    )
    conclude(text, TABLE if write else None, reached=reached)


if __name__ == "__main__":
    main()
