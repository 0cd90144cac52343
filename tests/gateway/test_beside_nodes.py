"""Gateways that nodes start beside them: by `serve`, by the supervisor of a cluster's node, and by Ray."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import StoreError
from ais_loader.testing import NodeProcess, eventually, throwaway_folder
from storage_node.ops import settings_store
from storage_node.ops.gateway_process import GatewayProcess
from storage_node.ops.node_discovery import make_nodes
from storage_node.ops.settings_store import KeptSettings
from storage_node.ops.status import cluster_status
from storage_node.ops.supervisor import Supervisor
from storage_node.settings.config import ServerConfig
from tests.cluster.operator_kit import operating
from tests.gateway.command_kit import key_file, s3_at

ROW = {"access_key": "k", "secret_key": "s"}


@pytest.fixture
def folder() -> Iterator[Path]:
    with throwaway_folder() as folder:
        yield folder


def answers(url: str, **options: Any) -> bool:
    """Whether a gateway serves its store."""
    try:
        s3_at(url, "k", "s", **options).list_buckets()
    except Exception:  # noqa: BLE001 - it does not serve, for any reason
        return False
    return True


def has_body(s3: Any, body: bytes) -> bool:
    try:
        return bool(s3.get_object(Bucket="speech", Key="a")["Body"].read() == body)
    except Exception:  # noqa: BLE001 - it does not serve, for any reason
        return False


def listens(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 5).close()
    except OSError:
        return False
    return True


def gateway_pids(pid: int) -> list[int]:
    """Process ids of the gateways of a node."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            for child in (task / "children").read_text().split():
                if b"\0gateway\0" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def test_a_gateway_needs_keys() -> None:
    with pytest.raises(ValueError, match="gateway_keys_file"):
        ServerConfig(gateway_port=0)


def test_a_gateway_that_cannot_serve_says_why(tmp_path: Path) -> None:
    config = ServerConfig(gateway_port=0, gateway_keys_file=str(tmp_path / "none"))
    with pytest.raises(StoreError, match="none"):
        GatewayProcess(config, 1).start()


@pytest.mark.slow
def test_serve_starts_a_gateway_that_is_replaced_and_ends_with_the_node(folder: Path) -> None:
    keys = key_file(folder, [ROW])
    arguments = ["--gateway", "0", "--gateway-keys", str(keys), "--set", "gateway_processes=2"]
    with NodeProcess(folder / "drive", arguments=arguments) as node:
        url = node.gateway_url
        s3 = s3_at(url, "k", "s")
        s3.create_bucket(Bucket="speech")
        s3.put_object(Bucket="speech", Key="a", Body=b"1")
        (pid,) = gateway_pids(node.pid)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: "the gateway ended with code -9" in node.log())
        # Processes of the one that was killed may still answer, and end while they do.
        eventually(lambda: has_body(s3, b"1"))
        assert node.stop() == 0
        eventually(lambda: not listens(url))
        node.start()
        assert answers(node.gateway_url)
        last = node.gateway_url
        node.kill()
        eventually(lambda: not listens(last))


@pytest.mark.slow
def test_the_gateway_of_a_node_with_tls_has_its_certificate(folder: Path) -> None:
    keys = key_file(folder, [ROW])
    arguments = ["--gateway", "0", "--gateway-keys", str(keys)]
    with NodeProcess(folder / "drive", arguments=arguments, identity=folder / "identity") as node:
        assert node.gateway_url.startswith("https://")
        s3 = s3_at(node.gateway_url, "k", "s", verify=node.ca_file)
        s3.create_bucket(Bucket="speech")
        body = os.urandom(3 << 20)
        s3.put_object(Bucket="speech", Key="a", Body=body)
        assert s3.get_object(Bucket="speech", Key="a")["Body"].read() == body
        assert not answers(node.gateway_url.replace("https", "http"))
        assert not answers(node.gateway_url)  # another CA


@pytest.mark.slow
def test_the_supervisor_keeps_a_gateway_and_its_port(folder: Path) -> None:
    root = folder / "root"
    root.mkdir()
    (node,) = make_nodes(root, 1, 1)
    keys = key_file(folder, [ROW])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        first = taken.getsockname()[1]
        values = {"gateway_port": first, "gateway_keys_file": str(keys)}
        settings_store.write(root, KeptSettings(1, values))
        kept = Supervisor(root, node.uuid, "127.0.0.1")
        kept.start()
        try:
            eventually(lambda: kept.status()["state"] == "serving")
            url = kept.status()["gateway_url"]
            assert first < int(url.rpartition(":")[2]) < first + 100
            eventually(lambda: answers(url))
            eventually(lambda: [one["gateway_url"] for one in cluster_status(root)["nodes"]] == [url])
            (former,) = gateway_pids(os.getpid())
            kept.renew()
            eventually(lambda: former not in gateway_pids(os.getpid()))
            eventually(lambda: kept.status()["gateway_url"] == url and answers(url))
            settings_store.write(root, KeptSettings(2, {}))
            kept.renew()
            eventually(lambda: kept.status()["settings"] == {})
            assert (kept.status()["gateway_url"], listens(url)) == ("", False)
        finally:
            kept.stop()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_cluster_on_ray_has_a_gateway_beside_each_node() -> None:
    with operating() as operator:
        keys = key_file(operator.home, [ROW])
        options = ["--nodes", "2", "--gateway", "19300", "--gateway-keys", str(keys), "--no-dashboard"]
        operator.json("up", *options)
        urls = [node["gateway_url"] for node in operator.nodes().values()]
        assert len(set(urls)) == 2
        for url in urls:
            eventually(lambda url=url: answers(url))
        one, other = (s3_at(url, "k", "s") for url in urls)
        one.create_bucket(Bucket="speech")
        one.put_object(Bucket="speech", Key="a", Body=b"1")
        assert other.get_object(Bucket="speech", Key="a")["Body"].read() == b"1"
        operator.run("down")
        eventually(lambda: not any(map(listens, urls)))
