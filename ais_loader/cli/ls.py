"""`ais-loader ls`: lists buckets and their content, one level of folders at a time, or everything below a folder."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Literal

import click

from ais_loader.cli.bucket import list_buckets
from ais_loader.cli.show import OutputLines, count_text, info_fields, note, printable, size_text, waiting
from ais_loader.cli.stores import Listed, StoreChoice, Target, named_by, one_level, parse_target, takes_store
from ais_loader.errors import DriveFailed, ObjectNotFound
from ais_loader.objects.bucket import Bucket
from ais_loader.transport.base import PAGE_SIZE
from ais_loader.values.entry import MemberInfo, ObjectInfo
from ais_loader.values.html import local_time
from ais_loader.values.urls import SCHEME


@click.command()
@click.argument("target", metavar="[BUCKET[/FOLDER]]", required=False, **named_by(parse_target))
@click.option("-r", "--recursive", is_flag=True, help="List all objects under FOLDER, not just one level.")
@click.option("--prefix", "begins", is_flag=True, help="FOLDER is a name prefix: list all names that begin with it.")
@click.option(
    "-l",
    "--long",
    "as_long",
    is_flag=True,
    help="Show size in bytes, local time of storing, CRC-32C, version, and name; for a folder, its size and "
    "number of objects, which reads all names below it.",
)
@click.option("-H", "--human", is_flag=True, help="Like -l, with sizes such as 13.2 KiB.")
@click.option("--members", "of_archive", is_flag=True, help="List the members of the archive BUCKET/NAME.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Stop after this many.")
@click.option(
    "--skip-missing-drives",
    is_flag=True,
    help="If a drive is missing, list the objects on the other drives. By default, this is an error.",
)
@click.option(
    "--save",
    "table_path",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Print nothing: save the names of all objects under FOLDER as an EntryTable, which MapDataset opens.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object per line; with -r, `ais-loader batch` reads them."
)
@takes_store
def ls(
    target: Target | None,
    recursive: bool,
    begins: bool,
    as_long: bool,
    human: bool,
    of_archive: bool,
    limit: int | None,
    skip_missing_drives: bool,
    table_path: str | None,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """List buckets, a folder of a bucket, or the members of an archive.

    \b
    ls                        the buckets
    ls speech                 its objects, and folders such as en/
    ls -r speech/en           all that are named speech/en/...
    ls --prefix speech/en     speech/english.txt, too

    Objects are sorted by the bytes of their names. Control characters in names are escaped; --json shows names
    exactly.
    """
    on_missing: Literal["raise", "skip"] = "skip" if skip_missing_drives else "raise"
    if table_path is not None:
        if target is None or of_archive or limit is not None:
            raise click.UsageError("--save needs a bucket, and takes neither --members nor --limit")
        with store.reading() as client:
            _save(client.bucket(target.bucket), target.name if begins else target.folder, table_path, on_missing)
        return
    as_long = as_long or human
    if of_archive and (target is None or not target.name):
        raise click.UsageError("--members needs the name of an archive: BUCKET/NAME")
    with store.reading() as client:
        if of_archive and target is not None:
            members = client.bucket(target.bucket).members(target.name, page_size=min(limit or PAGE_SIZE, PAGE_SIZE))
            with OutputLines() as lines:
                for member in itertools.islice(members, limit):
                    lines.add(_member_line(member, as_long=as_long, human=human, as_json=as_json))
            return
        if target is None:
            if limit is not None:
                raise click.UsageError("--limit needs a bucket")
            list_buckets(client, as_long=as_long, as_json=as_json)
            return
        bucket = client.bucket(target.bucket)
        page_size = min(limit or PAGE_SIZE, PAGE_SIZE)
        found: Iterator[Listed]
        if begins:
            found = bucket.objects(target.name, page_size=page_size, on_missing_drive=on_missing)
        else:
            below = (
                bucket.objects(target.folder, page_size=page_size, on_missing_drive=on_missing)
                if recursive
                else one_level(bucket, target, counted=as_long, on_missing_drive=on_missing)
            )
            found = itertools.chain(_object_itself(bucket, target, skip_missing_drive=skip_missing_drives), below)
        empty = True
        with OutputLines() as lines:
            for one in itertools.islice(found, limit):
                empty = False
                lines.add(_as_json(one) if as_json else _line(one, as_long=as_long, human=human))
        if empty and target.name:
            if begins:
                raise click.ClickException(f"no object in bucket {target.bucket!r} begins with {target.name!r}")
            raise click.ClickException(
                f"no object and no folder {printable(str(target))}; --prefix takes the beginning of a name"
            )


def _save(bucket: Bucket, prefix: str, path: str, on_missing: Literal["raise", "skip"]) -> None:
    with waiting("names to be listed"):
        table = bucket.entries(prefix, on_missing_drive=on_missing)
    if not table:
        raise click.ClickException(f"no object in bucket {bucket.name!r} begins with {prefix!r}")
    table.save(path)
    note(f"{count_text(len(table), 'name')} saved in {printable(path)}")


def _object_itself(bucket: Bucket, target: Target, *, skip_missing_drive: bool) -> Iterator[ObjectInfo]:
    """Yield the object itself: a name without a trailing slash may be an object, a folder, or both."""
    if target.name and not target.name.endswith("/"):
        with contextlib.suppress(ObjectNotFound, *[DriveFailed] if skip_missing_drive else []):
            yield bucket.head(target.name)


def _as_json(one: Listed) -> str:
    if isinstance(one, ObjectInfo):
        return json.dumps(info_fields(one))
    counts = {} if one.holds is None else {"objects": one.holds.objects, "size_bytes": one.holds.size_bytes}
    return json.dumps({"bucket": one.bucket, "folder": one.name, **counts})


def _member_line(member: MemberInfo, *, as_long: bool, human: bool, as_json: bool) -> str:
    if as_json:
        return json.dumps(
            {
                "bucket": member.bucket,
                "name": member.shard,
                "member": member.name,
                "version": member.version,
                "size_bytes": member.size_bytes,
                "crc32c": f"{member.checksum:08x}",
            }
        )
    # As a URL: BUCKET/NAME would be an object of that name.
    name = printable(f"{SCHEME}{member.bucket}/{member.shard}/{member.name}")
    if not as_long:
        return name
    return f"{_size(member.size_bytes, human=human)}  {member.checksum:08x}  {name}"


def _line(one: Listed, *, as_long: bool, human: bool) -> str:
    name = printable(f"{one.bucket}/{one.name}")
    if not as_long:
        return name
    if isinstance(one, ObjectInfo):
        size = _size(one.size_bytes, human=human)
        return f"{size}  {local_time(one.modified_ns)}  {one.checksum:08x}  {one.version}  {name}"
    if one.holds is None:
        return f"{'?':>{10 if human else 14}}  {'folder':>19}  {name}"
    return f"{_size(one.holds.size_bytes, human=human)}  {count_text(one.holds.objects, 'object'):>19}  {name}"


def _size(size_bytes: int, *, human: bool) -> str:
    return f"{size_text(size_bytes):>10}" if human else f"{size_bytes:>14}"
