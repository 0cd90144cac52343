"""Put plan: the files that a `put` stores, and their objects' names, determined before anything is stored."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

import click

from ais_loader.cli.show import printable
from ais_loader.cli.targets import Target
from ais_loader.objects.folder_walk import FileToStore, PutPlan, add_file, identity_of, walk_folder
from ais_loader.objects.folders import chooser

STDIN = "-"


def plan_put(
    sources: Sequence[str],
    dest: Target,
    *,
    recursive: bool,
    follow_links: bool,
    store_folders: Sequence[str] = (),
    hidden: bool = False,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
) -> PutPlan:
    """Plan all sources, walking folders. Raises click.UsageError for contradictory arguments."""
    if (hidden or include or exclude) and not recursive:
        raise click.UsageError("--hidden, --include and --exclude need -r")
    many = recursive or len(sources) > 1
    prefix = dest.name
    wanted = chooser(include, exclude)
    if many and prefix and not prefix.endswith("/"):
        if not recursive:
            raise click.UsageError(
                f"with several sources, DEST must be a bucket or a folder: {dest}/ instead of {dest}"
            )
        prefix += "/"
    names_whole = bool(prefix) and not prefix.endswith("/")
    plan = PutPlan()
    own = {identity for folder in store_folders if (identity := identity_of(folder))}
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
            walk_folder(source, prefix, plan, own, follow_links=follow_links, hidden=hidden, wanted=wanted)
            continue
        is_stream = not stat.S_ISREG(found.st_mode)
        if is_stream and not names_whole:
            raise click.UsageError(f"{printable(source)} is not a regular file: give the object's whole name")
        name = prefix if names_whole else prefix + os.path.basename(source)
        add_file(plan, FileToStore(source, name, 0 if is_stream else found.st_size, is_stream))
    _refuse_collisions(plan.files)
    return plan


def _refuse_collisions(files: Sequence[FileToStore]) -> None:
    path_of: dict[str, str] = {}
    for file in files:
        other = path_of.setdefault(file.name, file.path)
        if other is not file.path:
            raise click.UsageError(
                f"{printable(other)} and {printable(file.path)} would both become {printable(file.name)!r}; "
                "with -r on their common folder, names begin below it"
            )
