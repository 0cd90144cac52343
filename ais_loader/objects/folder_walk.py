"""Walk of a folder whose files become objects: their names, and the files that cannot or shall not be stored."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


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
