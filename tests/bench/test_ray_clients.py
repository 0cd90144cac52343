"""Several client machines through Ray: what they found put together, what is refused, and what a real Ray does."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from ais_loader import connect
from ais_loader.bench.plan import BenchPlan
from ais_loader.bench.ray_clients import RayNode, check_reachable
from ais_loader.bench.result import ClientResult, comparison, result, table
from ais_loader.bench.tally import BenchTally
from ais_loader.cli import main
from ais_loader.errors import InvalidRequest
from ais_loader.testing import NodeProcess
from ais_loader.testing.waiting import eventually
from storage_node.ops.ports import free_port

LOOPBACK = "127.0.0.1"
HERE = RayNode("a", LOOPBACK, "here")
AWAY = RayNode("b", "198.51.100.9", "away")


def part(name: str, latencies_ms: list[int], elapsed_s: float, machine: str = "m") -> ClientResult:
    tally = BenchTally()
    for latency in latencies_ms:
        tally.record(latency * 10**6, 2, 100)
    return ClientResult(
        tally, elapsed_s=elapsed_s, cpu_s=1.0, peak_bytes=1 << 20, machine=machine, name=name, notes=("slow",)
    )


def merged(*parts: ClientResult, lost: dict[str, str] | None = None) -> dict[str, object]:
    plan = BenchPlan(workload="get", url="grpc://a:1", clients=max(1, len(parts)))
    return result(
        plan, parts, lost=lost or {}, node_cpu_s=None, node_peak_bytes=None, whole=True, cold=None, notes=["last"]
    )


@pytest.mark.slow
def test_parts_add_up_by_their_histograms() -> None:
    quick, slow = part("client 1", [1] * 99, 2.0), part("client 2", [1000], 4.0)
    alone, found = part("", [1] * 99 + [1000], 4.0), merged(quick, ClientResult.unpacked(slow.packed(), "client 2"))
    assert found["latency_ms"] == alone.tally.latency_ms()
    assert found["latency_ms"]["p50"] < 2  # type: ignore[index]  # of both means, it would be 500
    assert (found["calls"], found["objects"], found["bytes"]) == (100, 200, 10_000)
    assert (found["elapsed_s"], found["objects_per_s"]) == (4.0, 50.0)
    assert (found["client_cpu_s"], found["client_peak_bytes"]) == (2.0, 2 << 20)
    assert [one["name"] for one in found["clients"]] == ["client 1", "client 2"]  # type: ignore[attr-defined]
    assert found["notes"] == ["client 1: slow", "client 2: slow", "last"]
    assert merged(alone)["clients"] == []


def test_a_lost_client_is_named_and_the_others_are_kept() -> None:
    found = merged(part("client 1", [1], 1.0), lost={"client 2 on b": "it died"})
    assert found["calls"] == 1
    assert any("LOST" in line and "client 2 on b: it died" in line for line in table(found))
    assert "client 2 on b was lost in the second: it died" in comparison(merged(part("", [1], 1.0)), found)


@pytest.mark.parametrize(
    ("url", "nodes", "says"),
    [
        ("/data/store", [], "away cannot read"),
        ("grpc://127.0.0.1:7480", [], "127.0.0.1:7480 means another machine on away"),
        ("grpc://198.51.100.1:7480,localhost:7481", [], "localhost:7481 means"),
        ("grpc://[::1]:7480", [], "means another machine"),
        ("grpc://198.51.100.1:7480", [{"endpoint": "127.0.0.1:7480"}], "127.0.0.1:7480 means"),
        ("grpc://198.51.100.1:7480", [{"url": "grpc://0.0.0.0:7480"}], "means another machine"),
    ],
)
def test_a_store_that_another_machine_cannot_reach_is_refused(url: str, nodes: list[dict[str, str]], says: str) -> None:
    check_reachable(url, {"nodes": nodes}, [HERE])
    with pytest.raises(InvalidRequest, match=says):
        check_reachable(url, {"nodes": nodes}, [HERE, AWAY])


def test_a_store_that_all_machines_can_reach_is_taken() -> None:
    check_reachable("grpc://198.51.100.1:7480", {"nodes": [{"endpoint": "storage-2:7480"}]}, [HERE, AWAY])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("get", "--clients", "2"), 2, "--clients needs --ray"),
        (("get", "--ray", "localhost:1"), 1, "no Ray cluster at localhost:1"),
        (("get", "--ray", "here"), 1, "'here' is no address of a Ray cluster"),
        (("put", "--ray", "localhost:1", "--clients", "2"), 2, "one writer"),
    ],
)
def test_wrong_clients_are_told_before_anything_is_made(
    arguments: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    told = CliRunner().invoke(main, ["bench", *arguments, "--store", str(tmp_path / "store")])
    assert (told.exit_code, says in told.output) == (code, True), told.output
    assert not (tmp_path / "store").exists()


@dataclass(frozen=True, slots=True)
class Ray:
    """A Ray of two nodes on this machine."""

    environment: dict[str, str]
    sessions: tuple[int, ...]

    def clients(self) -> list[psutil.Process]:
        """Actors that measure now."""
        return [
            one
            for one in psutil.process_iter(["cmdline"])
            if "ray::ClientActor.measure" in " ".join(one.info["cmdline"] or ()) and os.getsid(one.pid) in self.sessions
        ]


JOINED = """
import time, ray
ray.init(log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < 2:
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Ray]:
    # A short name: Ray has sockets far below, whose paths must stay below 108 characters.
    with (
        tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder,
        contextlib.ExitStack() as stack,
    ):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        # A Ray of several nodes listens on more than loopback: nobody else has its token.
        environment = kept | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

        taken: list[int] = []

        def a_port() -> int:
            """Of those that nothing of this machine is given by chance, begun with where others do not."""
            taken.append(free_port(LOOPBACK, taken, range(20_000 + os.getpid() % 10_000, 32_768)))
            return taken[-1]

        def start(*arguments: str) -> int:
            command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1"]
            command += [f"--object-store-memory={100 << 20}", f"--dashboard-agent-listen-port={free_port('127.0.0.1')}"]
            process = subprocess.Popen(
                [*command, *arguments],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            stack.callback(end, process)
            return process.pid

        def end(process: subprocess.Popen[bytes]) -> None:
            process.terminate()
            try:
                process.wait(60)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

        def listens() -> bool:
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), 1):
                return True
            return False

        port = a_port()
        first = start(
            "--head", f"--port={port}", f"--ray-client-server-port={a_port()}", "--include-dashboard=false",
            f"--temp-dir={folder}",
        )  # fmt: skip
        eventually(listens)
        second = start(f"--address={LOOPBACK}:{port}")
        environment["RAY_ADDRESS"] = f"{LOOPBACK}:{port}"
        subprocess.run([sys.executable, "-c", JOINED], env=environment, check=True, capture_output=True, timeout=400)
        yield Ray(environment, (first, second))


