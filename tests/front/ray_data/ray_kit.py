"""A Ray of a test's own, that is given the time that a busy machine needs to start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import ray
import ray.data

from ais_loader.testing import eventually
from tests.free_ports import free_port

START_S = 120.0


@contextmanager
def ray_here(folder: Path) -> Iterator[None]:
    """This process is its driver inside the block. `folder`: a short path, for sockets below it."""
    gcs, *agents = [free_port() for _ in range(5)]
    flags = ("dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent", "metrics-export")
    environment = {
        "RAY_AUTH_MODE": "disabled",  # it would keep a token in the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": str(int(1000 * START_S)),
        "RAY_worker_register_timeout_seconds": str(int(START_S)),
    }
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={gcs}", "--num-cpus=2"),
        *("--include-dashboard=false", f"--temp-dir={folder}", f"--object-store-memory={256 << 20}"),
        # Ray waits 15 s for its agents to tell ports that they choose themselves, and then ends.
        *(f"--{name}-port={port}" for name, port in zip(flags, agents, strict=True)),
    ]
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    with (folder / "ray.log").open("wb") as log:
        head = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, process_group=0)
    try:
        eventually(lambda: head.poll() is not None or joined(f"127.0.0.1:{gcs}"), timeout_s=START_S)
        assert head.poll() is None, (folder / "ray.log").read_text()
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield
    finally:
        ray.shutdown()
        with suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def joined(address: str) -> bool:
    try:
        ray.init(address, log_to_driver=False)
    except Exception:  # noqa: BLE001 - of several kinds while it starts
        ray.shutdown()
        return False
    return True
