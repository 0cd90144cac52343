"""`ais-loader exists` and `ais-loader set-metadata`: existence and metadata of objects."""

from __future__ import annotations

import json

import click

from ais_loader.cli.options import parse_metadata
from ais_loader.cli.show import info_fields, note, printable
from ais_loader.cli.stores import StoreChoice, Target, named_by, parse_object, parse_target, takes_store
from ais_loader.wire.reserved import of_client


@click.command()
@click.argument("targets", metavar="BUCKET[/NAME]...", nargs=-1, required=True, **named_by(parse_target))
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; use the exit code only.")
@takes_store
def exists(targets: tuple[Target, ...], quiet: bool, store: StoreChoice) -> None:
    """Check whether buckets and objects exist; the exit code is the answer.

    0: all of them exist. 3: one does not exist, and is named. 1: the store could not tell.
    """
    with store.reading() as client:
        buckets = {info.name for info in client.buckets()}
        missing = [target for target in targets if target.bucket not in buckets]
        for name in dict.fromkeys(target.bucket for target in targets if target.bucket in buckets):
            of_it = [target for target in targets if target.bucket == name and target.name]
            exist = client.bucket(name).exists_many([target.name for target in of_it])
            missing += [target for target, found in zip(of_it, exist, strict=True) if not found]
    if not quiet:
        for target in missing:
            note(f"{printable(str(target))} does not exist")
    if missing:
        raise click.exceptions.Exit(3)


@click.command(name="set-metadata")
@click.argument("target", metavar="BUCKET/NAME", **named_by(parse_object))
@click.argument("metadata", metavar="[KEY=VALUE]...", nargs=-1, callback=parse_metadata)
@click.option("--clear", is_flag=True, help="Remove all other keys.  [default: keep them]")
@click.option("--json", "as_json", is_flag=True, help="Show the updated object as one JSON object.")
@takes_store
def set_metadata(target: Target, metadata: dict[str, str], clear: bool, as_json: bool, store: StoreChoice) -> None:
    """Change an object's metadata, such as source=studio. Its bytes stay the same; its version changes.

    KEY= sets an empty value. Keys that begin with "ais." are set by the store alone, and stay.
    """
    if not metadata and not clear:
        raise click.UsageError("nothing to change: need KEY=VALUE, or --clear")
    with store.writing(create=False) as client:
        bucket = client.bucket(target.bucket)
        before = bucket.head(target.name)
        kept = {} if clear else of_client(before.metadata)
        # Only if no other client has changed it meanwhile: its change would be lost.
        info = bucket.set_metadata(target.name, kept | metadata, if_version=before.version)
    if as_json:
        click.echo(json.dumps(info_fields(info)))
