"""Listeners of a secure node: what the kernel sees is what docs/security.md says."""

from __future__ import annotations

import os
import re
import signal
import ssl
import stat
import subprocess
import urllib.request
from pathlib import Path

import grpc
import psutil
import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess
from ais_loader.testing.waiting import eventually
from ais_loader.transport.grpc.connection import _OPEN
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as rpc
from ais_loader.wire.node_folder import NodeFolder, unix_endpoint

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"


def table() -> dict[str, list[str]]:
    """Return the rows of the table of a secure node, by listener."""
    text = PAGE.read_text().partition("## Listeners")[2].partition("Without `--secure`")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {name: rest for name, *rest in rows[2:]}


def listening(pid: int) -> tuple[dict[int, str], list[str]]:
    """Return the TCP ports with their addresses, and the names of Unix sockets, of a process and its children."""
    tcp: dict[int, str] = {}
    process = psutil.Process(pid)
    for one in (process, *process.children(recursive=True)):
        for connection in one.net_connections("inet"):
            assert connection.type.name == "SOCK_STREAM" or not connection.laddr, "a UDP socket is bound"
            if connection.status == psutil.CONN_LISTEN:
                tcp[connection.laddr.port] = connection.laddr.ip.removeprefix("::ffff:")
    inodes = {match[1] for path in Path(f"/proc/{pid}/fd").iterdir() if (match := _socket(path))}
    # Number, references, protocol, flags, type, state, inode, name; the flag of a listening socket is 0x10000.
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return tcp, [line[7] for line in lines if line[6] in inodes and int(line[3], 16) & 0x10000 and len(line) > 7]


def _socket(path: Path) -> re.Match[str] | None:
    try:
        return re.fullmatch(r"socket:\[(\d+)\]", str(path.readlink()))
    except OSError:
        return None


@pytest.mark.slow
def test_a_secure_node_listens_where_the_page_says_and_nowhere_else(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "drive", identity=tmp_path / "identity", metrics=True) as node:
        with connect(node.url, ca=node.ca_file) as client:
            client.create_bucket("b").put("x", b"x")
            assert client.bucket("b").get("x") == b"x"
        metrics_port = int(node.metrics_url.partition("://")[2].partition("/")[0].rpartition(":")[2])
        tcp, unix = listening(node.pid)
        found = {node.port: "clients", node.peer_port: "peers", metrics_port: "metrics"}
        assert {port: found.get(port, "in no row") for port in tcp} == found
        assert set(tcp.values()) == {"127.0.0.1"}
        assert [re.sub("[0-9a-f]{32}$", "", name) for name in unix] == ["@ais-loader-lane-"] * 2
        rows = table()
        assert {name: row[0].partition(",")[0] for name, row in rows.items()} == dict.fromkeys(
            found.values(), "TCP"
        ) | {"lanes of clients": "Unix", "lanes of peers": "Unix"}
        for port, name in found.items():
            assert _speaks_tls(port) == rows[name][2].startswith("TLS"), name
        with urllib.request.urlopen(node.metrics_url, timeout=180) as response:
            assert b"ais_loader_" in response.read()


def _speaks_tls(port: int) -> bool:
    try:
        ssl.get_server_certificate(("127.0.0.1", port), timeout=180)
    except OSError:
        return False
    return True


@pytest.mark.slow
def test_a_node_on_demand_is_reached_by_its_own_user_alone(tmp_path: Path) -> None:
    drive = tmp_path / "drive"
    with connect(f"node://{drive}") as client:
        client.create_bucket("b").put("x", b"x")
        assert [bytes(item.data) for item in client.bucket("b").get_batch(["x"] * 100)] == [b"x"] * 100
        assert [one.lanes.kind for one in _OPEN if one.lanes and "socket." in one.endpoint] == ["unix"]
        folder = NodeFolder([drive])
        pid, address = folder.pid(), folder.address()
        assert pid is not None and address is not None
        try:
            tcp, unix = listening(pid)
            (path,) = [name for name in unix if not name.startswith("@")]
            assert path == f"{drive}/node/socket.{pid}" and address.endpoint == unix_endpoint(Path(path))
            assert [re.sub("[0-9a-f]{32}$", "", name) for name in unix if name != path] == ["@ais-loader-lane-"] * 2
            assert {mode(one) for one in (drive, drive / "node")} == {0o700} and not mode(Path(path)) & 0o077
            assert set(tcp.values()) == {"127.0.0.1"} and len(tcp) == 1  # of peers
            (port,) = tcp
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as refused:
                rpc.BucketsStub(channel).ListBuckets(pb.ListBucketsRequest(), timeout=180)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            if os.geteuid() == 0:
                tmp_path.chmod(0o711)  # the folder of the drive is what keeps others out
                said = subprocess.run(["/usr/bin/python3", "-c", CONNECT, path], capture_output=True, text=True)
                assert "PermissionError" in said.stderr, said
        finally:
            os.kill(pid, signal.SIGTERM)
    eventually(lambda: not Path(path).exists())


CONNECT = """
import os, socket, sys
os.setgroups([]), os.setgid(65534), os.setuid(65534)
socket.socket(socket.AF_UNIX).connect(sys.argv[1])
"""


@pytest.mark.slow
def test_a_socket_whose_path_would_be_too_long_is_elsewhere(tmp_path: Path) -> None:
    drive = tmp_path / ("long" * 30) / "drive"
    with connect(f"node://{drive}") as client:
        client.create_bucket("b").put("x", b"x")
        folder = NodeFolder([drive])
        pid = folder.pid()
        assert pid is not None
        try:
            assert client.bucket("b").get("x") == b"x"
            (path,) = [Path(name) for name in listening(pid)[1] if not name.startswith("@")]
            assert len(str(path)) < 100 and mode(path.parent) == 0o700
        finally:
            os.kill(pid, signal.SIGTERM)
    eventually(lambda: not path.parent.exists())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
