"""Transforms of a real node that run as another user (`etl_user`) or without a network, and try to read its store."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ais_loader import connect, errors
from ais_loader.testing.node import NodeProcess
from ais_loader.transforms.etl import Command
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

PYTHON, TREE = "/usr/bin/python3", Path(__file__).resolve().parents[2]
LOOK = 'id -un; pwd; touch mine && echo wrote; for f; do cat "$f" && echo "$f"; done; true'


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may open."""
    folder = Path(tempfile.mkdtemp(prefix="ais-loader-etl-user-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_a_transform_of_another_user_reads_no_bucket_and_no_secret(public: Path) -> None:
    """It knows the names of all files of the store."""
    probe = subprocess.run(
        [PYTHON, "-c", "import storage_node.etl.worker.program"], user="nobody", cwd="/", env={"PYTHONPATH": str(TREE)}
    )
    if probe.returncode:
        pytest.skip(f"nobody cannot run {PYTHON} with this tree")
    settings = {"etl_user": "nobody", "etl_python": PYTHON, "etl_sandbox": "off"}
    arguments = ["--etl-code", *(word for one in settings.items() for word in ("--set", "=".join(one)))]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(TREE)}
    with (
        NodeProcess([public / "drive"], arguments=arguments, environment=environment, own_secret=True) as node,
        connect(node.url) as client,
    ):
        client.create_bucket("mine").put("a", b"of another tenant")
        files = [str(path) for path in (public / "drive").rglob("*") if path.is_file()]
        assert str(public / "drive" / "peer-secret") in files and len(files) > 5
        client.etl.init("look", Command(["sh", "-c", LOOK, "sh", *files]))
        user, folder, *found = bytes(client.bucket("mine").get("a", etl="look")).decode().split("\n")
        assert (user, found) == ("nobody", ["wrote", ""])
        worker = Path(folder).parent  # which has a folder for each run
        assert not folder.startswith(str(public)) and worker.stat().st_mode & 0o777 == 0o700
    assert not worker.parent.exists()


def test_another_user_with_a_network_and_no_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="etl_user=nobody needs peer_secret_file, or etl_network=false"):
        NodeServer([tmp_path / "drive"], ServerConfig(port=0, etl_user="nobody")).start()
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0, etl_user="nobody", etl_network=False)):
        pass


def test_a_secret_that_another_user_can_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-secret-that-everybody-knows")
    (tmp_path / "secret").chmod(0o644)
    config = ServerConfig(port=0, etl_user="nobody", peer_secret_file=str(tmp_path / "secret"))
    with pytest.raises(ValueError, match=r"its mode is 0644.*`chmod 600` closes it"):
        NodeServer([tmp_path / "drive"], config).start()
    (tmp_path / "secret").chmod(0o600)
    with NodeServer([tmp_path / "drive"], config):
        pass


def reaching(ports: list[int], lane: str) -> Callable[[bytes], bytes]:
    """Code that tries to reach a cloud's metadata, and the node's ports and lanes, and returns what it has reached."""

    def reach(data: bytes) -> bytes:
        import errno
        import socket

        reached = []
        with socket.socket() as sock:
            sock.setblocking(False)
            if sock.connect_ex(("169.254.169.254", 80)) != errno.ENETUNREACH:
                reached.append("metadata")
        for port in ports:
            try:
                socket.create_connection(("127.0.0.1", port), 5).close()
                reached.append("node")
            except OSError:
                pass
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(chr(0) + lane)
            reached.append("lane")
        except OSError:
            pass
        return " ".join(reached).encode()

    return reach


@pytest.mark.slow
@pytest.mark.parametrize("network", [True, False])
def test_python_code_without_a_network_reaches_neither_metadata_nor_other_buckets(
    tmp_path: Path, network: bool
) -> None:
    config = ServerConfig(port=0, etl_code=True, etl_network=network, etl_workers=1)
    with NodeServer([tmp_path / "drive"], config) as node, connect(node.url) as client:
        client.create_bucket("mine").put("a", b"mine")
        client.create_bucket("another").put("a", b"of another tenant")
        ports = [node.port, node.peer_port, node.lanes.port]
        try:
            client.etl.init("reach", reaching(ports, node.lanes._unix_name))
            reached = bytes(client.bucket("mine").get("a", etl="reach")).decode().split()
        except errors.TransformRefused as error:
            assert not network and "no network namespace can be made here" in str(error)
            return
        assert reached.count("node") == (len(ports) if network else 0)
        assert ("lane" in reached) == network
        assert network or reached == []
