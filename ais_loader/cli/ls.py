"""`ais-loader ls`: buckets, and what is in them."""

from __future__ import annotations

import itertools
import json

import click

from ais_loader.cli.bucket import list_buckets
from ais_loader.cli.show import Lines, info_fields, printable, size_text, time_text
from ais_loader.cli.stores import StoreChoice, takes_store
from ais_loader.cli.targets import Target, parse_target, parsed_by
from ais_loader.entry import MemberInfo, ObjectInfo
from ais_loader.urls import SCHEME

_PAGE_SIZE = 1000


@click.command()
@click.argument("prefix", metavar="[BUCKET[/PREFIX]]", required=False, callback=parsed_by(parse_target))
@click.option(
    "-l",
    "--long",
    "as_long",
    is_flag=True,
    help="Show size in bytes, local time of storing, CRC-32C, version, and name.",
)
@click.option("--human", is_flag=True, help="As -l, with sizes such as 13.2 KiB.")
@click.option("--members", "of_archive", is_flag=True, help="List the members of the archive BUCKET/NAME.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Stop after this many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line; `ais-loader batch` reads them.")
@takes_store
def ls(
    prefix: Target | None,
    as_long: bool,
    human: bool,
    of_archive: bool,
    limit: int | None,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """List buckets, the objects of a bucket, or the members of an archive.

    PREFIX is the beginning of names: speech/en lists speech/en/a.wav and speech/english.txt. Objects come in the
    order of the bytes of their names. Control characters in a name are shown escaped; --json gives it exactly.
    """
    if of_archive and (prefix is None or not prefix.name):
        raise click.UsageError("--members wants the name of an archive: BUCKET/NAME")
    with store.reading() as client:
        if of_archive and prefix is not None:
            members = client.bucket(prefix.bucket).members(prefix.name, page_size=min(limit or _PAGE_SIZE, _PAGE_SIZE))
            with Lines() as lines:
                for member in itertools.islice(members, limit):
                    lines.add(_member_line(member, as_long=as_long or human, human=human, as_json=as_json))
            return
        if prefix is None:
            if limit is not None:
                raise click.UsageError("--limit counts objects: name a bucket")
            list_buckets(client, as_long=as_long or human, as_json=as_json)
            return
        objects = client.bucket(prefix.bucket).objects(prefix.name, page_size=min(limit or _PAGE_SIZE, _PAGE_SIZE))
        empty = True
        with Lines() as lines:
            for info in itertools.islice(objects, limit):
                empty = False
                text = json.dumps(info_fields(info)) if as_json else _line(info, as_long=as_long or human, human=human)
                lines.add(text)
        if empty and prefix.name:
            raise click.ClickException(f"no object in bucket {prefix.bucket!r} begins with {prefix.name!r}")


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
    size = f"{size_text(member.size_bytes):>10}" if human else f"{member.size_bytes:>14}"
    return f"{size}  {member.checksum:08x}  {name}"


def _line(info: ObjectInfo, *, as_long: bool, human: bool) -> str:
    name = printable(f"{info.bucket}/{info.name}")
    if not as_long:
        return name
    size = f"{size_text(info.size_bytes):>10}" if human else f"{info.size_bytes:>14}"
    return f"{size}  {time_text(info.modified_ns)}  {info.checksum:08x}  {info.version}  {name}"
