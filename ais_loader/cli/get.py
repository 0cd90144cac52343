"""`ais-loader get`: an object, or a range of it, to a file or to standard output; or a folder of objects to files."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import click

from ais_loader.cli.files import STDOUT, ByteSink, chosen_output, written_to_stdout, written_whole
from ais_loader.cli.options import arguments_of, wanted_options
from ais_loader.cli.show import count_text, fail, info_fields, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, Target, complete_name, parse_entry, parse_target, takes_store
from ais_loader.errors import CorruptObject, InvalidRequest, LoaderError, ObjectNotFound
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.download import download
from ais_loader.values.changes import DownloadSummary, Progress
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


_SILENCE_S = 30.0


def get_folder(
    source: Target,
    prefix: str,
    folder: str,
    store: StoreChoice,
    *,
    include: Sequence[str],
    exclude: Sequence[str],
    force: bool,
) -> None:
    """Write the objects whose names begin with `prefix`, in the bucket of `source`, as files below `folder`.

    Exits with 1 if one of them could not be written.
    """
    began = time.monotonic()
    last = Progress()

    def show(now: Progress) -> None:
        nonlocal last
        last = now

    with store.reading() as client:
        bucket = client.bucket(source.bucket)
        bucket.info()
        total_bytes = None if include or exclude or not sys.stderr.isatty() else _total_bytes(bucket, prefix)
        moving = threading.Lock()
        with progress(total_bytes, unit="B") as bar:

            def moved(size_bytes: int) -> None:
                with moving:
                    bar.update(size_bytes)

            try:
                done = download(
                    bucket._transport,
                    bucket.name,
                    prefix,
                    folder,
                    include=include,
                    exclude=exclude,
                    overwrite=force,
                    timeout_s=_SILENCE_S,
                    on_error="return",
                    progress=show,
                    on_bytes=moved,
                )
            except BaseException as error:
                bar.close()
                if last != Progress():
                    note(f"{_counts(last.done, last.size_bytes, last.skipped)}; run this again to continue")
                elif isinstance(error, KeyboardInterrupt):  # only complete groups are counted, but files may exist
                    note("files that have been written stay; run this again to continue")
                raise
    if not done.downloaded + done.skipped + done.failed:
        which = " that are wanted" if include or exclude else ""
        raise click.ClickException(f"no objects below {printable(str(source))}{which}")
    _summarize(done, folder, time.monotonic() - began)
    if done.failed:
        raise click.exceptions.Exit(1)


def _total_bytes(bucket: Bucket, prefix: str) -> int | None:
    try:
        return bucket.summary(prefix, depth=0).size_bytes
    except LoaderError:  # a bar without a total will do
        return None


def _counts(written: int, size_bytes: int, present: int) -> str:
    """Describe the progress so far."""
    found = f"wrote {count_text(written, 'file')} ({size_text(size_bytes)})"
    return f"{found}, {present:,} were there already" if present else found


def _summarize(done: DownloadSummary, folder: str, took_s: float) -> None:
    for failure in done.failures:
        fail(printable(str(failure.error).replace("overwrite=True replaces", "--force replaces")))
    rate = f", {size_text(done.size_bytes / took_s)}/s" if took_s > 1 else ""
    size = f"{size_text(done.size_bytes)} in {took_s:.2f} s{rate}"
    note(f"wrote {count_text(done.downloaded, 'file')} below {click.format_filename(folder)} ({size})")
    if done.skipped:
        note(f"already there with the same bytes: {count_text(done.skipped, 'file')}")
    if done.failed:
        note(f"failed: {count_text(done.failed, 'object')}")
