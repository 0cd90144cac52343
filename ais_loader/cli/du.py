"""`ais-loader du`: how much a bucket holds, in all and by folders."""

from __future__ import annotations

import json

import click

from ais_loader.cli.show import Lines, count_text, note, printable, size_text
from ais_loader.cli.stores import StoreChoice, takes_store
from ais_loader.cli.targets import Target, parse_target, parsed_by


@click.command()
@click.argument("prefix", metavar="BUCKET[/PREFIX]", callback=parsed_by(parse_target))
@click.option(
    "--depth",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Tell folders apart up to this many levels below PREFIX; 0: the sum alone.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with sizes in bytes.")
@takes_store
def du(prefix: Target, depth: int, as_json: bool, store: StoreChoice) -> None:
    """Count objects and their bytes, without copies.

    PREFIX is the beginning of names, as in `ls`. An object counts for the deepest folder shown that it is in, so the
    lines add up to the last one. Exit code 1 when so many nodes are silent that objects may be missing.
    """
    with store.reading() as client:
        found = client.bucket(prefix.bucket).summary(prefix.name, depth=depth)
    if as_json:
        by_prefix = {
            name: {"objects": one.objects, "size_bytes": one.size_bytes} for name, one in found.by_prefix.items()
        }
        click.echo(
            json.dumps(
                {
                    "bucket": found.bucket,
                    "prefix": found.prefix,
                    "objects": found.objects,
                    "size_bytes": found.size_bytes,
                    "by_prefix": by_prefix,
                    "complete": found.complete,
                    "silent": list(found.silent),
                }
            )
        )
    else:
        with Lines() as lines:
            for name, one in found.by_prefix.items():
                lines.add(_line(one.size_bytes, one.objects, f"{found.bucket}/{name}"))
            lines.add(_line(found.size_bytes, found.objects, f"{found.bucket}/{found.prefix} in all"))
    for silent in found.silent:
        note(f"silent: {printable(silent)}")
    if not found.complete:
        raise click.ClickException("objects may be missing from these sums: all their copies may be on silent nodes")


def _line(size_bytes: int, objects: int, name: str) -> str:
    return f"{size_text(size_bytes):>10}  {count_text(objects, 'object'):>16}  {printable(name)}"
