"""Dry run of `put`: lists the files that would be stored, with their objects' names, and changes nothing."""

from __future__ import annotations

import json

import click

from ais_loader.cli.put_plan import STDIN
from ais_loader.cli.show import Lines, count_text, fail, note, printable, size_text
from ais_loader.cli.stores import StoreChoice
from ais_loader.cli.targets import Target
from ais_loader.errors import BucketNotFound, StoreNotFound
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.equal_files import without_equal
from ais_loader.objects.folder_walk import PutPlan

_NAMES_PER_CALL = 1000


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
                plan.files, skipped = without_equal(bucket, plan.files)
            if if_absent:
                present = _without_present(bucket, plan)
    except (StoreNotFound, BucketNotFound) as error:
        if not may_create:
            if isinstance(error, BucketNotFound):
                raise type(error)(f"bucket {dest.bucket!r} does not exist; use --create-bucket to create it") from None
            raise
        made = ", which would be made"
    with Lines() as lines:
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
