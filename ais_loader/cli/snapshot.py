"""`ais-loader snapshot`: takes, lists and deletes snapshots of a bucket."""

from __future__ import annotations

import dataclasses
import json

import click

from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import OutputLines, count_text, note, size_text
from ais_loader.cli.stores import StoreChoice, Target, named_by, parse_target, store_of_commands, takes_store
from ais_loader.errors import InvalidRequest
from ais_loader.values.html import local_time
from ais_loader.values.summary import SNAPSHOT_MARK, SnapshotInfo


@click.group(cls=HintingGroup)
@store_of_commands
def snapshot(store: str | None) -> None:
    """Preserve a bucket as it is now, despite later writes and deletions.

    Read a snapshot as BUCKET@SNAPSHOT in `ls`, `get`, and `batch`, and as ais://BUCKET@SNAPSHOT/NAME wherever a URL is
    accepted.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class _Pinned:
    bucket: str
    snapshot: str


def _parse_bucket(text: str) -> Target:
    target = parse_target(text)
    if target.name or SNAPSHOT_MARK in target.bucket:
        raise InvalidRequest(f"{text!r}: need a bucket alone")
    return target


def _parse_pinned(text: str) -> _Pinned:
    target = parse_target(text)
    bucket, _, name = target.bucket.partition(SNAPSHOT_MARK)
    if target.name or not bucket or not name:
        raise InvalidRequest(f"{text!r}: need BUCKET{SNAPSHOT_MARK}SNAPSHOT")
    return _Pinned(bucket, name)


@snapshot.command()
@click.argument("made", metavar="BUCKET@SNAPSHOT", **named_by(_parse_pinned))
@takes_store
def create(made: _Pinned, store: StoreChoice) -> None:
    """Take a snapshot of BUCKET as it is now.

    No data is copied. Objects that are replaced or deleted later keep their space until the last snapshot that
    contains them is deleted. In a cluster, all nodes must be up. SNAPSHOT has 1 to 63 of the characters
    a-z A-Z 0-9 - _ . and no leading dot.
    """
    with store.writing(create=False) as client:
        info = client.bucket(made.bucket).snapshot(made.snapshot)
    note(f"made {info.pinned}: {count_text(info.objects, 'object')}, {size_text(info.size_bytes)}")


@snapshot.command(name="ls")
@click.argument("name", metavar="BUCKET", **named_by(_parse_bucket))
@click.option("-l", "--long", "as_long", is_flag=True, help="Show objects, bytes, local creation time, and name.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@takes_store
def list_(name: Target, as_long: bool, as_json: bool, store: StoreChoice) -> None:
    """List a bucket's snapshots, oldest first."""
    with store.reading() as client, OutputLines() as lines:
        for info in client.bucket(name.bucket).snapshots():
            lines.add(json.dumps(dataclasses.asdict(info)) if as_json else _line(info, as_long=as_long))


@snapshot.command()
@click.argument("gone", metavar="BUCKET@SNAPSHOT", **named_by(_parse_pinned))
@takes_store
def rm(gone: _Pinned, store: StoreChoice) -> None:
    """Delete a snapshot, and the data that only it holds. The bucket's objects stay as they are."""
    with store.writing(create=False) as client:
        client.bucket(gone.bucket).delete_snapshot(gone.snapshot)


def _line(info: SnapshotInfo, *, as_long: bool) -> str:
    if not as_long:
        return info.pinned
    return f"{info.objects:>10}  {info.size_bytes:>14}  {local_time(info.created_ns)}  {info.pinned}"
