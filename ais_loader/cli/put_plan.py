"""Put plan: the files that a `put` stores, and their objects' names, found out before anything is stored."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import click

from ais_loader.cli.show import printable
from ais_loader.cli.targets import Target

STDIN = "-"


@dataclass(frozen=True, slots=True)
class FileToStore:
    """A file and the name of the object that it becomes. `is_stream`: read once, of unknown size."""

    path: str
    name: str
    size_bytes: int
    is_stream: bool = False


@dataclass(slots=True)
class PutPlan:
    """What is to be stored, and what was found but cannot or shall not be."""

    files: list[FileToStore] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    """(path, reason)"""
    left_out: Counter[str] = field(default_factory=Counter)
    """How many were left out on purpose, by what they are."""


def plan_put(
    sources: Sequence[str], dest: Target, *, recursive: bool, follow_links: bool, store_folders: Sequence[str] = ()
) -> PutPlan:
    """Look at every source; folders are walked. Raises click.UsageError for a command line that cannot be meant."""
    many = recursive or len(sources) > 1
    prefix = dest.name
    if many and prefix and not prefix.endswith("/"):
        if not recursive:
            raise click.UsageError(f"several sources need a bucket or a prefix to go to: {dest}/ rather than {dest}")
        prefix += "/"
    names_whole = bool(prefix) and not prefix.endswith("/")
    plan = PutPlan()
    own = {identity for folder in store_folders if (identity := _identity(folder))}
    for source in sources:
        if source == STDIN:
            if not names_whole:
                raise click.UsageError(f"standard input has no name: give the object's, as in {dest.bucket}/NAME")
            plan.files.append(FileToStore(STDIN, prefix, 0, is_stream=True))
            continue
        try:
            found = os.stat(source)
        except OSError as error:
            plan.failures.append((source, error.strerror or str(error)))
            continue
        if stat.S_ISDIR(found.st_mode):
            if not recursive:
                raise click.UsageError(f"{printable(source)} is a folder; -r stores the files in it")
            if (found.st_dev, found.st_ino) in own:
                raise click.UsageError(f"{printable(source)} is the store itself")
            _walk(source, prefix, plan, own, follow_links=follow_links)
            continue
        is_stream = not stat.S_ISREG(found.st_mode)
        if is_stream and not names_whole:
            raise click.UsageError(f"{printable(source)} is not a regular file: give the object's whole name")
        name = prefix if names_whole else prefix + os.path.basename(source)
        _add(plan, FileToStore(source, name, 0 if is_stream else found.st_size, is_stream))
    _refuse_collisions(plan.files)
    return plan


def _add(plan: PutPlan, file: FileToStore) -> None:
    try:
        file.name.encode()
    except UnicodeEncodeError:
        plan.failures.append((file.path, "its name is not UTF-8, so it cannot be the name of an object"))
    else:
        plan.files.append(file)


def _refuse_collisions(files: Sequence[FileToStore]) -> None:
    path_of: dict[str, str] = {}
    for file in files:
        other = path_of.setdefault(file.name, file.path)
        if other is not file.path:
            raise click.UsageError(
                f"{printable(other)} and {printable(file.path)} would both become {printable(file.name)!r}; "
                "with -r on their common folder, names begin below it"
            )


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _walk(top: str, prefix: str, plan: PutPlan, own: set[tuple[int, int]], *, follow_links: bool) -> None:
    """Every file below `top`, in the order of paths; names are relative to `top`."""
    waiting: list[tuple[str, str, frozenset[tuple[int, int] | None]]] = [(top, prefix, frozenset({_identity(top)}))]
    while waiting:
        folder, name_prefix, above = waiting.pop()
        below = []
        for entry in _listing(folder, plan):
            name = name_prefix + entry.name
            try:
                if entry.is_symlink() and not follow_links:
                    plan.left_out["symbolic link"] += 1
                elif entry.is_dir():
                    identity = _identity(entry.path)
                    if identity in above:
                        plan.failures.append((entry.path, "this symbolic link leads back to a folder that it is in"))
                    elif identity in own:
                        plan.left_out["store folder"] += 1
                    else:
                        below.append((entry.path, name + "/", above | {identity}))
                elif entry.is_file():
                    _add(plan, FileToStore(entry.path, name, entry.stat().st_size))
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
