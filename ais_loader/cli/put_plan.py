"""Put plan: the files that a `put` stores, and their objects' names, determined before anything is stored, and shown by
--dry-run."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence

import click

from ais_loader.cli.show import OutputLines, count_text, fail, note, printable, size_text
from ais_loader.cli.stores import StoreChoice
from ais_loader.cli.targets import Target
from ais_loader.errors import BucketNotFound, StoreNotFound
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.equal_files import without_equal
from ais_loader.objects.folder_walk import FileToStore, PutPlan, add_file, identity_of, walk_folder
from ais_loader.objects.folders import chooser

STDIN = "-"
_NAMES_PER_CALL = 1000


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


def show_plan(
    plan: PutPlan,
    dest: Target,
    store: StoreChoice,
    *,
    may_create: bool,
    skip_equal: bool,
    if_absent: bool,
    as_json: bool,
) -> None:
    """Print one line per file to standard output. Exits with 1 if the command would fail without --dry-run."""
    skipped = present = 0
    made = ""
    try:
        with store.reading() as client:
            bucket = client.bucket(dest.bucket)
            bucket.info()
            if skip_equal:
                plan.files, skipped = without_equal(bucket._transport, bucket.name, plan.files)
            if if_absent:
                present = _without_present(bucket, plan)
    except (StoreNotFound, BucketNotFound) as error:
        if not may_create:
            if isinstance(error, BucketNotFound):
                raise type(error)(f"bucket {dest.bucket!r} does not exist; use --create-bucket to create it") from None
            raise
        made = ", which would be made"
    with OutputLines() as lines:
        for file in plan.files:
            if as_json:
                planned = {"source": file.path, "bucket": dest.bucket, "name": file.name, "size_bytes": file.size_bytes}
                lines.add(json.dumps(planned))
            else:
                source = "standard input" if file.path == STDIN else printable(file.path)
                lines.add(f"{source} -> {printable(f'{dest.bucket}/{file.name}')}")
    for path, reason in plan.failures:
        fail(f"{printable(path)}: {printable(reason)}")
    size = size_text(sum(file.size_bytes for file in plan.files))
    count = count_text(len(plan.files), "object")
    note(f"would store {count} in bucket {dest.bucket}{made} ({size}); nothing was stored")
    if skipped:
        note(f"already there with the same bytes: {count_text(skipped, 'file')}")
    if present:
        note(f"already there, not replaced: {count_text(present, 'object')}")
    note_left_out(plan)
    if plan.failures:
        raise click.exceptions.Exit(1)


def _without_present(bucket: Bucket, plan: PutPlan) -> int:
    """Remove files whose objects exist from the plan. Return their number."""
    left = []
    for first in range(0, len(plan.files), _NAMES_PER_CALL):
        files = plan.files[first : first + _NAMES_PER_CALL]
        found = bucket.exists_many([file.name for file in files])
        left += [file for file, exists in zip(files, found, strict=True) if not exists]
    present, plan.files = len(plan.files) - len(left), left
    return present


_LEFT_OUT = {
    "symbolic link": ("symbolic link", "; --follow-links follows them"),
    "hidden file or folder": ("hidden name", "; --hidden includes them"),
    "file that is not wanted": ("file", " by --include and --exclude"),
}


def note_left_out(plan: PutPlan) -> None:
    """Report what a walk skipped on purpose, and the option that would include it."""
    for what, count in plan.left_out.items():
        noun, remark = _LEFT_OUT.get(what, (what, ""))
        note(f"skipped: {count_text(count, noun)}{remark}")
