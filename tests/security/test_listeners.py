"""Listeners of a secure node: what the kernel sees is what docs/security.md says."""

from __future__ import annotations

import re
import ssl
import urllib.request
from pathlib import Path

import psutil
import pytest

from ais_loader import connect
from ais_loader.testing import NodeProcess

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
        with urllib.request.urlopen(node.metrics_url, timeout=10) as response:
            assert b"ais_loader_" in response.read()


def _speaks_tls(port: int) -> bool:
    try:
        ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    except OSError:
        return False
    return True
