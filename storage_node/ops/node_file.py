"""Node file, `node.json`: a node's ports, process and last problem, kept beside its drives.

A convenience, not the truth: which node a drive belongs to stands on the drive, who is a member stands in the cluster's
map. The file lets a node keep its ports from one life to the next and notice that its lives are short, and lets an
operator ask a cluster whose Ray is dead.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from storage_node.store.store_record import write_atomically

FILE_NAME = "node.json"


@dataclass(frozen=True, slots=True)
class NodeFile:
    uuid: str
    endpoint: str = ""
    """host:port by which clients could reach it last; empty before it ever served."""
    removed: bool = False
    """It left its cluster, and its objects with it: it is not started any more."""
    problem: str = ""
    """What it waits for, when it is up and cannot serve."""
    listening: str = ""
    """host:port on this machine, where that is not `endpoint`."""
    peer: str = ""
    """host:port on this machine for other nodes and operators."""
    metrics: str = ""
    """host:port of its metrics; empty when they are not served."""
    born_s: float = 0.0
    """When its present life began, in seconds since 1970; 0 once it has lasted, or has ended in order."""
    short_lives: int = 0
    """How many before that ended soon, one after the other."""

    @property
    def port(self) -> int:
        """That it listens on; 0 when there is none."""
        return _port(self.listening or self.endpoint)

    @property
    def peer_port(self) -> int:
        """For other nodes; 0 when there is none."""
        return _port(self.peer)

    @property
    def metrics_port(self) -> int:
        """0 when there is none."""
        return _port(self.metrics)


def read(folder: Path) -> NodeFile | None:
    """None where there is none, or none that makes sense: it is written anew when the node serves."""
    try:
        given = json.loads((folder / FILE_NAME).read_bytes())
        if not isinstance(given["uuid"], str):
            return None
        known = NodeFile(given["uuid"])
        told = {one.name: type(getattr(known, one.name))(given[one.name]) for one in fields(known) if one.name in given}
        return replace(known, **told)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write(folder: Path, said: NodeFile) -> None:
    """Whole and lasting on return. Raises OSError."""
    write_atomically(folder / FILE_NAME, json.dumps(asdict(said)).encode())


def note_problem(root: Path, uuid: str, problem: str) -> None:
    """For whoever asks how a node is that does not answer; only where it has a file already. Raises OSError."""
    for folder in _folders(root):
        said = read(folder)
        if said is not None and said.uuid == uuid and said.problem != problem:
            write(folder, replace(said, problem=problem))


def read_all(root: Path) -> list[NodeFile]:
    """Those of all nodes below a root, also of nodes that have no drive there now."""
    return [said for folder in _folders(root) if (said := read(folder)) is not None]


def _port(endpoint: str) -> int:
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(entry for entry in root.iterdir() if not entry.name.startswith("."))
    except OSError:
        return []
