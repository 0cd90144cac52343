"""`ais-loader rm`: deletes objects by name, from a list, or everything in a folder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import IO

import click

from ais_loader.cli.batch_list import parse_list
from ais_loader.cli.show import confirmed, count_text, fail, note, printable, progress, size_text
from ais_loader.cli.stores import (
    StoreChoice,
    Target,
    named_by,
    no_pattern,
    options_of_command,
    parse_target,
    takes_store,
    with_hint,
)
from ais_loader.errors import LoaderError, ObjectNotFound
from ais_loader.objects.client import Client
from ais_loader.values.entry import ObjectInfo

_EXAMPLES = 3


@click.command()
@click.argument("targets", metavar="[OBJECT...]", nargs=-1, **named_by(parse_target))
@click.option(
    "-r",
    "--recursive",
    is_flag=True,
    help="OBJECT is BUCKET or BUCKET/FOLDER: delete the objects in it. Asks first.",
)
@click.option("--prefix", "begins", is_flag=True, help="With -r: OBJECT is a name prefix, not a folder.")
@click.option("-y", "--yes", is_flag=True, help="With -r: do not ask.")
@click.option(
    "--list",
    "list_file",
    metavar="FILE",
    type=click.File("rb"),
    help="Delete the objects named in FILE, or - for standard input: one a line, or lines of "
    "`ls --json`, whose versions do not matter.",
)
@takes_store
def rm(
    targets: tuple[Target, ...],
    recursive: bool,
    begins: bool,
    yes: bool,
    list_file: IO[bytes] | None,
    store: StoreChoice,
) -> None:
    """Delete objects, thousands with one request.

    With -r, speech/en means the objects named speech/en/..., not speech/english.txt, and speech means all objects in
    that bucket; the bucket itself stays (see `ais-loader bucket rm`). You can rerun -r after an interruption. An
    object that cannot be deleted is reported, and the others are deleted.
    """
    if not targets and list_file is None:
        raise click.UsageError("need OBJECT or --list FILE")
    if begins and not recursive:
        raise click.UsageError("--prefix needs -r: it deletes all objects whose names begin with OBJECT")
    if recursive:
        if list_file is not None:
            raise click.UsageError("--list and -r cannot be combined")
        with store.writing(create=False) as client:
            _delete_below(client, targets, yes=yes, begins=begins)
        return
    for target in targets:
        if not target.name:
            raise click.UsageError(
                f"{target} is a bucket; use -r to delete its objects, or `ais-loader bucket rm` to delete the bucket"
            )
    names = [*targets, *(_listed(list_file) if list_file is not None else ())]
    with store.writing(create=False) as client:
        if _delete(client, names):
            raise click.exceptions.Exit(1)


def _listed(list_file: IO[bytes]) -> list[Target]:
    origin = str(getattr(list_file, "name", "standard input"))
    entries = parse_list(list_file, origin)
    for entry in entries:
        if entry.member is not None or entry.start or entry.length is not None:
            raise click.ClickException(
                f"{origin}: {entry.bucket}/{entry.name}: need whole objects, without member or range"
            )
    return [Target(entry.bucket, entry.name) for entry in entries]


def _delete_below(client: Client, targets: Sequence[Target], *, yes: bool, begins: bool) -> None:
    folders: list[Target] = []
    for target in sorted({Target(one.bucket, one.name if begins else one.folder) for one in targets}, key=str):
        if not any(target.bucket == other.bucket and target.name.startswith(other.name) for other in folders):
            folders.append(target)
    found = itertools.chain.from_iterable(
        client.bucket(folder.bucket).objects(folder.name, page_size=_EXAMPLES) for folder in folders
    )
    examples = list(itertools.islice(found, 1 if yes else _EXAMPLES))
    if not examples:
        shown = ", ".join(printable(str(target)) for target in targets)
        raise click.ClickException(f"no objects below {shown}")
    if not yes and not _agreed(client, folders, examples):
        note("nothing deleted")
        raise click.exceptions.Exit(1)
    deleted = 0
    for folder in folders:
        deleted += client.bucket(folder.bucket).delete_prefix(folder.name, everything=not folder.name).deleted
    note(f"deleted {count_text(deleted, 'object')}")


def _agreed(client: Client, folders: Sequence[Target], examples: Sequence[ObjectInfo]) -> bool:
    sums = [client.bucket(folder.bucket).summary(folder.name, depth=0) for folder in folders]
    count, size_bytes = sum(one.objects for one in sums), sum(one.size_bytes for one in sums)
    for info in examples:
        note(f"  {printable(f'{info.bucket}/{info.name}')}")
    if count > len(examples):
        note(f"  and {count - len(examples):,} more")
    return confirmed(f"Delete {count_text(count, 'object')} ({size_text(size_bytes)})?")


def _delete(client: Client, names: Sequence[Target]) -> int:
    """Delete the objects; return the number of failures."""
    failed = 0
    with progress(len(names), unit=" objects") as bar:
        for bucket, group in itertools.groupby(names, key=lambda target: target.bucket):
            mine = [target.name for target in group]
            for name, result in zip(mine, client.bucket(bucket).iter_delete_many(mine, on_error="yield"), strict=True):
                if isinstance(result, LoaderError):
                    if result.retryable:
                        raise result  # no node answers: the next one would fail too
                    failed += 1
                    hint = no_pattern(name, options_of_command()) if isinstance(result, ObjectNotFound) else None
                    reason = with_hint(str(result), hint) if hint else str(result)
                    fail(f"{printable(f'{bucket}/{name}')}: {reason}")
                bar.update()
    note(f"deleted {count_text(len(names) - failed, 'object')}")
    if failed:
        note(f"failed: {count_text(failed, 'object')}")
    return failed
