"""`ais-loader du`: the sizes of buckets, in total and by folder."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from ais_loader.cli.show import OutputLines, count_text, note, printable, size_text, waiting
from ais_loader.cli.stores import StoreChoice, Target, named_by, parse_target, takes_store
from ais_loader.values.summary import BucketSummary


@click.command()
@click.argument("target", metavar="[BUCKET[/FOLDER]]", required=False, **named_by(parse_target))
@click.option(
    "--depth",
    metavar="N",
    type=click.IntRange(min=0),
    help="Show this many levels of folders below FOLDER; 0: the total only.  [default: 1; of all buckets, 0]",
)
@click.option("--prefix", "begins", is_flag=True, help="FOLDER is a name prefix: count all names that begin with it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each bucket, with sizes in bytes.")
@takes_store
def du(target: Target | None, depth: int | None, begins: bool, as_json: bool, store: StoreChoice) -> None:
    """Count objects and bytes; copies are not counted.

    Counts a folder, a bucket, or each bucket.

    FOLDER means what it does in `ls`. Each object counts toward the deepest folder shown, so the lines add up to the
    last one. The exit code is 1 if so many nodes are silent that objects may be missing.
    """
    if target is None and begins:
        raise click.UsageError("--prefix needs a bucket")
    if depth is None:
        depth = 0 if target is None else 1
    with store.reading() as client, waiting("objects to be counted"):
        if target is None:
            sums = [client.bucket(info.name).summary("", depth=depth) for info in client.buckets()]
        else:
            sums = [client.bucket(target.bucket).summary(target.name if begins else target.folder, depth=depth)]
    with OutputLines() as lines:
        for found in sums:
            if as_json:
                lines.add(json.dumps(asdict(found)))
            elif target is None and not depth:
                lines.add(_line(found.size_bytes, found.objects, found.bucket))
            else:
                _add(found, lines)
        if target is None and not as_json:
            lines.add(_line(sum(one.size_bytes for one in sums), sum(one.objects for one in sums), "in all"))
    for silent in dict.fromkeys(silent for found in sums for silent in found.silent):
        note(f"silent: {printable(silent)}")
    if not all(found.complete for found in sums):
        raise click.ClickException(
            "these sums may be too low: all copies of some objects may be on nodes that do not answer"
        )


def _add(found: BucketSummary, lines: OutputLines) -> None:
    for name, one in found.by_prefix.items():
        lines.add(_line(one.size_bytes, one.objects, f"{found.bucket}/{name}"))
    lines.add(_line(found.size_bytes, found.objects, f"{found.bucket}/{found.prefix} in all"))


def _line(size_bytes: int, objects: int, name: str) -> str:
    return f"{size_text(size_bytes):>10}  {count_text(objects, 'object'):>16}  {printable(name)}"
