"""Clusters over TLS: batches, a node that is killed, and the commands of an operator."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader import ClusterOptions, Entry, connect
from ais_loader.errors import NodeUnavailable, NodeUntrusted
from ais_loader.testing.waiting import eventually
from storage_node.ops import ray_head
from tests.cluster.operator_kit import Operator, operating
from tests.cluster_processes import ClusterProcesses
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow  # each starts several processes
OBJECTS = {f"en/{number:03d}": bytes([number]) * (10_000 + number) for number in range(60)}


def batch_of(url: str, ca_file: str, lane: str = "auto") -> dict[str, bytes]:
    """Return the contents of a batch of all objects."""
    options = ClusterOptions(lane=lane, retry_s=240.0)  # type: ignore[arg-type]
    with connect(url, ca=ca_file, options=options) as client:
        batch = client.get_batch([Entry("b", name) for name in OBJECTS])
        return {item.entry.name: bytes(item.data) for item in batch}


@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_batches_survive_the_kill_of_a_node(tmp_path: Path, lane: str) -> None:
    with ClusterProcesses(
        tmp_path / "nodes", 3, buckets={"b": 2}, identity=tmp_path / "identity", min_copies=2
    ) as cluster:
        with connect(cluster.url, ca=cluster.ca_file, options=PATIENT_CLIENT) as client:
            bucket = client.bucket("b")
            for name, data in OBJECTS.items():
                bucket.put(name, data)  # every object has copies on two nodes, which those send each other
        assert batch_of(cluster.url, cluster.ca_file, lane) == OBJECTS
        cluster.kill([1])
        assert batch_of(cluster.url, cluster.ca_file, lane) == OBJECTS
        with connect(cluster.url, ca=cluster.ca_file, options=PATIENT_CLIENT) as client:
            client.bucket("b").put("en/000", b"newer")
        cluster.start([1])
        cluster.kill([0])

        def newest() -> bool:
            try:
                with connect(cluster.url, ca=cluster.ca_file) as client:
                    return client.bucket("b").get("en/000") == b"newer"
            except NodeUnavailable:
                return False

        eventually(newest)


@pytest.fixture(scope="module")
def operator() -> Iterator[Operator]:
    with operating() as operator:
        yield operator


@pytest.fixture(scope="module")
def ray_cluster(operator: Operator) -> dict[str, Any]:
    """Three nodes with TLS, and what `up` said of them."""
    said: dict[str, Any] = operator.json("up", "--nodes", "3", "--no-dashboard", "--secure")
    with connect(said["url"], ca=said["ca_file"]) as client:
        bucket = client.create_bucket("b", copies=2)
        for name, data in OBJECTS.items():
            bucket.put(name, data)
    return said


def test_up_makes_nodes_with_tls(operator: Operator, ray_cluster: dict[str, Any]) -> None:
    assert ray_cluster["url"].startswith("grpcs://")
    assert ray_cluster["ca_file"] == str(operator.root / ".cluster" / "identity" / "ca.pem")
    assert batch_of(ray_cluster["url"], ray_cluster["ca_file"]) == OBJECTS
    plain = ray_cluster["url"].replace("grpcs", "grpc")
    with connect(plain) as client, pytest.raises(NodeUnavailable, match="use grpcs://"):
        client.buckets()


def test_commands_have_the_certificate_of_an_operator(operator: Operator, ray_cluster: dict[str, Any]) -> None:
    said: dict[str, Any] = {}

    def shown() -> bool:
        said.update(operator.json("status"))
        nodes = [(node["state"], node["problem"]) for node in said["nodes"]]
        return nodes == [("serving", "")] * 3 and said["objects"] == len(OBJECTS)

    eventually(shown, interval_s=0.5)  # a busy node may answer late
    assert (said["url"], said["ca_file"]) == (ray_cluster["url"], ray_cluster["ca_file"])
    assert len(operator.run("drive", "list").splitlines()) >= 3
    assert operator.json("up")["ca_file"] == ray_cluster["ca_file"]  # it stays with TLS
    assert f"AIS_LOADER_CA_FILE={ray_cluster['ca_file']}" in operator.run("up")


def test_a_killed_node_comes_back_with_tls(operator: Operator, ray_cluster: dict[str, Any]) -> None:
    before = operator.nodes()
    killed = next(iter(before.values()))
    os.kill(killed["pid"], signal.SIGKILL)

    def back() -> bool:
        now = operator.nodes()[killed["id"]]
        return now["state"] == "serving" and now["pid"] != killed["pid"]

    eventually(back, interval_s=0.5)
    assert batch_of(ray_cluster["url"], ray_cluster["ca_file"]) == OBJECTS


def test_a_node_that_is_added_has_a_certificate_too(operator: Operator, ray_cluster: dict[str, Any]) -> None:
    said = operator.json("add")
    assert len(said["nodes"]) == 4
    new = next(node for node in said["nodes"] if node["uuid"] not in {one["uuid"] for one in ray_cluster["nodes"]})
    with connect(f"grpcs://{new['endpoint']}", ca=said["ca_file"]) as client:
        assert [info.name for info in client.buckets()] == ["b"]
    operator.run("remove", new["name"], "--lost")
    operator.run("down")
    assert "grpcs://" in operator.json("up", "--no-dashboard")["url"]


def test_a_ray_with_tokens_that_is_trusted_runs_nodes_with_tls(
    operator: Operator, ray_cluster: dict[str, Any], tmp_path: Path
) -> None:
    """The Ray of the other root stands for somebody else's; each of its callers shows Ray's token."""
    head = ray_head.remembered(operator.root)
    assert head is not None
    guest = Operator(tmp_path)
    to = ("--address", head.address)
    assert "--trust-ray" in guest.error("up", *to, "--nodes", "2", "--secure", code=2)
    guest.environment |= head.environment  # with RAY_AUTH_MODE=token, and no token
    assert "token" in guest.error("up", *to, "--nodes", "2", "--secure", "--trust-ray").lower()
    assert not list(tmp_path.rglob("drive.json"))
    guest.environment["RAY_AUTH_TOKEN_PATH"] = str(ray_head.token_path(operator.root))
    said = guest.json("up", *to, "--nodes", "2", "--secure", "--trust-ray")
    with connect(said["url"], ca=said["ca_file"]) as client:
        client.create_bucket("guests").put("x", b"x")
        assert client.bucket("guests").get("x") == b"x"
    with connect(said["url"], ca=ray_cluster["ca_file"]) as client, pytest.raises(NodeUntrusted):
        client.buckets()  # two roots on one Ray have nothing in common
    guest.run("down", *to)


def test_a_cluster_without_tls_is_stopped_before_it_starts_with_it() -> None:
    with operating() as operator:
        plain = operator.json("up", "--nodes", "1", "--no-dashboard")["url"]
        with connect(plain) as client:
            client.create_bucket("b").put("a", b"1")
        assert "`cluster down` first" in operator.error("up", "--secure")
        with connect(plain) as client:
            assert client.bucket("b").get("a") == b"1"
        operator.run("down")
        said = operator.json("up", "--no-dashboard", "--secure")
        with connect(said["url"], ca=said["ca_file"]) as client:
            assert client.bucket("b").get("a") == b"1"
