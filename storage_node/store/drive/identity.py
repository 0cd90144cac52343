"""Drive identity: `drive.json`, written once, when the drive joins a store."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path

from ais_loader.errors import StoreFormatError
from ais_loader.wire.node_folder import FOLDER_NAME as NODE_FOLDER_NAME
from storage_node.store import store_record as records
from storage_node.store.files.growing_file import sync_folder, write_atomically
from storage_node.store.format import FORMAT_VERSION

FILE_NAME = "drive.json"
LEFT_FILE_NAME = "left.json"
"""Replaces `drive.json` and `record.json` after a drive has left its store."""
CLUSTER_FILE_NAME = "cluster.json"
"""Written by a node in a cluster; the store itself does not use it."""
SECRET_FILE_NAME = "peer-secret"
"""Generated secret of a node without a configured one; the store itself does not use it."""

_STORED = {"catalog", "objects", "staging", "members", records.FILE_NAME, CLUSTER_FILE_NAME}
_ASIDE = "catalog."
_UNFINISHED = {
    FILE_NAME + ".new",
    records.FILE_NAME + ".new",
    CLUSTER_FILE_NAME + ".new",
    LEFT_FILE_NAME + ".new",
    SECRET_FILE_NAME,
    NODE_FOLDER_NAME,
    "lost+found",
}


@dataclass(frozen=True, slots=True)
class DriveIdentity:
    """Identity of a drive; uuids in hex."""

    drive_uuid: str
    store_uuid: str


def read(root: Path) -> DriveIdentity | None:
    """Return the drive's identity; None if the folder is missing, empty, or left by an interrupted creation.

    Raises StoreFormatError if the folder has foreign contents, or if a drive's identity is lost or damaged.
    """
    path = root / FILE_NAME
    names = _names(root)
    if FILE_NAME not in names:
        names = _names(root)  # a store being created writes its identity first
    if LEFT_FILE_NAME in names:
        raise StoreFormatError(_left_message(root))
    if FILE_NAME in names:
        return _decode(path.read_bytes(), path)
    if names:
        if foreign := _foreign(names):
            shown = ", ".join(sorted(foreign)[:3])
            raise StoreFormatError(
                f"{root} is not a store, and not empty either ({shown}); look at the path, or give an empty or new "
                "folder"
            )
        if names & _STORED:
            # Identities are written before anything else, so this one existed and was lost.
            raise StoreFormatError(
                f"{path} is missing from a drive in use; `ais-loader doctor --rebuild` writes it anew"
            )
    return None


def left(root: Path) -> str | None:
    """Return why a folder is no longer a drive; None for any other. Raises StoreFormatError as `read` does."""
    return _left_message(root) if LEFT_FILE_NAME in _names(root) else None


def _left_message(root: Path) -> str:
    return f"{root} was a drive of a store, and was retired; empty the folder to use it again"


def is_drive_folder(root: Path) -> bool:
    """Whether a folder is a drive, or was one that has lost some of its own files."""
    names = _names(root)
    if LEFT_FILE_NAME in names:
        return False
    return FILE_NAME in names or (bool(names & _STORED) and not _foreign(names))


def _names(root: Path) -> set[str]:
    try:
        return {entry.name for entry in root.iterdir()}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        raise not_a_folder(root) from None


def not_a_folder(root: Path) -> StoreFormatError:
    """Return the error for a store folder that is a file, or below one."""
    file = next((path for path in (root, *root.parents) if path.is_file()), root)
    below = "" if file == root else f", and nothing can be at {root}"
    return StoreFormatError(f"{file} is not a folder{below}: a store consists of one folder or several")


def _foreign(names: set[str]) -> set[str]:
    return {name for name in names - _STORED - _UNFINISHED if not name.startswith(_ASIDE)}


def _decode(data: bytes, path: Path) -> DriveIdentity:
    try:
        fields = json.loads(data)
        if fields["format"] != FORMAT_VERSION:
            raise StoreFormatError(f"{path}: format {fields['format']}; this version reads format {FORMAT_VERSION}")
        identity = DriveIdentity(fields["drive_uuid"], fields["store_uuid"])
        if len(bytes.fromhex(identity.drive_uuid)) != 16 or len(bytes.fromhex(identity.store_uuid)) != 16:
            raise ValueError("a uuid is not 16 bytes of hex")
        return identity
    except (ValueError, KeyError, TypeError) as error:
        raise StoreFormatError(
            f"{path}: not a drive identity ({error}); `ais-loader doctor --rebuild` writes it anew"
        ) from error


def create(store_uuid: str) -> DriveIdentity:
    return DriveIdentity(uuid.uuid4().hex, store_uuid)


def write(root: Path, identity: DriveIdentity) -> None:
    """Write the identity atomically and durably. Raises OSError."""
    fields = {"format": FORMAT_VERSION, "drive_uuid": identity.drive_uuid, "store_uuid": identity.store_uuid}
    write_atomically(root / FILE_NAME, json.dumps(fields).encode())


def mark_left(root: Path, identity: DriveIdentity) -> None:
    """Record in its folder that a drive has left its store. Raises OSError."""
    fields = {"format": FORMAT_VERSION, "drive_uuid": identity.drive_uuid, "store_uuid": identity.store_uuid}
    write_atomically(root / LEFT_FILE_NAME, json.dumps(fields).encode())
    for name in (FILE_NAME, records.FILE_NAME):
        (root / name).unlink(missing_ok=True)
    sync_folder(root)
