"""`ais-loader audit`: verifies the audit logs of nodes, and searches in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ais_loader.cli.groups import HintingGroup
from ais_loader.cli.show import OutputLines, note, printable

if TYPE_CHECKING:
    from storage_node.store.store_record import AuditEnd

F = TypeVar("F", bound=Callable[..., Any])
_PATH = click.Path(exists=True, path_type=Path)
_paths = click.argument("paths", metavar="[FILE|DIR]...", nargs=-1, required=True, type=_PATH)
_json = click.option("--json", "as_json", is_flag=True, help="The lines as they are, one JSON object each.")


@click.group(cls=HintingGroup)
def audit() -> None:
    """Verify and search the audit logs of nodes, on the machine that has them.

    A DIR is a node's drive, the root of a cluster, or the folder of a log. Whether the last lines were removed can be
    told of drives, whose store keeps the end of the log, and with --expect.
    """


@audit.command()
@_paths
@click.option("--expect", metavar="SUM", multiple=True, help="The sum of a line that must be there; may be repeated.")
def verify(paths: tuple[Path, ...], expect: tuple[str, ...]) -> None:
    """Check that the lines are those that nodes have written, that none is missing, and that all are in order.

    Exits with status 1 at the first line that is not right.
    """
    from storage_node.security.audit.log_files import verify as verify_files

    sums: set[str] = set()
    failed = False
    with OutputLines() as lines:
        for log in _logs(paths):
            verdict = verify_files(*log)
            sums |= verdict.sums
            if verdict.problem:
                failed = True
                lines.add(f"BROKEN {printable(verdict.problem)}")
                lines.add(f"{verdict.lines:,} lines before it are right")
                continue
            state = "the node has stopped" if verdict.is_closed else "the node runs, or was killed"
            from_ = f" from file {verdict.first_number} on" if verdict.first_number > 1 else ""
            lost = f"; {verdict.lost:,} lines could not be written" if verdict.lost else ""
            lines.add(f"ok {verdict.folder}: {verdict.lines:,} lines in {verdict.files:,} files{from_}; {state}{lost}")
            lines.add(f"last sum {verdict.last.sum}")
        for one in expect:
            if one not in sums:
                failed = True
                lines.add(f"BROKEN no line has the sum {printable(one)}: lines were removed, or all are others")
    if failed:
        raise SystemExit(1)


@audit.command()
@click.argument("name", metavar="BUCKET/NAME")
@_paths
@click.option("--member", default="", help="A member of the archive NAME.")
@_json
def who(name: str, paths: tuple[Path, ...], member: str, as_json: bool) -> None:
    """List who has read or changed the object NAME.

    Without the setting audit_names, only lines about a single object can tell.
    """
    from storage_node.security.audit.search import who as search

    bucket, slash, rest = name.removeprefix("ais://").partition("/")
    if not slash or not rest:
        raise click.UsageError(f"{name}: need BUCKET/NAME")
    found = search(read_lines(paths), bucket, rest, member)
    _show(iter(found.lines), as_json)
    if found.unknown:
        note(
            f"{found.unknown:,} more lines about bucket {printable(bucket)} have no names (audit_names=false): "
            "they may be about this object too"
        )


@audit.command()
@click.argument("subject", metavar="SUBJECT")
@_paths
@_json
def what(subject: str, paths: tuple[Path, ...], as_json: bool) -> None:
    """List what SUBJECT has read and changed: a tenant, the id of a token, or client, node or operator."""
    from storage_node.security.audit.search import what as search

    _show(search(read_lines(paths), subject), as_json)


def _logs(paths: tuple[Path, ...]) -> Iterator[tuple[Path, list[Path], AuditEnd]]:
    """Iterate over the folder, the files and the known end of each log: of a folder, files by number, and in their
    order if they are named."""
    from storage_node.security.audit.log_files import files_in, logs_below
    from storage_node.store.store_record import AuditEnd

    named: dict[Path, list[Path]] = {}
    for path in paths:
        if path.is_file():
            named.setdefault(path.parent, []).append(path)
            continue
        logs = list(logs_below(path))
        if not logs:
            raise click.ClickException(f"{path}: there is no audit log in or below it")
        for folder, end in logs:
            yield folder, files_in(folder), end
    for folder, files in named.items():
        yield folder, files, AuditEnd()


def read_lines(paths: tuple[Path, ...]) -> Iterator[dict[str, Any]]:
    """Iterate over the fields of all lines of these logs."""
    from storage_node.security.audit.log_files import lines_of

    for _, files, _ in _logs(paths):
        for path in files:
            yield from (line.fields for line in lines_of(path))


def _show(found: Iterator[dict[str, Any]], as_json: bool) -> None:
    with OutputLines() as lines:
        for one in found:
            lines.add(json.dumps(one) if as_json else _text(one))


def _text(line: dict[str, Any]) -> str:
    whose = line.get("tenant", "-")
    who = f"{line.get('by', '-')} {whose} {line.get('token', '-')}"
    about = [line.get("call", line["event"]), *line.get("buckets", ()), line.get("target", "")]
    counts = [
        f"{line[name]:,} {name}" for name in ("entries", "delivered", "denied", "failed", "bytes") if name in line
    ]
    words = [line["time"], who, " ".join(filter(None, about)), line.get("outcome", ""), ", ".join(counts)]
    return "  ".join(printable(word) for word in words if word)
