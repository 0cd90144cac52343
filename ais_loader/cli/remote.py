"""`ais-loader warm`, `evict` and `remote`: copies of remote buckets, their requests' cost, and pending uploads."""

from __future__ import annotations

import json
from typing import IO, Any

import click

from ais_loader.cli.batch_list import parse_list
from ais_loader.cli.completion import named_by
from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import Lines, count_text, fail, note, printable, progress, size_text
from ais_loader.cli.stores import StoreChoice, store_of_commands, takes_store
from ais_loader.cli.targets import Target, parse_target
from ais_loader.objects.client import Client
from ais_loader.transport.base import RemoteUsage
from ais_loader.values.changes import Progress

PRICES: dict[str, float] = {
    "get": 0.0004,
    "head": 0.0004,
    "list": 0.005,
    "put": 0.005,
    "delete": 0.0,
    "bytes_in": 0.0,
    "bytes_out": 0.0,
}
"""Prices in US dollars: of 1,000 requests of a class, and of 1 GB. Those of S3 Standard in us-east-1, read within the
region; `--prices` replaces them."""
_GB = 10**9
_names = click.argument("target", metavar="[BUCKET/]FOLDER", required=False, **named_by(parse_target))
_begins = click.option("--prefix", "begins", is_flag=True, help="The argument is a name prefix, not a folder.")
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
@_list
@takes_store
def warm(target: Target | None, begins: bool, list_file: IO[bytes] | None, store: StoreChoice) -> None:
    """Store the objects of a remote bucket that are cold, before they are read.

    speech/en means the objects named speech/en/..., and speech means the whole bucket. Objects that are stored cost no
    request, so you can rerun it after an interruption.
    """
    failed = 0
    with store.writing(create=False) as client:
        for bucket, names, prefix in _wanted(target, list_file, begins=begins):
            with progress(None if names is None else len(names), unit=" objects") as bar:

                def show(_: Progress, bar: Any = bar) -> None:
                    bar.update()

                done = client.bucket(bucket).warm(names, prefix=prefix, on_error="return", progress=show)
            for failure in done.failures:
                fail(f"{printable(f'{bucket}/{failure.name}')}: {failure.error}")
            failed += done.failed
            note(
                f"{printable(bucket)}: {count_text(done.warmed, 'object')} warmed, {done.skipped:,} were stored already"
            )
    if failed:
        raise click.exceptions.Exit(1)


@click.command()
@_names
@_begins
@_list
@takes_store
def evict(target: Target | None, begins: bool, list_file: IO[bytes] | None, store: StoreChoice) -> None:
    """Remove stored copies of a remote bucket to free space; the remote objects stay.

    speech/en means the copies named speech/en/..., and speech means those of the whole bucket. They are fetched again
    when they are read.
    """
    with store.writing(create=False) as client:
        for bucket, names, prefix in _wanted(target, list_file, begins=begins):
            done = client.bucket(bucket).evict(names, prefix=prefix)
            freed = size_text(done.size_bytes)
            note(f"{printable(bucket)}: {count_text(done.copies, 'stored object')} removed, {freed}")


def _wanted(
    target: Target | None, list_file: IO[bytes] | None, *, begins: bool
) -> list[tuple[str, list[str] | None, str]]:
    """Return buckets, with names or a prefix."""
    if (target is None) == (list_file is None):
        raise click.UsageError("need either BUCKET[/FOLDER] or --list FILE")
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
    """Show what remote buckets cost, and what is still to be uploaded."""


@remote.command()
@click.option("--prices", metavar="FILE", type=click.File("r"), help="JSON: prices of 1,000 requests and of 1 GB.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@takes_store
def cost(prices: IO[str] | None, as_json: bool, store: StoreChoice) -> None:
    """Show the requests to remote storage since the nodes started, by bucket and tenant, and their price.

    FILE has some of the keys get, head, list, put, delete (of 1,000 requests), bytes_in and bytes_out (of 1 GB).
    Without it, the prices are those of S3 Standard within its region.
    """
    table = PRICES | (_read_prices(prices) if prices is not None else {})
    with store.reading() as client:
        rows = _summed(client)
    with Lines() as lines:
        if not as_json:
            lines.add(
                f"{'requests':>12}  {'received':>10}  {'sent':>10}  {'waited':>9}  {'price':>10}  bucket (tenant)"
            )
        for row in rows:
            price = _price(row, table)
            if as_json:
                lines.add(json.dumps(_fields(row) | {"price": round(price, 6)}))
            else:
                who = printable(row.bucket) + (f" ({printable(row.tenant)})" if row.tenant else "")
                count, received, sent = sum(row.requests.values()), size_text(row.bytes_in), size_text(row.bytes_out)
                lines.add(f"{count:>12,}  {received:>10}  {sent:>10}  {row.wait_s:>7.1f} s  {price:>10.4f}  {who}")


@remote.command()
@click.argument("bucket", metavar="BUCKET", **named_by(parse_target))
@click.option("--prefix", default="", help="Wait only for objects whose names begin with this.")
@click.option("--timeout", "timeout_s", metavar="SECONDS", type=float, default=600.0, show_default=True)
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
    with store.reading() as client, Lines() as lines:
        rows = client.pending_uploads()
        if not as_json:
            lines.add(f"{'writes':>10}  {'size':>10}  {'oldest':>9}  {'conflicts':>9}  bucket (node)")
        for row in rows:
            errors = {name: str(error) for name, error in row.failures.items()}
            if as_json:
                fields = {
                    "node": row.node,
                    "bucket": row.bucket,
                    "count": row.count,
                    "size_bytes": row.size_bytes,
                    "oldest_s": round(row.oldest_s, 3),
                    "conflicts": row.conflicts,
                    "failures": errors,
                }
                lines.add(json.dumps(fields))
                continue
            who = printable(row.bucket) + (f" ({printable(row.node)})" if row.node else "")
            size = size_text(row.size_bytes)
            lines.add(f"{row.count:>10,}  {size:>10}  {row.oldest_s:>7.0f} s  {row.conflicts:>9,}  {who}")
            for name, error in errors.items():
                lines.add(f"  {printable(name)}: {printable(error)}")


def _read_prices(file: IO[str]) -> dict[str, float]:
    try:
        found = json.load(file)
        wrong = [key for key, value in found.items() if key not in PRICES or not isinstance(value, (int, float))]
    except (ValueError, AttributeError) as error:
        raise click.ClickException(f"{file.name}: need a JSON object of numbers ({error})") from None
    if wrong:
        raise click.ClickException(f"{file.name}: {', '.join(wrong)}: need numbers for {', '.join(PRICES)}")
    return {key: float(value) for key, value in found.items()}


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


def _price(row: RemoteUsage, table: dict[str, float]) -> float:
    requests = sum(table.get(kind, 0.0) * count / 1000 for kind, count in row.requests.items())
    return requests + table["bytes_in"] * row.bytes_in / _GB + table["bytes_out"] * row.bytes_out / _GB


def _fields(row: RemoteUsage) -> dict[str, Any]:
    return {
        "bucket": row.bucket,
        "tenant": row.tenant,
        "requests": row.requests,
        "bytes_in": row.bytes_in,
        "bytes_out": row.bytes_out,
        "throttled": row.throttled,
        "retried": row.retried,
        "hedged": row.hedged,
        "errors": row.errors,
        "wait_s": round(row.wait_s, 3),
    }
