"""Buckets created by other commands: --create-bucket and --copies, and their messages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ais_loader.cli.show import count_text, note
from ais_loader.errors import BucketExists, BucketNotFound, LoaderError
from ais_loader.values.summary import SNAPSHOT_MARK

if TYPE_CHECKING:
    from ais_loader.objects.bucket import Bucket
    from ais_loader.objects.client import Client

copies_option = click.option(
    "--copies",
    metavar="N",
    type=click.IntRange(min=1),
    help="With --create-bucket: how many copies of each object, on different hosts of a cluster.  [default: 1]",
)


def require_creation(copies: int | None, *, create_bucket: bool) -> None:
    """Reject --copies without --create-bucket. Raises click.UsageError."""
    if copies is not None and not create_bucket:
        raise click.UsageError(
            "--copies needs --create-bucket; for an existing bucket, use `ais-loader bucket set BUCKET copies=N`"
        )


@contextlib.contextmanager
def bucket_to_fill(client: Client, name: str, *, create: bool, copies: int | None) -> Iterator[Bucket]:
    """Yield the destination bucket. A bucket created here is removed again if an error leaves it empty.

    Raises click.ClickException if it does not exist, or has another number of copies.
    """
    bucket, made = _bucket(client, name, create=create, copies=copies)
    try:
        yield bucket
    except LoaderError:
        if made:
            with contextlib.suppress(LoaderError):  # BucketNotEmpty: objects that were stored are kept
                client.delete_bucket(name)
        raise


def _bucket(client: Client, name: str, *, create: bool, copies: int | None) -> tuple[Bucket, bool]:
    """Return the bucket, and whether it was created here."""
    bucket = client.bucket(name)
    if SNAPSHOT_MARK in name:
        raise click.ClickException(f"{name!r} is a snapshot, which never changes; write to the bucket itself")
    if create:
        try:
            client.create_bucket(name, copies=copies or 1)
        except BucketExists:
            stored_copies = bucket.info().copies
            if copies is not None and stored_copies != copies:
                raise click.ClickException(
                    f"bucket {name!r} exists, with {count_text(stored_copies, 'copy')} of each object; "
                    f"`ais-loader bucket set {name} copies={copies}` changes that"
                ) from None
        else:
            note_copies(client, name, copies or 1, by="--copies")
            return bucket, True
        return bucket, False
    try:
        bucket.info()
    except BucketNotFound as error:
        raise type(error)(f"bucket {name!r} does not exist; use --create-bucket to create it") from None
    return bucket, False


def note_copies(client: Client, name: str, copies: int, *, by: str) -> None:
    """Report the number of copies of a new bucket, if there are several nodes."""
    nodes = _nodes(client)
    if nodes < 2:
        return
    risk = "" if copies > 1 else f": what a lost node had is lost; {by} {min(nodes, 2)} keeps two"
    note(f"made bucket {name} on {nodes} nodes, with {count_text(copies, 'copy')} of each object{risk}")


def _nodes(client: Client) -> int:
    with contextlib.suppress(LoaderError):
        nodes: Any = client.describe().get("nodes", ())
        return len(nodes)
    return 0
