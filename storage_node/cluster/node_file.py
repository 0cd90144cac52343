"""`node.json`: what a node says of itself, beside its drives.

A convenience, not the truth: which node a drive belongs to stands on the drive, who is a member stands in the cluster's
map. The file lets a node keep its port from one life to the next, and lets an operator ask a cluster whose Ray is dead.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from storage_node.store.record import write_atomically

FILE_NAME = "node.json"


@dataclass(frozen=True, slots=True)
class NodeFile:
    uuid: str
    endpoint: str = ""
    """host:port where it served last; empty before it ever did."""
    removed: bool = False
    """It left its cluster, and its objects with it: it is not started any more."""
    problem: str = ""
    """What it waits for, when it is up and cannot serve."""

    @property
    def port(self) -> int:
        """0 when there is none."""
        port = self.endpoint.rpartition(":")[2]
        return int(port) if port.isdecimal() else 0


def read(folder: Path) -> NodeFile | None:
    """None where there is none, or none that makes sense: it is written anew when the node serves."""
    try:
        fields = json.loads((folder / FILE_NAME).read_bytes())
        return NodeFile(
            str(fields["uuid"]), str(fields["endpoint"]), bool(fields["removed"]), str(fields.get("problem", ""))
        )
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


def _folders(root: Path) -> list[Path]:
    try:
        return sorted(entry for entry in root.iterdir() if not entry.name.startswith("."))
    except OSError:
        return []
