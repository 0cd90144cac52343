"""`ais-loader cp` and `ais-loader mv`: the store copies and renames objects, without sending their bytes here."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from ais_loader.cli.show import OutputLines, count_text, fail, info_fields, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, Target, named_by, parse_target, takes_store
from ais_loader.errors import LoaderError
from ais_loader.objects import copy as copying
from ais_loader.objects.client import Client
from ais_loader.values.entry import ObjectInfo
from ais_loader.values.summary import SNAPSHOT_MARK


@dataclass(slots=True)
class _Done:
    objects: int = 0
    size_bytes: int = 0
    equal: int = 0
    failed: int = 0


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, **named_by(parse_target))
@click.argument("dest", metavar="DEST", **named_by(parse_target))
@click.option("-r", "--recursive", is_flag=True, help="SOURCE is BUCKET or BUCKET/FOLDER: copy the objects in it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per object copied.")
@takes_store
def cp(sources: tuple[Target, ...], dest: Target, recursive: bool, as_json: bool, store: StoreChoice) -> None:
    """Copy objects within a store, to other names or buckets.

    SOURCE and DEST are both in the store that --store names: use `put` and `get` to move files into and out of a store.

    \b
    cp speech/a.wav speech/b.wav       one object
    cp speech/a.wav speech/en/         speech/en/a.wav
    cp -r speech/en archive/2026       speech/en/x.wav as archive/2026/x.wav

    With -r, objects that already exist with the same bytes and metadata are skipped: run it again to resume an
    interrupted copy. An object that cannot be copied is reported, and the others are copied.
    """
    _run(sources, dest, store, recursive=recursive, as_json=as_json, move=False)


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, **named_by(parse_target))
@click.argument("dest", metavar="DEST", **named_by(parse_target))
@click.option("-r", "--recursive", is_flag=True, help="SOURCE is BUCKET or BUCKET/FOLDER: rename the objects in it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per object renamed.")
@takes_store
def mv(sources: tuple[Target, ...], dest: Target, recursive: bool, as_json: bool, store: StoreChoice) -> None:
    """Rename objects, or move them to another bucket of the same store.

    Names work as in `ais-loader cp`. Each object is copied, then the copied version is deleted. If interrupted in
    between, the object has both names; run the same command again to finish.
    """
    _run(sources, dest, store, recursive=recursive, as_json=as_json, move=True)


def _run(
    sources: Sequence[Target], dest: Target, store: StoreChoice, *, recursive: bool, as_json: bool, move: bool
) -> None:
    if not sources:
        raise click.UsageError("only one name was given: need SOURCE and DEST")
    prefix = dest.folder if recursive else dest.name
    if len(sources) > 1 and not recursive and prefix and not prefix.endswith("/"):
        raise click.UsageError(f"with several sources, DEST must be a bucket or a folder: {dest}/ instead of {dest}")
    for source in sources:
        if not source.name and not recursive:
            raise click.UsageError(f"{source} is a bucket; use -r for the objects in it")
        if not recursive and source.name.endswith("/"):
            raise click.UsageError(f"{source} is a folder; use -r for the objects in it")
    done = _Done()
    began = time.monotonic()
    with store.writing(create=False) as client:
        _refuse_files(client, [*sources, dest])
        client.bucket(dest.bucket).info()
        try:
            with OutputLines() as lines, progress(None, unit=" objects") as bar:
                for source in sources:
                    step = _below if recursive else _one
                    for result in step(client, source, Target(dest.bucket, prefix), done, move):
                        bar.update()
                        if isinstance(result, LoaderError):
                            done.failed += 1
                            fail(printable(str(result)))
                            continue
                        done.objects += 1
                        done.size_bytes += result.size_bytes
                        if as_json:
                            lines.add(json.dumps(info_fields(result)))
        finally:
            if done != _Done() or sys.exc_info()[0] is None:  # otherwise the failure says everything
                _summarize(done, "renamed" if move else "copied", time.monotonic() - began)
    if done.failed:
        raise click.exceptions.Exit(1)


def _refuse_files(client: Client, targets: Sequence[Target]) -> None:
    """Reject arguments that name no bucket but a path of this machine. Raises click.ClickException."""
    buckets = {info.name for info in client.buckets()}
    for target in targets:
        if target.bucket.partition(SNAPSHOT_MARK)[0] in buckets:
            continue
        if target.bucket in (".", "..") or os.path.lexists(str(target)):
            raise click.ClickException(
                f"{printable(str(target))} is a file on this machine, and this command works within a store; "
                "for files, use `ais-loader put` and `ais-loader get`"
            )


def _one(client: Client, source: Target, dest: Target, done: _Done, move: bool) -> Iterator[ObjectInfo | LoaderError]:
    name = dest.name
    if not name or name.endswith("/"):
        name += source.name.rpartition("/")[2]
    bucket = client.bucket(source.bucket)
    try:
        yield (bucket.rename if move else bucket.copy)(source.name, name, to_bucket=dest.bucket)
    except LoaderError as error:
        if error.retryable:
            raise  # it has been retried already: the next one would fail too
        yield error


def _below(client: Client, source: Target, dest: Target, done: _Done, move: bool) -> Iterator[ObjectInfo | LoaderError]:
    found = False
    for _, result in copying.each_copied(
        client._transport, source.bucket, source.folder, dest.bucket, dest.name, remove=move
    ):
        found = True
        if result is None:
            done.equal += 1
        else:
            yield result
    if not found:
        raise click.ClickException(f"no objects below {printable(str(source))}")


def _summarize(done: _Done, what: str, took_s: float) -> None:
    rate = f", {size_text(done.size_bytes / took_s)}/s" if took_s > 1 else ""
    note(f"{what} {count_text(done.objects, 'object')} ({size_text(done.size_bytes)} in {took_s:.2f} s{rate})")
    if done.equal:
        note(f"already there with the same bytes: {count_text(done.equal, 'object')}")
    if done.failed:
        note(f"failed: {count_text(done.failed, 'object')}")
