"""Walk of a folder whose files become objects: their names, the files that cannot or shall not be stored, and those
that are equal to their objects, which an interrupted put or download does not have to repeat."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ais_loader.transport.base import Transport
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.checksum import crc32c


@dataclass(frozen=True, slots=True)
class FileToStore:
    """A file, and the name of the object that it becomes. `is_stream`: can be read only once, of unknown size."""

    path: str
    name: str
    size_bytes: int
    is_stream: bool = False


@dataclass(slots=True)
class PutPlan:
    """Files to be stored, and files that cannot or shall not be."""

    files: list[FileToStore] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason)"""
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of files left out on purpose, by kind."""


def add_file(plan: PutPlan, file: FileToStore) -> None:
    """Add a file to the plan; as a failure, if no object can have its name."""
    try:
        file.name.encode()
    except UnicodeEncodeError:
        plan.failures.append((file.path, "its name is not UTF-8, so it cannot be the name of an object"))
    else:
        plan.files.append(file)


def identity_of(path: str) -> tuple[int, int] | None:
    """Return the identity of the file at the path, after following links; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _everything(path: str) -> bool:
    return True


def walk_folder(
    top: str,
    prefix: str,
    plan: PutPlan,
    own: set[tuple[int, int]],
    *,
    follow_links: bool,
    hidden: bool = True,
    wanted: Callable[[str], bool] = _everything,
) -> None:
    """Add every file below `top` to the plan, sorted by path; names are relative to `top`.

    Args:
        own: identities of the store's own folders, which are left out.
        hidden: include files and folders whose names begin with a dot.
        wanted: decides whether to include a file, by its path below `top`.
    """
    waiting: list[tuple[str, str, frozenset[tuple[int, int] | None]]] = [(top, prefix, frozenset({identity_of(top)}))]
    while waiting:
        folder, name_prefix, above = waiting.pop()
        below = []
        for entry in _listing(folder, plan):
            name = name_prefix + entry.name
            if not hidden and entry.name.startswith("."):
                plan.left_out["hidden file or folder"] += 1
                continue
            try:
                if entry.is_symlink() and not follow_links:
                    plan.left_out["symbolic link"] += 1
                elif entry.is_dir():
                    identity = identity_of(entry.path)
                    if identity in above:
                        plan.failures.append((entry.path, "this symbolic link leads back to a folder that it is in"))
                    elif identity in own:
                        plan.left_out["store folder"] += 1
                    else:
                        below.append((entry.path, name + "/", above | {identity}))
                elif entry.is_file() and not wanted(name[len(prefix) :]):
                    plan.left_out["file that is not wanted"] += 1
                elif entry.is_file():
                    add_file(plan, FileToStore(entry.path, name, entry.stat().st_size))
                elif entry.is_symlink():
                    plan.failures.append((entry.path, "this symbolic link leads nowhere"))
                else:
                    plan.left_out["special file"] += 1
            except OSError as error:
                plan.failures.append((entry.path, error.strerror or str(error)))
        waiting.extend(reversed(below))


def _listing(folder: str, plan: PutPlan) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        plan.failures.append((folder, error.strerror or str(error)))


_PIECE_BYTES = 4 << 20


def without_equal(transport: Transport, bucket: str, files: Sequence[FileToStore]) -> tuple[list[FileToStore], int]:
    """Return the files that are still to be stored, in their order, and the number of those that are not.

    Costs one listing of the names' common prefix, and reading those files whose size is that of their object. A file
    that cannot be read is left to the `put`, which reports the reason. Raises LoaderError.
    """
    stored = _stored(transport, bucket, [file.name for file in files if not file.is_stream])
    left = [file for file in files if not _is_equal(file, stored.get(file.name))]
    return left, len(files) - len(left)


def _stored(transport: Transport, bucket: str, names: Sequence[str]) -> dict[str, ObjectInfo]:
    wanted = set(names)
    infos: Iterator[ObjectInfo] = transport.objects(bucket, prefix=_common_prefix(names)) if names else iter(())
    return {info.name: info for info in infos if info.name in wanted}


def _common_prefix(names: Sequence[str]) -> str:
    """Return the longest common prefix of the names."""
    return os.path.commonprefix([min(names), max(names)])  # noqa: RUF071 - prefixes of names, not of paths


def _is_equal(file: FileToStore, info: ObjectInfo | None) -> bool:
    if info is None or file.is_stream:
        return False
    return file.size_bytes == info.size_bytes and holds(file.path, info.size_bytes, info.checksum)


def holds(path: str, size_bytes: int, checksum: int) -> bool:
    """Whether a file has bytes of this size and CRC-32C; False if it cannot be read."""
    found = read_bytes = 0
    try:
        with open(path, "rb") as opened:
            if os.fstat(opened.fileno()).st_size != size_bytes:
                return False
            while piece := opened.read(_PIECE_BYTES):
                found, read_bytes = crc32c(piece, found), read_bytes + len(piece)
    except OSError:
        return False
    return (read_bytes, found) == (size_bytes, checksum)
