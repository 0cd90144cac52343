"""`ais-loader rm`: delete objects by name, or all that are below a name."""

from __future__ import annotations

from collections.abc import Iterable

import click

from ais_loader.cli.show import confirmed, count_text, fail, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, takes_store
from ais_loader.cli.targets import Target, parse_target, parsed_by
from ais_loader.client import Client
from ais_loader.entry import ObjectInfo
from ais_loader.errors import LoaderError

_EXAMPLES = 3


@click.command()
@click.argument("targets", metavar="OBJECT...", nargs=-1, required=True, callback=parsed_by(parse_target))
@click.option("-r", "--recursive", is_flag=True,
              help="OBJECT is BUCKET or BUCKET/FOLDER: delete the objects below it. Asks first.")  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="With -r: do not ask.")
@takes_store
def rm(targets: tuple[Target, ...], recursive: bool, yes: bool, store: StoreChoice) -> None:
    """Delete objects.

    With -r, speech/en means what is named speech/en/..., not speech/english.txt, and speech all objects of that
    bucket; the bucket stays (see `ais-loader bucket rm`). An object that cannot be deleted is reported, and the others
    are deleted.
    """
    if not recursive:
        for target in targets:
            if not target.name:
                raise click.UsageError(
                    f"{target} is a bucket: -r deletes the objects in it, `ais-loader bucket rm` the bucket"
                )
    with store.writing(create=False) as client:
        names: Iterable[Target] = targets
        if recursive:
            found = [info for target in targets for info in _below(client, target)]
            if not found:
                shown = ", ".join(printable(str(target)) for target in targets)
                raise click.ClickException(f"no objects below {shown}")
            if not yes and not _agreed(found):
                note("nothing deleted")
                raise click.exceptions.Exit(1)
            names = dict.fromkeys(Target(info.bucket, info.name) for info in found)
        failed = _delete(client, list(names))
    if failed:
        raise click.exceptions.Exit(1)


def _below(client: Client, target: Target) -> Iterable[ObjectInfo]:
    folder = target.name if not target.name or target.name.endswith("/") else target.name + "/"
    return client.bucket(target.bucket).objects(folder)


def _agreed(found: list[ObjectInfo]) -> bool:
    for info in found[:_EXAMPLES]:
        note(f"  {printable(f'{info.bucket}/{info.name}')}")
    if len(found) > _EXAMPLES:
        note(f"  and {len(found) - _EXAMPLES:,} more")
    size = size_text(sum(info.size_bytes for info in found))
    return confirmed(f"Delete {count_text(len(found), 'object')} ({size})?")


def _delete(client: Client, names: list[Target]) -> int:
    """How many could not be deleted."""
    failed = 0
    with progress(len(names), unit=" objects") as bar:
        for target in names:
            try:
                client.bucket(target.bucket).delete(target.name)
            except LoaderError as error:
                if error.retryable:
                    raise  # nobody answers: the next one would fare no better
                failed += 1
                fail(f"{printable(str(target))}: {error}")
            bar.update()
    note(f"deleted {count_text(len(names) - failed, 'object')}")
    if failed:
        note(f"failed: {count_text(failed, 'object')}")
    return failed
