"""`ais-loader bucket`: creates, lists, changes and deletes buckets."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.new_bucket import note_copies
from ais_loader.cli.show import OutputLines, count_text, note, printable, size_text
from ais_loader.cli.stores import StoreChoice, Target, named_by, parse_target, store_of_commands, takes_store
from ais_loader.errors import BucketExists, BucketHasSnapshots, BucketNotEmpty, InvalidRequest
from ais_loader.objects.client import Client
from ais_loader.transport.base import BucketInfo
from ais_loader.values.html import local_time
from ais_loader.values.size_of_text import size_of_text
from ais_loader.wire.remote import Remote

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket

_LIMITS = ("max_requests_per_s", "max_bytes_per_day")
_SIZES = ("cache_bytes", "max_bytes_per_day", "quota_bytes")
_REMOTE_KEYS = ("remote", "endpoint", "region", "profile", "validate", "cache_bytes", "write", "verify_md5", *_LIMITS)


@click.group(cls=HintingGroup)
@store_of_commands
def bucket(store: str | None) -> None:
    """Create, list, change, and delete buckets."""


def _parse_bucket(text: str) -> Target:
    target = parse_target(text)
    if target.name:
        raise InvalidRequest(f"{text!r} names an object; need a bucket alone")
    return target


@bucket.command()
@click.argument("name", metavar="BUCKET", **named_by(_parse_bucket))
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--exist-ok", is_flag=True, help="Succeed if the bucket already exists.")
@click.option(
    "--copies",
    metavar="N",
    type=click.IntRange(min=1),
    help="Copies of each object, on different hosts of a cluster (1).",
)
@takes_store
def create(name: Target, assignments: tuple[str, ...], exist_ok: bool, copies: int | None, store: StoreChoice) -> None:
    """Create a bucket.

    Its name has 1 to 63 of the characters a-z A-Z 0-9 - _ . and no leading dot. KEY=VALUE are the properties that
    `bucket set` changes, such as min_copies=2, quota_bytes=200GB, or remote=s3://corpus/v1 for a remote bucket.

    If --store is a folder that is empty or does not exist, a store is created there too.
    """
    properties = _given(assignments, None)
    copies = properties.pop("copies", copies)
    with store.writing(create=True) as client:
        try:
            client.create_bucket(name.bucket, exist_ok=exist_ok, copies=copies, **properties)
        except BucketExists:
            raise click.ClickException(
                f"bucket {name.bucket!r} already exists; with --exist-ok that is no error"
            ) from None
        if not exist_ok and "redundancy" not in properties:
            note_copies(client, name.bucket, copies or 1, by="--copies")


@bucket.command(name="ls")
@click.option("-l", "--long", "as_long", is_flag=True, help="Show each bucket's number of copies and uuid.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@takes_store
def list_(as_long: bool, as_json: bool, store: StoreChoice) -> None:
    """List the buckets, by name."""
    with store.reading() as client:
        list_buckets(client, as_long=as_long, as_json=as_json)


def list_buckets(client: Client, *, as_long: bool, as_json: bool) -> None:
    """Print the buckets to standard output, one per line."""
    with OutputLines() as lines:
        for found in client.buckets():
            if as_json:
                lines.add(json.dumps(_properties(found)))
            else:
                lines.add(f"{found.copies:>3}  {found.uuid}  {found.name}" if as_long else found.name)


@bucket.command()
@click.argument("name", metavar="BUCKET", **named_by(_parse_bucket))
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@takes_store
def show(name: Target, as_json: bool, store: StoreChoice) -> None:
    """Show the properties of a bucket."""
    with store.reading() as client:
        _show(client.bucket(name.bucket).info(), as_json=as_json)


@bucket.command(name="set")
@click.argument("name", metavar="BUCKET", **named_by(_parse_bucket))
@click.argument("assignments", metavar="KEY=VALUE...", nargs=-1, required=True)
@takes_store
def set_(name: Target, assignments: tuple[str, ...], store: StoreChoice) -> None:
    """Change a bucket's properties for future writes: min_copies=2.

    remote=URL makes it a remote bucket or changes its place, and remote= ends that; endpoint=, region=, profile=,
    validate=, write=, verify_md5=true, and cache_bytes=, as in cache_bytes=200GB, change a part of it.
    max_requests_per_s=100 and max_bytes_per_day=2TB limit what each node asks of the place.

    quota_bytes=200GB and quota_objects=1000000 refuse writes that would exceed them, and 0 removes them.

    In a cluster, copies=3 changes the number of copies of all objects in the bucket. While copies are being made or
    removed, `show` says that the bucket is settling. redundancy=rs:4+2 keeps settled objects as four data and two
    parity fragments on six hosts, and redundancy=copies as copies again.
    """
    with store.writing(create=False) as client:
        bucket = client.bucket(name.bucket)
        _show(bucket.set(**_given(assignments, bucket)), as_json=False)


def _given(assignments: tuple[str, ...], bucket: Bucket | None) -> dict[str, Any]:
    """Return the properties that are assigned. Those of a remote place are changes of the one that a bucket has."""
    given = dict(map(_assigned, assignments))
    place = {key: given.pop(key) for key in _REMOTE_KEYS if key in given}
    if place:
        given["remote"] = _changed_remote(bucket.info().remote if bucket is not None else None, place)
    return given


def _changed_remote(now: Remote | None, place: dict[str, Any]) -> Remote | str:
    url = place.pop("remote", None)
    if url == "":
        return ""
    if now is None and url is None:
        raise click.UsageError(f"{', '.join(place)}: the bucket is not a remote one; give remote=URL as well")
    return (
        dataclasses.replace(now, **({"url": url} if url else {}), **place) if now is not None else Remote(url, **place)
    )


def _rule(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text  # Remote refuses what is no rule


def _assigned(text: str) -> tuple[str, Any]:
    key, _, value = (part.strip() for part in text.partition("="))
    if key in ("copies", "min_copies") and value.isascii() and value.isdigit():
        return key, int(value)
    if key == "quota_objects" and value.isascii() and value.isdigit():
        return key, int(value)
    if key == "redundancy" and value:
        return key, value
    if key == "quota_bytes" and value:
        return key, size_of_text(value)
    if key in _REMOTE_KEYS and "=" in text:
        if key in ("validate", "max_requests_per_s"):
            return key, _rule(value)
        if key == "verify_md5" and value in ("true", "false"):
            return key, value == "true"
        return key, size_of_text(value) if key in _SIZES else value
    raise click.UsageError(
        f"{text!r}: need copies=N, min_copies=N, redundancy=rs:K+M, quota_bytes=SIZE, quota_objects=N, or "
        f"{', '.join(_REMOTE_KEYS)} with a value"
    )


def _properties(found: BucketInfo) -> dict[str, Any]:
    properties = dataclasses.asdict(found)
    if properties["remote"] is not None:
        del properties["remote"]["inventory"]  # an id for the store alone; `remote inventory` describes it
    return {"bucket": properties.pop("name"), **properties}


def _show(found: BucketInfo, *, as_json: bool) -> None:
    properties = _properties(found)
    if as_json:
        click.echo(json.dumps(properties))
        return
    place = properties.pop("remote") or {}
    properties = {key: value for key, value in properties.items() if not key.startswith("quota") or value}
    properties |= {"remote" if key == "url" else key: value for key, value in place.items() if value}
    for key, value in properties.items():
        if key in _SIZES:
            value = f"{value} ({size_text(value)})"
        click.echo(f"{key:<13}  {value if not isinstance(value, bool) else 'yes' if value else 'no'}")


@bucket.command()
@click.argument("name", metavar="BUCKET", **named_by(_parse_bucket))
@click.option("--force", is_flag=True, help="Also delete the objects in it, without asking.")
@takes_store
def rm(name: Target, force: bool, store: StoreChoice) -> None:
    """Delete a bucket, which must be empty unless --force is given."""
    with store.writing(create=False) as client:
        try:
            deleted = client.delete_bucket(name.bucket, force=force)
        except BucketHasSnapshots:
            raise
        except BucketNotEmpty:
            raise click.ClickException(
                f"bucket {name.bucket!r} is not empty; use --force to delete its objects, too"
            ) from None
    if deleted:
        note(f"deleted bucket {name.bucket} and {count_text(deleted, 'object')} in it")


_DAY_S = 24 * 3600


@bucket.command()
@click.argument("name", metavar="BUCKET", **named_by(_parse_bucket))
@click.option(
    "--abort-older-than",
    "days",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    help="Abort uploads that have stored nothing for this long.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@takes_store
def uploads(name: Target, days: float | None, as_json: bool, store: StoreChoice) -> None:
    """List multipart uploads that were neither completed nor aborted.

    Their parts take up space, and object listings do not show them. --abort-older-than aborts old uploads and lists
    only those.
    """
    with store.reading() if days is None else store.writing(create=False) as client:
        found = client.bucket(name.bucket)
        old = found.uploads() if days is None else found.sweep_uploads(days * _DAY_S)
        with OutputLines() as lines:
            for one in old:
                if as_json:
                    lines.add(json.dumps(dataclasses.asdict(one)))
                else:
                    size = f"{count_text(one.parts, 'part')}, {size_text(one.size_bytes)}"
                    lines.add(f"{one.id}  {local_time(one.modified_ns)}  {size}  {printable(one.name)}")
