"""`ais-loader warm`, `evict` and `remote`: copies of remote buckets, inventories, pending uploads, and requests."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import IO, Any

import click

from ais_loader.cli.batch_list import parse_list
from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import OutputLines, count_text, fail, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, Target, named_by, parse_target, store_of_commands, takes_store
from ais_loader.objects.client import Client
from ais_loader.transport.base import RemoteUsage
from ais_loader.values.changes import Progress
from ais_loader.values.summary import InventoryInfo

_names = click.argument("target", metavar="[BUCKET/]FOLDER", required=False, **named_by(parse_target))
_begins = click.option("--prefix", "begins", is_flag=True, help="The argument is a name prefix, not a folder.")
_patterns = click.option(
    "--pattern",
    "patterns",
    metavar="PATTERN",
    multiple=True,
    help="Only objects that match this shell pattern, by what follows the last slash or, if it has a slash, by the "
    "whole name; repeatable.",
)
_list = click.option(
    "--list",
    "list_file",
    metavar="FILE",
    type=click.File("rb"),
    help="The objects named in FILE, or - for standard input: one a line, or lines of `ls --json`.",
)


@click.command()
@_names
@_begins
@_patterns
@_list
@takes_store
def warm(
    target: Target | None, begins: bool, patterns: tuple[str, ...], list_file: IO[bytes] | None, store: StoreChoice
) -> None:
    """Store the objects of a remote bucket that are cold, before they are read.

    speech/en means the objects named speech/en/..., and speech means the whole bucket. Objects that are stored cost no
    request, so you can rerun it after an interruption.
    """
    failed = 0
    with store.writing(create=False) as client:
        for bucket, names, prefix in _wanted(target, list_file, patterns, begins=begins):
            with progress(None if names is None else len(names), unit=" objects") as bar:

                def show(now: Progress, bar: Any = bar) -> None:
                    bar.set_postfix_str(size_text(now.size_bytes), refresh=False)
                    bar.update()

                done = client.bucket(bucket).warm(
                    names, prefix=prefix, pattern=patterns, on_error="return", progress=show
                )
            for failure in done.failures:
                fail(f"{printable(f'{bucket}/{failure.name}')}: {failure.error}")
            failed += done.failed
            already = f", {done.skipped:,} were stored already" if names is None else ""
            warmed = f"{count_text(done.warmed, 'object')} warmed, {size_text(done.size_bytes)}"
            note(f"{printable(bucket)}: {warmed}{already}")
    if failed:
        raise click.exceptions.Exit(1)


@click.command()
@_names
@_begins
@_patterns
@_list
@takes_store
def evict(
    target: Target | None, begins: bool, patterns: tuple[str, ...], list_file: IO[bytes] | None, store: StoreChoice
) -> None:
    """Remove stored copies of a remote bucket to free space; the remote objects stay.

    speech/en means the copies named speech/en/..., and speech means those of the whole bucket. They are fetched again
    when they are read.
    """
    with store.writing(create=False) as client:
        for bucket, names, prefix in _wanted(target, list_file, patterns, begins=begins):
            done = client.bucket(bucket).evict(names, prefix=prefix, pattern=patterns)
            freed = size_text(done.size_bytes)
            note(f"{printable(bucket)}: {count_text(done.copies, 'stored object')} removed, {freed}")


def _wanted(
    target: Target | None, list_file: IO[bytes] | None, patterns: tuple[str, ...], *, begins: bool
) -> list[tuple[str, list[str] | None, str]]:
    """Return buckets, with names or a prefix."""
    if (target is None) == (list_file is None):
        raise click.UsageError("need either BUCKET[/FOLDER] or --list FILE")
    if patterns and target is None:
        raise click.UsageError("--pattern goes with BUCKET[/FOLDER]; --list names the objects themselves")
    if target is not None:
        return [(target.bucket, None, target.name if begins else target.folder)]
    assert list_file is not None
    by_bucket: dict[str, list[str]] = {}
    for entry in parse_list(list_file, str(getattr(list_file, "name", "standard input"))):
        by_bucket.setdefault(entry.bucket, []).append(entry.name)
    return [(bucket, names, "") for bucket, names in by_bucket.items()]


@click.group(cls=HintingGroup)
@store_of_commands
def remote(store: str | None) -> None:
    """Show requests and pending uploads of remote buckets, and list them once."""


@remote.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@takes_store
def usage(as_json: bool, store: StoreChoice) -> None:
    """Show the requests to remote storage since the nodes started, by bucket and tenant.

    "all waits" is the sum over all objects that readers waited for, many at a time: it can exceed the time that passed.
    """
    with store.reading() as client:
        rows = _summed(client)
    with OutputLines() as lines:
        if not as_json:
            lines.add(
                f"{'requests':>12}  {'received':>10}  {'sent':>10}  {'throttled':>9}  {'all waits':>10}  "
                "bucket (tenant)"
            )
        for row in rows:
            lines.add(json.dumps(_fields(row)) if as_json else _line(row))


@remote.command()
@click.argument("bucket", metavar="BUCKET", **named_by(parse_target))
@click.option("--prefix", default="", help="Wait only for objects whose names begin with this.")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=float,
    default=600.0,
    show_default=True,
    help="Fail if something is not uploaded after this time.",
)
@takes_store
def flush(bucket: Target, prefix: str, timeout_s: float, store: StoreChoice) -> None:
    """Wait until everything put or deleted before is uploaded, in a bucket that is written back.

    It fails if something is not uploaded in time, or because others have changed the remote object.
    """
    with store.writing(create=False) as client:
        client.bucket(bucket.bucket).flush(prefix, timeout_s=timeout_s)
    note(f"{printable(bucket.bucket)}: everything is uploaded")


@remote.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@takes_store
def pending(as_json: bool, store: StoreChoice) -> None:
    """Show what is still to be uploaded, by node and bucket, and the first errors.

    In a cluster, each owner of an object counts it.
    """
    with store.reading() as client, OutputLines() as lines:
        rows = client.pending_uploads()
        if not as_json:
            lines.add(f"{'writes':>10}  {'size':>10}  {'oldest':>9}  {'conflicts':>9}  bucket (node)")
        for row in rows:
            errors = {name: str(error) for name, error in row.failures.items()}
            if as_json:
                lines.add(json.dumps(asdict(row) | {"oldest_s": round(row.oldest_s, 3), "failures": errors}))
                continue
            who = printable(row.bucket) + (f" ({printable(row.node)})" if row.node else "")
            size = size_text(row.size_bytes)
            lines.add(f"{row.count:>10,}  {size:>10}  {row.oldest_s:>7.0f} s  {row.conflicts:>9,}  {who}")
            for name, error in errors.items():
                lines.add(f"  {printable(name)}: {printable(error)}")


def _line(row: RemoteUsage) -> str:
    who = printable(row.bucket) + (f" ({printable(row.tenant)})" if row.tenant else "")
    count, received, sent = sum(row.requests.values()), size_text(row.bytes_in), size_text(row.bytes_out)
    return f"{count:>12,}  {received:>10}  {sent:>10}  {row.throttled:>9,}  {row.wait_s:>8.1f} s  {who}"


@remote.command()
@click.argument("target", metavar="BUCKET[/FOLDER]", **named_by(parse_target))
@click.option("--refresh", is_flag=True, help="List the remote storage, and keep the list in the store.")
@click.option("--drop", is_flag=True, help="Remove the inventory: listings ask the remote storage again.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@takes_store
def inventory(target: Target, refresh: bool, drop: bool, as_json: bool, store: StoreChoice) -> None:
    """Show the inventory of a remote bucket, which listings read in place of the remote storage; make or remove it.

    With a folder, a new inventory has only the objects named FOLDER/...
    """
    if drop and refresh:
        raise click.UsageError("--drop and --refresh: give one of them")
    if target.folder and not refresh:
        raise click.UsageError("a folder is for --refresh: a bucket has one inventory")
    with store.writing(create=False) if drop or refresh else store.reading() as client:
        bucket = client.bucket(target.bucket)
        if drop:
            bucket.drop_inventory()
            return
        if refresh:
            with progress(None, unit=" objects") as bar:
                found = bucket.refresh_inventory(target.folder, progress=lambda listed: bar.update(listed - bar.n))
        elif (shown := bucket.inventory()) is None:
            raise click.ClickException(f"{printable(target.bucket)}: has no inventory; --refresh makes one")
        else:
            found = shown
    with OutputLines() as lines:
        fields = asdict(found) | {"listed_at": found.listed_at.isoformat()}
        lines.add(json.dumps(fields) if as_json else _inventory_text(target.bucket, found))
    if found.skipped:
        names = ", ".join(map(printable, found.skipped_names))
        note(f"{count_text(found.skipped, 'name')} left out, as no object here can have them, such as {names}")


def _inventory_text(bucket: str, found: InventoryInfo) -> str:
    """Describe an inventory in one line."""
    where = f"{printable(bucket)}/{printable(found.prefix)}" if found.prefix else printable(bucket)
    size = size_text(found.size_bytes)
    return f"{where}: {count_text(found.count, 'object')}, {size}, listed {found.listed_at:%Y-%m-%d %H:%M:%S} UTC"


def _summed(client: Client) -> list[RemoteUsage]:
    """Return the usage of all nodes together, by bucket and tenant."""
    sums: dict[tuple[str, str], RemoteUsage] = {}
    for row in client.remote_usage():
        key = row.bucket, row.tenant
        before = sums.get(key)
        sums[key] = row if before is None else _sum(before, row)
    return [sums[key] for key in sorted(sums)]


def _sum(one: RemoteUsage, other: RemoteUsage) -> RemoteUsage:
    counts = {
        name: getattr(one, name) + getattr(other, name)
        for name in ("bytes_in", "bytes_out", "throttled", "retried", "hedged", "errors", "wait_s")
    }
    requests = {
        kind: one.requests.get(kind, 0) + other.requests.get(kind, 0) for kind in {*one.requests, *other.requests}
    }
    return RemoteUsage("", one.bucket, one.tenant, requests, **counts)


def _fields(row: RemoteUsage) -> dict[str, Any]:
    fields = asdict(row) | {"wait_s": round(row.wait_s, 3)}
    del fields["node"]
    return fields
