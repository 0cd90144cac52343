"""Servers as their authors start them: a process, or several that share a port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from storage_node.etl.values import Content
from tests.etl.servers.server_kit import FRAMEWORKS, HPUSH, ORIGIN, bytes_of, open_stage, run
from tests.free_ports import free_port

SCRIPT = """
import os, sys
from tests.etl.servers.server_kit import FRAMEWORKS

framework, port, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

class Pid(FRAMEWORKS[framework]):
    def setup(self):
        self.ready = os.getpid()

    def transform_stream(self, chunks, path, args):
        if args.get("die"):
            os._exit(1)
        if args.get("sum"):
            total = sum(map(len, chunks))
            # Of this program alone: what getrusage tells is also of the process that started it.
            [peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
            yield b"%d %d" % (total, int(peak) >> 10)
        elif args.get("make"):
            for _ in range(args["make"]):
                yield bytes(1 << 20)
        else:
            yield b"%d" % self.ready

Pid().start("127.0.0.1", port, workers=workers)
"""


@contextlib.contextmanager
def started(framework: str, workers: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, framework, str(port), str(workers)])
    try:
        yield f"http://127.0.0.1:{port}", process
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(180) == 0
        assert not psutil.wait_procs(children, 180)[1]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.sampled(2)
def test_several_processes_share_a_port_and_one_that_dies_is_made_anew(framework: str) -> None:
    async def pids(address: str, made: int = 40) -> set[int]:
        """Over connections of their own: those that there are stay with their process."""
        async with open_stage(address, HPUSH, gone_after_s=180, retries=50, connections=20) as (stage, _):
            contents = await asyncio.gather(*(stage.run(ORIGIN, Content.of(b""), "") for _ in range(made)))
            return {int(bytes_of(content)) for content in contents}

    async def both(address: str) -> set[int]:
        found: set[int] = set()
        while len(found) < 2:
            found |= await pids(address)
        return found

    async def main(address: str, process: subprocess.Popen[bytes]) -> None:
        first = await both(address)
        assert process.pid not in first and first == {child.pid for child in psutil.Process(process.pid).children()}
        killed = min(first)
        job = asyncio.create_task(pids(address, 2000))
        os.kill(killed, signal.SIGKILL)
        assert len(await job) >= 1  # every object has been answered
        while killed in (now := await both(address)):
            pass
        assert len(now) == 2

    with started(framework, 2) as (address, process):
        run(main(address, process))


@pytest.mark.slow
def test_a_streaming_transform_holds_neither_its_input_nor_its_output(tmp_path: Any) -> None:
    size_bytes = 300 << 20

    async def main(address: str) -> None:
        async with open_stage(address, HPUSH, gone_after_s=180) as (stage, _):
            path = tmp_path / "large"
            with path.open("wb") as file:
                file.truncate(size_bytes)
            content = Content(size_bytes, 0, fd=os.open(path, os.O_RDONLY))
            before = psutil.Process().memory_info().rss
            read, peak_mb = map(int, bytes_of(await stage.run(ORIGIN, content, '{"sum": true}')).split())
            content.close()
            assert read == size_bytes and peak_mb < 200
            made = await stage.run(ORIGIN, Content.of(b""), '{"make": 300}')
            assert made.size_bytes == size_bytes
            made.close()
            assert psutil.Process().memory_info().rss - before < 100 << 20

    with started("fastapi", 1) as (address, _):
        run(main(address))
