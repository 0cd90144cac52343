"""Node file, `node.json`: a node's ports, process and last problem, kept beside its drives.

It is a convenience, not the authority: a drive records which node it belongs to, and the cluster's map records the
members. The file lets a node keep its ports across restarts and detect that its processes die young, and lets an
operator reach a cluster whose Ray is dead.

A port is one that no other program gets by chance. Linux assigns ports from 32768 up to outgoing connections, and Ray
assigns 10002 to 19999 to its workers. A node that needs its port again after a restart avoids both ranges.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from storage_node.store.files.growing_file import write_atomically

FILE_NAME = "node.json"


@dataclass(frozen=True, slots=True)
class NodeFile:
    uuid: str
    endpoint: str = ""
    """host:port at which clients last reached the node; empty if it never served."""
    removed: bool = False
    """The node has left its cluster, with its objects: it is not started any more."""
    problem: str = ""
    """Problem that keeps a running node from serving."""
    listening: str = ""
    """host:port on this machine, if that is not `endpoint`."""
    peer: str = ""
    """host:port on this machine for other nodes and operators."""
    metrics: str = ""
    """host:port of its metrics; empty if they are not served."""
    gateway: str = ""
    """URL of its gateway; empty if it has none."""
    gateway_metrics: str = ""
    """host:port of the gateway's metrics; empty if they are not served."""
    born_s: float = 0.0
    """Start of the current process, in seconds since 1970; 0 once it has lasted, or has ended in order."""
    short_lives: int = 0
    """Number of consecutive short-lived processes before it."""

    @property
    def port(self) -> int:
        """Port that it listens on; 0 if there is none."""
        return port_of(self.listening or self.endpoint)

    @property
    def ports(self) -> set[int]:
        """All of its ports, and 0."""
        others = self.peer, self.metrics, self.gateway, self.gateway_metrics
        return {self.port, *map(port_of, others)}


def read(folder: Path) -> NodeFile | None:
    """Read the file. Returns None if there is none, or none that can be decoded: the node writes it again when it
    serves."""
    try:
        given = json.loads((folder / FILE_NAME).read_bytes())
        if not isinstance(given["uuid"], str):
            return None
        known = NodeFile(given["uuid"])
        data = {one.name: type(getattr(known, one.name))(given[one.name]) for one in fields(known) if one.name in given}
        return replace(known, **data)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, file: NodeFile) -> None:
    """Write the file, atomically and durably. Raises OSError."""
    write_atomically(folder / FILE_NAME, json.dumps(asdict(file)).encode())


def note_problem(root: Path, uuid: str, problem: str) -> None:
    """Record a problem, to be shown when the node does not answer; only if it has a file already. Raises OSError."""
    for folder in _folders(root):
        file = read(folder)
        if file is not None and file.uuid == uuid and file.problem != problem:
            write(folder, replace(file, problem=problem))


def read_all(root: Path) -> list[NodeFile]:
    """Read the files of all nodes below a root, including nodes that have no drive there now."""
    return [file for folder in _folders(root) if (file := read(folder)) is not None]


def port_of(endpoint: str) -> int:
    """Return the port of host:port or of a URL; 0 if there is none."""
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(entry for entry in root.iterdir() if not entry.name.startswith("."))
    except OSError:
        return []


_RAY_DASHBOARD = 8265


def usable_ports() -> Iterator[int]:
    yield from (port for port in range(7480, 10_000) if port != _RAY_DASHBOARD)
    yield from range(20_000, 32_768)


def usable_peer_ports() -> Iterator[int]:
    """Yield ports outside of the first range of client ports, so that those stay consecutive."""
    yield from range(8480, 10_000)
    yield from range(20_000, 32_768)


def is_free(host: str, port: int) -> bool:
    """Whether a node could listen there now. A name that is no address of this machine counts as taken."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.create_server(address[:2], family=family):
            return True
    except OSError:
        return False


def free_port(host: str, avoid: Collection[int] = (), among: Iterable[int] | None = None) -> int:
    """Return the first free port. Raises OSError if there is none."""
    for port in usable_ports() if among is None else among:
        if port not in avoid and is_free(host, port):
            return port
    raise OSError(f"no port of {host} is free for a node")
