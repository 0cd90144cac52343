"""Store folders: drives, and a cluster's own folder, from which nothing is promoted under any name.

A folder is identified by its location in its file system: a symbolic link or a bind mount reaches the same location
under another name. In addition, a folder with a drive's identity file is a drive, whichever process has it open.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from ais_loader.errors import InvalidRequest, SourceRefused, StoreFormatError
from storage_node.store.drive import identity as identities
from storage_node.store.store import Store

CLUSTER_FOLDER = ".cluster"
"""Folder beside the nodes' folders, with settings and secrets."""
_INSIDE = ("objects", "staging", "catalog", "members", "cold-members")
_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(rb"\\([0-7]{3})")


class _Place(NamedTuple):
    """The location of a folder in its own file system."""

    device: bytes
    way: tuple[bytes, ...]

    def holds(self, other: _Place) -> bool:
        return self.device == other.device and other.way[: len(self.way)] == self.way

    def touches(self, other: _Place) -> bool:
        return self.holds(other) or other.holds(self)


class _Mount(NamedTuple):
    at: tuple[bytes, ...]
    place: _Place


def _mounts() -> list[_Mount]:
    """Return the mounts in the order in which they were made; none if the system does not list them."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        fields = line.split(b" ")
        root, at = (_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field) for field in fields[3:5])
        found.append(_Mount(_parts(at), _Place(fields[2], _parts(root))))
    return found


def _parts(path: bytes) -> tuple[bytes, ...]:
    return tuple(part for part in path.split(b"/") if part)


def _place(real: bytes, mounts: Sequence[_Mount]) -> _Place:
    """Return the location of a path without links."""
    parts = _parts(real)
    best = _Mount((), _Place(b"", ()))
    for mount in mounts:
        if len(mount.at) >= len(best.at) and parts[: len(mount.at)] == mount.at:
            best = mount
    return _Place(best.place.device, (*best.place.way, *parts[len(best.at) :]))


def _mounted_below(real: bytes, mounts: Sequence[_Mount]) -> list[_Mount]:
    parts = _parts(real)
    return [mount for mount in mounts if len(mount.at) > len(parts) and mount.at[: len(parts)] == parts]


class StoreFolders:
    """The store's own folders. Belongs to one thread and one promotion, since drives come and go."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self._mounts = _mounts()
        real = [os.path.realpath(os.fsencode(folder)) for folder in folders]
        self._places = [_place(path, self._mounts) for path in real]
        self._own: set[tuple[int, int]] = set()
        for path in real:
            for inside in (b"", *map(os.fsencode, _INSIDE)):
                self._add(os.path.join(path, inside))

    def _add(self, path: bytes) -> None:
        with contextlib.suppress(OSError):
            found = os.stat(path)
            self._own.add((found.st_dev, found.st_ino))

    def require_outside(self, fd: int) -> None:
        """Raise SourceRefused for an open folder that is one of a store's, or lies in one."""
        real = os.path.realpath(os.fsencode(f"/proc/self/fd/{fd}"))
        place = _place(real, self._mounts)
        folders = [Path(os.fsdecode(real)), *Path(os.fsdecode(real)).parents]
        if any(own.holds(place) for own in self._places) or any(map(_is_store_folder, folders)):
            raise SourceRefused("lies in a drive of a store, or in a cluster's own folder")
        for mount in _mounted_below(real, self._mounts):
            if any(own.holds(mount.place) for own in self._places):
                self._add(b"/" + b"/".join(mount.at))

    def is_one(self, fd: int, name: str) -> bool:
        """Return whether an open folder met by the walk belongs to a store. Raises OSError."""
        found = os.fstat(fd)
        return (found.st_dev, found.st_ino) in self._own or name == CLUSTER_FOLDER or _has_identity(fd)


def _has_identity(fd: int) -> bool:
    try:
        os.stat(identities.FILE_NAME, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return _is_store_folder(Path(f"/proc/self/fd/{fd}"))


def _is_store_folder(folder: Path) -> bool:
    if folder.name == CLUSTER_FOLDER:
        return True
    try:
        return (folder / identities.FILE_NAME).is_file() and identities.read(folder) is not None
    except (OSError, StoreFormatError):
        return False


def of_store(store: Store) -> list[Path]:
    """Return the folders of all drives, including those that do not work now, and of the cluster that the store is part
    of."""
    roots = [slot.root for slot in store.drive_set.slots if slot.root is not None]
    return [*roots, *cluster_folders(roots)]


def cluster_folders(roots: Iterable[Path]) -> list[Path]:
    above = dict.fromkeys(folder / CLUSTER_FOLDER for root in roots for folder in root.parents)
    return [folder for folder in above if folder.is_dir()]


def require_apart(
    promote_roots: Sequence[str],
    folders: Sequence[Path],
    command_paths: Sequence[str] = (),
    file_roots: Sequence[str] = (),
) -> None:
    """Raise InvalidRequest if a folder to promote from, one that commands may read, or one of remote storage contains
    one of the store's, or lies in one."""
    reasons = {
        "promote_roots": "what is promoted, or moved, would be the store itself",
        "etl_command_paths": "clients could read the store itself by their commands",
        "remote_file_roots": "clients could read and change it as a remote bucket",
    }
    mounts = _mounts()
    for setting, root in [
        *(("promote_roots", root) for root in promote_roots),
        *(("etl_command_paths", path) for path in command_paths),
        *(("remote_file_roots", path) for path in file_roots),
    ]:
        real = os.path.realpath(os.fsencode(root))
        places = [_place(real, mounts), *(mount.place for mount in _mounted_below(real, mounts))]
        for folder in folders:
            own = os.path.realpath(os.fsencode(folder))
            of_folder = [_place(own, mounts), *(mount.place for mount in _mounted_below(own, mounts))]
            if any(place.touches(other) for place in places for other in of_folder):
                raise InvalidRequest(
                    f"{setting}: {root} and {folder}, which is the store's own, lie in each other: {reasons[setting]}"
                )
