"""`ais-loader deny`: takes objects down, and reports where their bytes were and which runs have read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import click

from ais_loader.cli.batch import loader_named, read_object
from ais_loader.cli.batch_list import parse_list
from ais_loader.cli.show import OutputLines, count_text, note, printable
from ais_loader.cli.stores import StoreChoice, Target, parse_target, takes_store
from ais_loader.values.denials import Denials
from ais_loader.values.html import local_time
from storage_node.cli.audit import read_lines

_FILE = click.Path(exists=True, dir_okay=False)
_DIR = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("target", metavar="BUCKET", type=parse_target)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option(
    "--from", "list_file", metavar="FILE", type=click.File("rb"), help="Also the names in FILE, as `rm --list`."
)
@click.option(
    "--digest", "digests", metavar="CRC32C-SIZE", multiple=True, help="A content: `crc32c` and size of `ls --json`."
)
@click.option("--reason", metavar="TEXT", help="Why; the errors contain it.")
@click.option("--allow", is_flag=True, help="End the denials of these names and digests. Bytes do not come back.")
@click.option("--audit", metavar="DIR", multiple=True, type=_DIR, help="Report reads in audit logs in or below DIR.")
@click.option("--certificate", metavar="FILE", multiple=True, type=_FILE, help="Report a run by its certificate.")
@click.option("--state", metavar="STATE", type=_FILE, help="Report the run up to this position of --loader.")
@click.option("--loader", metavar="FILE.py:NAME", help="For --state: the loader of the run, as for `ledger`.")
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
@takes_store
def deny(
    target: Target,
    names: tuple[str, ...],
    list_file: IO[bytes] | None,
    digests: tuple[str, ...],
    reason: str | None,
    allow: bool,
    audit: tuple[Path, ...],
    certificate: tuple[str, ...],
    state: str | None,
    loader: str | None,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Take objects of BUCKET down, so that nobody reads or puts them any more, and remove their bytes.

    Without names and digests, lists what is denied. The report tells where the bytes were and when they were removed.
    Exits with status 1 if some may be left: on a node that does not answer, or in fragments of coded objects. Nobody
    can read them; repeat the command later.
    """
    if target.name:
        raise click.UsageError(f"{target}: need a bucket, and names as arguments of their own")
    if (state is None) != (loader is None):
        raise click.UsageError("--state and --loader belong together")
    bucket = target.bucket
    wanted = [*names, *(_listed(list_file, bucket) if list_file is not None else ())]
    changes = bool(wanted or digests or list_file is not None)
    if allow:
        with store.writing(create=False) as client:
            note(f"allowed {count_text(client.bucket(bucket).allow(wanted, digests=digests), 'object')}")
        return
    if changes and not reason:
        raise click.UsageError("need --reason")
    with store.writing(create=False) if changes else store.reading() as client:
        of = client.bucket(bucket)
        found = of.deny(wanted, digests=digests, reason=reason or "") if changes else of.denied()
    denied = {one.name for one in found.names}
    reads = [*_audited(audit, bucket, denied), *_certified(certificate, bucket, denied)]
    if state is not None and loader is not None:
        from ais_loader.training.ledger import reads_of

        reads += [{"state": state, **one} for one in reads_of(loader_named(loader), read_object(state), bucket, denied)]
    with OutputLines() as lines:
        if as_json:
            lines.add(json.dumps({"bucket": bucket, **asdict(found), "reads": reads}))
        else:
            _show(lines, found, reads)
    if not found.is_purged:
        for node, why in found.silent.items():
            note(f"silent: {node}: {printable(why)}")
        raise click.exceptions.Exit(1)


def _listed(list_file: IO[bytes], bucket: str) -> Iterator[str]:
    origin = str(getattr(list_file, "name", "standard input"))
    for entry in parse_list(list_file, origin):
        if entry.bucket != bucket or entry.member is not None or entry.start or entry.length is not None:
            raise click.ClickException(f"{origin}: {entry}: need whole objects of bucket {bucket!r}")
        yield entry.name


def _audited(folders: tuple[Path, ...], bucket: str, names: set[str]) -> Iterator[dict[str, Any]]:
    """Yield reads in audit logs. Lines about several objects tell their names with the setting audit_names only."""
    from storage_node.security.audit.reads import READ
    from storage_node.security.audit.search import who

    lines = [line for line in read_lines(folders) if line["event"] == READ] if folders else []
    for name in sorted(names):
        found = who(lines, bucket, name)
        for line in found.lines:
            fields = ("time", "tenant", "claimed_tenant", "token", "request", "outcome")
            yield {"audit": name, **{field: line[field] for field in fields if field in line}}
        if found.unknown:
            note(f"{found.unknown:,} reads of {bucket} in audit logs may be of {printable(name)}: they have no names")


def _certified(files: tuple[str, ...], bucket: str, names: set[str]) -> Iterator[dict[str, Any]]:
    for file in files:
        for of, name, member, version, _, epoch, step in read_object(file).get("objects", ()):
            if of.partition("@")[0] == bucket and name in names:
                row = {"certificate": file, "name": name, "version": version, "epoch": epoch, "step": step}
                yield row | ({"member": member} if member else {})


def _show(lines: OutputLines, found: Denials, reads: list[dict[str, Any]]) -> None:
    for one in found.names:
        lines.add(f"{printable(one.name)}  denied {local_time(one.denied_ns)}: {printable(one.reason)}")
        for copy in one.copies:
            purged = "may be there" if copy.purged_ns is None else f"removed {local_time(copy.purged_ns)}"
            where = " ".join(filter(None, (copy.node, copy.drive)))
            lines.add(
                f"    {copy.kind} of {copy.size_bytes:,} bytes, version {copy.version}, {printable(where)}: {purged}"
            )
    for digest, reason in found.digests.items():
        lines.add(f"digest {digest}  {printable(reason)}")
    for read in reads:
        lines.add("read  " + "  ".join(f"{key}={printable(str(value))}" for key, value in read.items()))
