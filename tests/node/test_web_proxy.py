"""Web proxies of the environment, as companies and clusters set them: what is stored never passes through one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ais_loader import connect, errors
from ais_loader.testing import NodeProcess
from ais_loader.values.options import ClusterOptions
from storage_node.ops import drive_commands
from storage_node.remote.drivers.gate import Gate, Place
from storage_node.security.identity.identity_folder import IdentityFolder
from storage_node.settings.host_patterns import UrlOrigin
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import PROCESS_OPERATOR
from tests.node.drive_kit import patient_operators

pytestmark = pytest.mark.slow  # processes
NAMES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
OPTIONS = ClusterOptions(retry_s=240.0, lane="grpc")


@pytest.fixture
def proxies(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Let all variables name a proxy that does not answer."""
    for name in NAMES:
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch


def test_clients_peers_and_commands_use_none(proxies: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with ClusterProcesses(tmp_path, 2) as cluster, connect(cluster.url, options=OPTIONS) as client:
        bucket = client.create_bucket("b", copies=2)
        bucket.put_many({f"{at}": bytes([at]) * 2000 for at in range(20)}.items())
        assert [bytes(item.data)[:1] for item in bucket.get_batch([f"{at}" for at in range(20)])] == [
            bytes([at]) for at in range(20)
        ]
        assert bucket.put("large", bytes(3 << 20)).size_bytes == 3 << 20
        command = [sys.executable, "-m", "ais_loader.cli", "ls", "b", "--store", cluster.url]
        assert len(subprocess.run(command, capture_output=True, check=True).stdout.splitlines()) == 21
        endpoint = cluster.nodes[0].url.removeprefix("grpc://")
        with patient_operators():
            assert drive_commands.drives_at(endpoint, PROCESS_OPERATOR)


def test_tls_and_metrics_use_none(proxies: pytest.MonkeyPatch, tmp_path: Path) -> None:
    identity = IdentityFolder(tmp_path / "identity")
    identity.make()
    with (
        NodeProcess(tmp_path / "drive", identity=identity.path, metrics=True) as node,
        connect(node.url, ca=node.ca_file, options=OPTIONS) as client,
    ):
        client.create_bucket("b").put("a", b"a")
        assert node.numbers()


def test_a_node_on_demand_uses_none(proxies: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with connect(f"node://{tmp_path}/drive") as client:
        client.create_bucket("b").put("a", b"a")
        subprocess.run(["kill", str(client.describe()["pid"])], check=True)


def test_a_client_that_wants_one_uses_it(proxies: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ClusterOptions(retry_s=1.0, lane="grpc", proxy=True)
    with NodeProcess(tmp_path / "drive") as node:
        asked = "a web proxy of the environment is asked"
        with connect(node.url, options=options) as client, pytest.raises(errors.NodeUnavailable, match=asked):
            client.buckets()
        gate = Gate()
        for name in NAMES:
            proxies.setenv(name, gate.url(Place(UrlOrigin("https", "127.0.0.1", node.port), None)))
        with connect(node.url, options=replace(options, retry_s=OPTIONS.retry_s)) as client:
            client.create_bucket("b").put("a", b"a")
            assert client.bucket("b").get("a") == b"a"
        gate.close()
