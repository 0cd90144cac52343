"""Node discovery on a host: the drives below a root, grouped by the store they belong to.

ROOT/<node>/<drive>/drive.json    the drive's identity: a node is the set of drives with its uuid, in any folder
ROOT/<node>/node.json             the node's own state; see `node_file`

Identity and data belong to the drives. Names of folders are for people: drives may be moved to another folder, or to
another host, and are the same node there. New nodes are created only on request, by default in folders `node-1`,
`node-2` with `drive-1`, `drive-2`; a disk mounted at such a place beforehand is used.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ais_loader.errors import StoreFormatError
from storage_node.ops import node_file
from storage_node.store import store_record as records
from storage_node.store.drive import identity as identities
from storage_node.store.drive.identity import DriveIdentity
from storage_node.store.store import Store
from storage_node.store.store_record import StoreRecord


@dataclass(frozen=True, slots=True)
class NodeDrives:
    """A node, as described by its drives."""

    uuid: str
    """32 hex digits: the uuid of the store on the drives."""
    drives: tuple[Path, ...]
    """In the order of their paths; never empty. Some of the node's drives may be missing."""

    @property
    def folder(self) -> Path:
        """Folder in which the node keeps its state."""
        return self.drives[0].parent

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True, slots=True)
class FoundNodes:
    """Nodes and problems below a root."""

    nodes: tuple[NodeDrives, ...] = ()
    """Sorted by name; without those that were removed from their cluster."""
    removed: tuple[NodeDrives, ...] = ()
    absent: tuple[str, ...] = ()
    """Uuids of nodes that were here, and have no drive here now."""
    problems: tuple[str, ...] = ()
    """Folders that should be drives and cannot be used, with the reasons."""

    def node(self, uuid: str) -> NodeDrives | None:
        return next((node for node in self.nodes if node.uuid == uuid), None)


def find_nodes(root: Path) -> FoundNodes:
    """Search below `root`; a missing root has no nodes. Raises nothing: an unreadable folder is a problem."""
    known: dict[Path, DriveIdentity] = {}
    problems: list[str] = []
    files: dict[str, node_file.NodeFile] = {}
    for folder in _folders(root, problems):
        file = node_file.read(folder)
        if file is not None:
            files[file.uuid] = file
        for drive in _folders(folder, problems):
            try:
                identity = identities.read(drive)
            except (StoreFormatError, OSError) as error:
                if _looks_like_a_drive(drive):
                    problems.append(str(error))
                continue
            if identity is not None:
                known[drive] = identity
    for drive in _given_up(known):
        del known[drive]
        problems.append(f"{drive}: its node has given this drive up; empty the folder to use it again")
    nodes = group_drives(known)
    gone = {uuid for uuid, file in files.items() if file.removed}
    present = {node.uuid for node in nodes}
    return FoundNodes(
        nodes=tuple(node for node in nodes if node.uuid not in gone),
        removed=tuple(node for node in nodes if node.uuid in gone),
        absent=tuple(sorted(set(files) - present - gone)),
        problems=tuple(problems),
    )


def group_drives(known: Mapping[Path, DriveIdentity]) -> list[NodeDrives]:
    """Group drives by node, in the order of each node's first drive."""
    by_store: dict[str, list[Path]] = {}
    for drive in sorted(known):
        by_store.setdefault(known[drive].store_uuid, []).append(drive)
    return [NodeDrives(uuid, tuple(drives)) for uuid, drives in by_store.items()]


def _given_up(known: Mapping[Path, DriveIdentity]) -> list[Path]:
    """Return the drives that no longer belong to their node, according to another drive of it."""
    newest: dict[str, StoreRecord] = {}
    for drive, identity in known.items():
        with contextlib.suppress(StoreFormatError, OSError):
            record, before = records.read(drive), newest.get(identity.store_uuid)
            if record is not None and (before is None or record.order > before.order):
                newest[identity.store_uuid] = record
    return [
        drive
        for drive, identity in known.items()
        if identity.store_uuid in newest and identity.drive_uuid in newest[identity.store_uuid].gone
    ]


def plan_new_nodes(root: Path, reserved: Iterable[str], nodes: int, drives_per_node: int) -> list[tuple[Path, ...]]:
    """Plan folders for the drives of new nodes, outside of folders that are in use."""
    if nodes < 0 or drives_per_node < 1:
        raise ValueError(f"nodes={nodes}, drives_per_node={drives_per_node}: need at least 0 and 1")
    used = set(reserved)
    planned: list[tuple[Path, ...]] = []
    number = 0
    while len(planned) < nodes:
        number += 1
        if f"node-{number}" not in used:
            folder = root / f"node-{number}"
            planned.append(tuple(folder / f"drive-{drive}" for drive in range(1, drives_per_node + 1)))
    return planned


def make_nodes(root: Path, nodes: int, drives_per_node: int) -> list[NodeDrives]:
    """Create new, empty nodes beside the existing ones. Raises LoaderError, OSError."""
    found = find_nodes(root)
    reserved = {drive.parent.name for node in (*found.nodes, *found.removed) for drive in node.drives}
    reserved |= {folder.name for folder in _folders(root, []) if node_file.read(folder) is not None}
    created = [make_node(drives) for drives in plan_new_nodes(root, reserved, nodes, drives_per_node)]
    return created


def make_node(drives: Sequence[Path]) -> NodeDrives:
    """Create a new store on empty or missing folders. Raises LoaderError."""
    with closing(Store.open(drives, mode="a")) as store:
        created = NodeDrives(store.store_uuid, tuple(sorted(drives)))
    return created


def wipe_node(node: NodeDrives) -> NodeDrives:
    """Empty a node's drives, and create a new node on them. Raises LoaderError, OSError.

    An interrupted call can be repeated: until everything is deleted, the node counts as removed.
    """
    file = node_file.read(node.folder)
    node_file.write(node.folder, node_file.NodeFile(node.uuid, file.endpoint if file is not None else "", removed=True))
    for drive in node.drives:
        for entry in drive.iterdir():
            # Keep the folder itself: a disk may be mounted there. The new node replaces the identities, by which a
            # repeated call finds the drives.
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != identities.FILE_NAME:
                entry.unlink()
    created = make_node(node.drives)
    (node.folder / node_file.FILE_NAME).unlink(missing_ok=True)
    return created


def _folders(parent: Path, problems: list[str]) -> list[Path]:
    try:
        return sorted(entry for entry in parent.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(f"{parent}: {error.strerror or error}")
        return []


def _looks_like_a_drive(folder: Path) -> bool:
    """Whether a folder seems to be a drive. Folders with other content are no problem."""
    try:
        return identities.is_drive_folder(folder)
    except (StoreFormatError, OSError):
        return True