def started(ray: Ray, node: NodeProcess, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ais_loader.cli", "bench", "get-batch", "--objects", "40", "--size", "1KiB", "--store",
         node.url, "--batch", "8", *map(str, arguments), "--ray"],
        env=ray.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_two_machines_of_a_ray_ask_one_node(ray: Ray, node: NodeProcess, bucket_name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with started(ray, node, "--bucket", bucket_name, "--epochs", 2, "--verify", "--clients", 2, "--json", file) as one:
        out, err = one.communicate(timeout=400)
    assert one.returncode == 0 and "Traceback" not in err, out + err
    found = json.loads(file.read_text())
    assert (found["objects"], found["bytes"], found["errors"], found["lost"]) == (80, 80 << 10, {}, {})
    assert [one["objects"] for one in found["clients"]] == [40, 40]
    assert [one["name"].partition(" on ")[0] for one in found["clients"]] == ["client 1", "client 2"]
    assert sum(one["cpu_s"] for one in found["clients"]) == found["client_cpu_s"] > 0


@pytest.mark.slow
def test_a_client_that_dies_is_lost_by_name(ray: Ray, node: NodeProcess, bucket_name: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with started(ray, node, "--bucket", bucket_name, "--duration", 5, "--json", file) as process:
        try:
            eventually(lambda: len(ray.clients()) == 2, 300)
            ray.clients()[0].kill()
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 1, out + err
    found = json.loads(file.read_text())
    (lost,) = found["lost"]
    assert f"clients lost during the run: {lost}" in err
    assert len(found["clients"]) == 1
    assert found["objects"] == found["clients"][0]["objects"] > 0


@pytest.mark.slow
def test_an_interrupt_ends_all_clients(ray: Ray, node: NodeProcess, bucket_name: str) -> None:
    with started(ray, node, "--bucket", bucket_name, "--duration", 600) as process:
        try:
            eventually(lambda: len(ray.clients()) == 2, 300)
            crews = [crew for client in ray.clients() for crew in client.children(recursive=True)]
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, out + err
    assert "interrupted: this is what was measured until then" in out
    eventually(lambda: not ray.clients() and not any(crew.is_running() for crew in crews))
    with connect(node.url) as client:
        assert client.describe()
