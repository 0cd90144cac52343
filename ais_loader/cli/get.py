"""`ais-loader get`: an object, or a range of it, to a file or to standard output; or a folder of objects to files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import click

from ais_loader.cli.completion import complete_name
from ais_loader.cli.files import STDOUT, ByteSink, chosen_output, written_to_stdout, written_whole
from ais_loader.cli.get_folder import get_folder
from ais_loader.cli.options import arguments_of, wanted_options
from ais_loader.cli.show import info_fields, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, takes_store
from ais_loader.cli.targets import Target, parse_entry, parse_target
from ais_loader.errors import CorruptObject, InvalidRequest, ObjectNotFound
from ais_loader.objects.client import Client
from ais_loader.values.entry import Entry, ObjectInfo
from ais_loader.values.pipeline import Stage
from ais_loader.wire.checksum import crc32c

_PIECE_BYTES = 16 << 20
"""Larger objects are fetched in pieces of this size, so that memory does not grow with the object."""


@click.command()
@click.argument("name", metavar="OBJECT", shell_complete=complete_name)
@click.argument("argument", metavar="[FILE]", required=False, type=click.Path(allow_dash=True))
@click.option("-o", "--output", metavar="FILE", type=click.Path(allow_dash=True), help="Another way to give FILE.")
@click.option(
    "-r", "--recursive", is_flag=True, help="OBJECT is BUCKET or BUCKET/FOLDER: write its objects as files under FILE."
)
@click.option("--prefix", "begins", is_flag=True, help="With -r: OBJECT is a name prefix, not a folder.")
@wanted_options
@click.option("--start", metavar="BYTES", type=click.IntRange(min=0), default=0, help="First byte of a range, from 0.")
@click.option(
    "--length", metavar="BYTES", type=click.IntRange(min=0), help="Length of the range.  [default: up to the end]"
)
@click.option(
    "--verify/--no-verify",
    default=True,
    help="Check a range against the stored block checksums; a whole object is always checked.  [default: verify]",
)
@click.option(
    "--head",
    "head_only",
    is_flag=True,
    help="Show size, version, CRC-32C, time, and metadata as JSON instead of the bytes.",
)
@click.option("--etl", metavar="NAME", help="Transform the object with NAME, on the node that stores it.")
@click.option("--args", "arguments", metavar="JSON", help='Arguments of the transform, as {"rate": 16000}.')
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@takes_store
def get(
    name: str,
    argument: str | None,
    output: str | None,
    recursive: bool,
    begins: bool,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    start: int,
    length: int | None,
    verify: bool,
    head_only: bool,
    etl: str | None,
    arguments: str | None,
    force: bool,
    store: StoreChoice,
) -> None:
    """Write an object to a file or to standard output, or a folder of objects to files.

    \b
    get speech/a.wav                 to standard output
    get speech/a.wav out/            out/a.wav
    get -r speech/en out             speech/en/x/y.wav as out/x/y.wav

    If FILE is a folder, the file is named after the last part of the object's name. It appears once it is complete.
    Without FILE, or with -, the bytes go to standard output, but to a terminal only if they are text.

    BUCKET/NAME uses the name literally. In an ais:// URL, as in Python, SHARD.tar/NAME is a member of an archive.

    With -r, files that already have the same bytes are skipped: run it again to resume after an interruption. An
    object that cannot become a file is reported, and the others are written.
    """
    file = chosen_output(argument, output, "FILE") or STDOUT
    if recursive:
        if head_only or start or length is not None or not verify or etl is not None or arguments is not None:
            raise click.UsageError(
                "-r gets whole objects: it cannot be combined with --start, --length, --no-verify, --head, or --etl"
            )
        if file == STDOUT:
            raise click.UsageError("-r writes files: give the folder for them")
        source = _parsed(name, parse_target)
        prefix = source.name if begins else source.folder
        get_folder(source, prefix, file, store, include=include, exclude=exclude, force=force)
        return
    if begins or include or exclude:
        raise click.UsageError("--prefix, --include and --exclude need -r")
    if not (whole := _parsed(name, parse_target)).name:
        raise click.UsageError(f"{whole} is a bucket: need BUCKET/NAME, or -r for the objects in it")
    entry = _parsed(name, parse_entry)
    if head_only:
        if entry.member is not None or file != STDOUT or start or length is not None:
            raise click.UsageError("--head cannot be combined with a member, a FILE, or a range")
        with store.naming(Target(entry.bucket, entry.name)).reading() as client:
            click.echo(json.dumps(info_fields(client.bucket(entry.bucket).head(entry.name))))
        return
    if arguments is not None and etl is None:
        raise click.UsageError("--args needs --etl")
    if file != STDOUT and (os.path.isdir(file) or file.endswith("/")):
        file = os.path.join(file, (entry.member or entry.name).rpartition("/")[2])
    with store.naming(Target(entry.bucket, entry.name)).reading() as client:
        if etl is None:
            pieces = read_pieces(client, entry, start, length, verify=verify)
        else:
            stage = Stage(etl, None if arguments is None else arguments_of(arguments))
            pieces = iter([_transformed(client, entry, start, length, stage, verify=verify)])
        target: AbstractContextManager[ByteSink]
        target = written_to_stdout() if file == STDOUT else written_whole(file, force=force)
        written = 0
        with target as out, progress(None, unit="B") as bar:
            for piece in pieces:
                written += len(piece)
                out.write(piece)
                bar.update(len(piece))
    if file != STDOUT:
        note(f"wrote {printable(file)} ({size_text(written)})")


_Parsed = TypeVar("_Parsed")


def _parsed(text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Parse OBJECT, whose meaning depends on -r, which may follow it."""
    try:
        return parse(text)
    except InvalidRequest as error:
        raise click.BadParameter(str(error), param_hint="'OBJECT'") from error


def _transformed(client: Client, entry: Entry, start: int, length: int | None, stage: Stage, *, verify: bool) -> bytes:
    return client.bucket(entry.bucket).get(
        entry.name, start=start, length=length, member=entry.member, verify=verify, etl=stage
    )


def read_pieces(
    client: Client, entry: Entry, start: int, length: int | None, *, verify: bool
) -> Iterator[bytes | memoryview]:
    """Yield the requested bytes, all of one version. Raises LoaderError, at the latest with the last piece."""
    bucket = client.bucket(entry.bucket)
    if entry.member is None:
        info = bucket.head(entry.name)
        stop = info.size_bytes if length is None else start + length
        # The store rejects an invalid range.
        if start <= stop <= info.size_bytes and stop - start > _PIECE_BYTES:
            yield from _read_large(client, info, start, stop, verify=verify or stop - start == info.size_bytes)
            return
    yield bucket.get(entry.name, start=start, length=length, member=entry.member, verify=verify)


def _read_large(
    client: Client, info: ObjectInfo, start: int, stop: int, *, verify: bool
) -> Iterator[bytes | memoryview]:
    ranges = [
        Entry(info.bucket, info.name, start=at, length=min(_PIECE_BYTES, stop - at), version=info.version)
        for at in range(start, stop, _PIECE_BYTES)
    ]
    checksum = 0
    with client.get_batch(ranges, verify_ranges=verify) as batch:
        try:
            for item in batch:
                checksum = crc32c(item.data, checksum)
                yield item.data
        except ObjectNotFound as error:
            raise ObjectNotFound(f"{info.name!r} was replaced or deleted while it was read; run this again") from error
    if stop - start == info.size_bytes and checksum != info.checksum:
        raise CorruptObject(f"{info.name!r}: what arrived has CRC-32C {checksum:08x}, stored was {info.checksum:08x}")
