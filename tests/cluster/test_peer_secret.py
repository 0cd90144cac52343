"""Peer secret of nodes that are started by `ais-loader serve`, and of those of one cluster on several hosts."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect
from ais_loader.testing.node import NodeProcess
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.consensus.errors import ChangeFailed
from storage_node.cluster.map.mutations import create_cluster
from storage_node.context.channels import OPERATOR, Caller, read_secret
from storage_node.ops import peer_secret, ray_actors
from storage_node.ops.ask_nodes import ask_node
from storage_node.ops.node_discovery import FoundNodes
from storage_node.ops.ray_actors import Host
from storage_node.ops.ray_head import ClusterError


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Given no secret, as an operator starts it."""
    folder = tmp_path_factory.mktemp("node")
    with NodeProcess([folder / "a", folder / "b"], own_secret=True) as running:
        yield running


def take_over(node: NodeProcess, caller: Caller) -> pb.ClusterMap:
    """Make the node a cluster with no buckets, which deletes those that it has."""
    answer = ask_node(node.url.removeprefix("grpc://"), caller)
    member = pb.MapNode(
        uuid=bytes.fromhex(answer.uuid),
        host="h",
        endpoint=answer.endpoint,
        peer_endpoint=node.peer_endpoint,
        weight=1.0,
    )
    made = create_cluster([member])

    def without_buckets(map_: pb.ClusterMap | None) -> pb.ClusterMap | None:
        changed = made(map_)
        if changed is not None:
            del changed.bucket[:]
        return changed

    return change_map([node.peer_endpoint], without_buckets, timeout_s=3.0, caller=caller)


@pytest.mark.slow
def test_nobody_takes_over_a_node_without_its_secret(node: NodeProcess) -> None:
    with connect(node.url) as client:
        client.create_bucket("mine", exist_ok=True).put("a", b"bytes")
        for caller in (OPERATOR, Caller("an-invented-secret")):
            with pytest.raises(ChangeFailed):
                take_over(node, caller)
        assert client.bucket("mine").get("a") == b"bytes"


@pytest.mark.slow
def test_the_secret_of_a_node_is_its_users_alone_and_stays(node: NodeProcess) -> None:
    path = node.drives[0] / "peer-secret"
    secret = read_secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not (node.drives[1] / "peer-secret").exists()
    node.restart()
    assert read_secret(path) == secret
    assert ask_node(node.url.removeprefix("grpc://"), Caller(secret)).drives is not None
    assert ask_node(node.url.removeprefix("grpc://"), OPERATOR).drives is None


# -- one cluster on several hosts


class Hosts:
    """Hosts that run what `ray_actors` sends them, each with a root of its own."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.hosts = [Host(name, name, FoundNodes()) for name in names]
        for name in names:
            (folder / name).mkdir()

    def on(self, address: str, function: Callable[..., Any], root: Path, *rest: Any) -> Any:
        return function(self.folder / address, *rest)

    def secrets(self) -> dict[str, str]:
        return {host.address: read_secret(peer_secret.default_file(self.folder / host.address)) for host in self.hosts}


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    made = Hosts(tmp_path, ["a", "b", "c"])
    monkeypatch.setattr(ray_actors, "_on", made.on)
    monkeypatch.setattr(ray_actors, "_get", lambda done, *_: done)
    return made


def test_all_hosts_of_a_cluster_get_the_same_secret(hosts: Hosts) -> None:
    ray_actors.share_secret(Path("/root-of-the-cluster"), hosts.hosts)
    found = hosts.secrets()
    (secret,) = set(found.values())
    assert len(secret) == 64
    peer_secret.path_of(hosts.folder / "b").unlink()  # a host that was away, or is new
    ray_actors.share_secret(Path("/root-of-the-cluster"), hosts.hosts)
    assert hosts.secrets() == found


def test_hosts_with_different_secrets_are_named(hosts: Hosts) -> None:
    for name in ("a", "c"):
        peer_secret.make(hosts.folder / name)
    with pytest.raises(ClusterError, match=r"on a, c differ: put the same one on each"):
        ray_actors.share_secret(Path("/root-of-the-cluster"), hosts.hosts)
    assert hosts.secrets()["b"] == ""
