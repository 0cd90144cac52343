"""`ais-loader doctor`: checks a store, repairs it as far as possible, and rebuilds catalogs."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ais_loader.cli.show import OutputLines, count_text, note, printable, progress, size_text, waiting
from ais_loader.errors import InvalidRequest
from ais_loader.values.urls import is_remote, store_folders

if TYPE_CHECKING:
    from tqdm import tqdm

    from storage_node.store.fsck.report import DriveSummary, Finding, Report

_SHOWN_OF_A_KIND = 20
_REPAIR = "--repair puts right, without losing anything, what can be put right"
_DROP = "a damaged object is whole again when it is put again; --repair --drop-damaged deletes those that are listed"
_CLOSE = "--repair, or `chmod go= PATH`, closes it to other users; the next writer closes the folder of a drive"
_REBUILD = "--rebuild makes anew, from the objects' files, what a drive has lost"
_HINTS = {
    **dict.fromkeys(("drive-unusable", "identity-lost", "record-lost"), _REBUILD),
    **dict.fromkeys(("missing-file", "wrong-size", "corrupt", "bad-entry", "segment-damaged"), _DROP),
    **dict.fromkeys(("orphan", "recoverable", "missing-blocks", "file-identity", "segment-copy"), _REPAIR),
    **dict.fromkeys(("later-epoch", "unknown-bucket", "record-differs", "staging", "misplaced"), _REPAIR),
    "open-permissions": _CLOSE,
}
"""Advice for findings, by kind."""


@click.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option(
    "--checksums", is_flag=True, help="Read every byte and compare checksums; by default, only sizes are compared."
)
@click.option("--repair", is_flag=True, help="Repair what can be repaired without losing data.")
@click.option("--drop-damaged", is_flag=True, help="With --repair: delete objects whose bytes are damaged or gone.")
@click.option("--rebuild", is_flag=True, help="Rebuild unreadable catalogs and lost records from the object files.")
@click.option("--all-drives", is_flag=True, help="With --rebuild: also rebuild catalogs that can be read.")
@click.option(
    "--compact",
    is_flag=True,
    help="Compact the segments of small objects, which frees space, and the catalogs: fewer tables to search for each "
    "look-up. Then check.",
)
@click.option("--verbose", is_flag=True, help="Of a running node, also show its counters and settings.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
def doctor(
    paths: tuple[str, ...],
    checksums: bool,
    repair: bool,
    drop_damaged: bool,
    rebuild: bool,
    all_drives: bool,
    compact: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    """Check a store, or repair it.

    PATH is a drive of the store; list all of them. Without PATH, AIS_LOADER_URL is used. A check changes nothing and
    can run while the store is in use. --repair, --rebuild and --compact need exclusive access: stop the node
    first.

    If PATH is the root of a cluster or an identity folder, what other users of the machine have access to below it is
    listed, and closed with --repair, also while nodes run.

    With grpc://HOST:PORT or node:///FOLDER as PATH, check the health of a running node.

    The exit code is 1 if there are problems that were not repaired; it is 0 if there are only warnings.
    """
    from ais_loader.objects.client import URL_VARIABLE

    if not paths and (variable := os.environ.get(URL_VARIABLE)):
        paths = (variable,)
    if not paths:
        raise click.UsageError(f"no store given: name its drives, or set {URL_VARIABLE}")
    if any(map(is_remote, paths)):
        if len(paths) > 1 or checksums or repair or rebuild or compact:
            raise click.UsageError(
                "a running node can only be asked for its health; for more, stop it and name its drives on its machine"
            )
        healthy = _ask_node(paths[0], verbose=verbose, as_json=as_json)
    else:
        if repair and rebuild:
            raise click.UsageError("--rebuild and --repair cannot be combined: run --rebuild first, then --repair")
        if compact and (checksums or repair or rebuild):
            raise click.UsageError("--compact cannot be combined with --checksums, --repair or --rebuild: run it after")
        if drop_damaged and not repair:
            raise click.UsageError("--drop-damaged needs --repair")
        if all_drives and not rebuild:
            raise click.UsageError("--all-drives needs --rebuild")
        try:
            drives = [folder for path in paths for folder in store_folders(path)]
        except InvalidRequest as error:
            raise click.UsageError(str(error)) from error
        of_operator = [folder for folder in map(Path, drives) if _is_of_operator(folder)]
        if of_operator:
            if len(of_operator) < len(drives) or checksums or drop_damaged or rebuild or compact:
                raise click.UsageError(
                    f"{of_operator[0]} is no drive: only its permissions are checked, apart from drives; --repair "
                    "closes what is open"
                )
            _look_for_open(of_operator, repair=repair, as_json=as_json)
            return
        from storage_node.store.fsck import fsck

        examine: Callable[..., Report] = partial(fsck.check, checksums=checksums)
        if repair:
            examine = partial(fsck.repair, drop_damaged=drop_damaged, checksums=checksums)
        elif rebuild:
            examine = partial(fsck.rebuild, all_drives=all_drives)
        elif compact:
            examine = fsck.compact
        with progress(None, unit="") as bar:
            try:
                report = examine(drives, progress=_advance(bar))
            except InvalidRequest as error:
                raise click.UsageError(str(error)) from error
        if as_json:
            click.echo(json.dumps(report.to_json()))
        else:
            _show(report)
        healthy = not report.errors
    if not healthy:
        raise click.exceptions.Exit(1)


def _advance(bar: tqdm[Any]) -> Callable[[str, int], None]:
    """Return a progress callback whose bar restarts for each step."""

    def advance(doing: str, done: int) -> None:
        if bar.disable:  # without a terminal; it has no description then
            return
        if bar.desc != doing:
            bar.set_description_str(doing, refresh=False)
            bar.n = 0
        bar.update(done - bar.n)

    return advance


# -- a store on this machine


def _show(report: Report) -> None:
    with OutputLines() as lines:
        lines.add(f"store {report.store_uuid or 'unknown'}, {count_text(len(report.drives), 'drive')}")
        for drive in report.drives:
            lines.add(_drive_line(drive))
        by_kind: dict[str, list[Finding]] = defaultdict(list)
        for finding in report.findings:
            by_kind[finding.kind].append(finding)
        for kind, findings in by_kind.items():
            for finding in findings[:_SHOWN_OF_A_KIND]:
                lines.add(_finding_line(finding))
            if len(findings) > _SHOWN_OF_A_KIND:
                more = len(findings) - _SHOWN_OF_A_KIND
                lines.add(f"{findings[0].severity}: {kind}: and {more:,} more (--json shows all)")
        lines.add(_verdict(report))
    from storage_node.store.drive.identity import is_drive_folder

    wrong = [f for f in (*report.errors, *report.warnings) if f.kind in _HINTS]
    # A folder with other content offers nothing to rebuild.
    wrong = [f for f in wrong if f.kind != "identity-lost" or is_drive_folder(Path(f.drive))]
    for hint in dict.fromkeys(_HINTS[f.kind] for f in wrong):
        note(hint)


def _drive_line(drive: DriveSummary) -> str:
    where = printable(drive.path) or drive.uuid
    if drive.problem is not None:
        return f"{where}: not examined: {printable(drive.problem)}"
    parts = [
        f"{count_text(drive.objects, 'object')} ({size_text(drive.object_bytes)})",
        count_text(drive.files, "file"),
    ]
    parts.append("file identities " + ("kept" if drive.keeps_identity else "not kept"))
    if drive.held_by:
        parts.append(f"open for writing by {drive.held_by}")
    return f"{where}: {', '.join(parts)}"


def _finding_line(finding: Finding) -> str:
    about = "/".join(part for part in (finding.bucket, finding.name) if part)
    named = finding.message.startswith(finding.drive)  # also for a finding about the whole store, without a drive
    where = ": ".join(printable(part) for part in ("" if named else finding.drive, about) if part)
    file = f" [{printable(finding.path)}]" if finding.path else ""
    done = f" -> {printable(finding.repaired)}" if finding.repaired is not None else ""
    return (
        f"{finding.severity}: {finding.kind}: {where + ': ' if where else ''}{printable(finding.message)}{file}{done}"
    )


def _verdict(report: Report) -> str:
    how = "every byte was compared with its checksum" if report.checksums else "sizes were compared"
    put_right = sum(finding.repaired is not None for finding in report.findings)
    parts = [count_text(len(report.errors), "error"), count_text(len(report.warnings), "warning")]
    if put_right:
        parts.append(f"{put_right:,} repaired")
    return f"{'healthy' if report.healthy else ', '.join(parts)}; {how}"


# -- the root of a cluster, or an identity folder


def _is_of_operator(folder: Path) -> bool:
    from storage_node.ops.ray_head import FOLDER_NAME
    from storage_node.security.identity.authority import CA_FILE_NAME, CA_KEY_FILE_NAME

    return any((folder / name).exists() for name in (FOLDER_NAME, CA_FILE_NAME, CA_KEY_FILE_NAME))


def _look_for_open(folders: Sequence[Path], *, repair: bool, as_json: bool) -> None:
    """Show, and with `repair` close, what other users have access to in these folders."""
    from storage_node.store.fsck.fsck import open_to_others
    from storage_node.store.permissions import close_to_others

    findings = []
    for found in (found for folder in folders for found in open_to_others(folder)):
        done = "closed to them" if repair and close_to_others(Path(found.drive, found.path)) else None
        findings.append(replace(found, repaired=done))
    left = [finding for finding in findings if finding.repaired is None]
    if as_json:
        shown = [{"severity": finding.severity, **asdict(finding)} for finding in findings]
        click.echo(json.dumps({"findings": shown, "healthy": not left}))
        return
    with OutputLines() as lines:
        for finding in findings:
            lines.add(_finding_line(finding))
        closed = f"{', '.join(map(str, folders))}: closed to other users"
        lines.add(printable(closed) if not left else count_text(len(left), "warning"))
    if left:
        note(_CLOSE)


# -- a node


def _ask_node(url: str, *, verbose: bool, as_json: bool) -> bool:
    """Show the health of a node, or of the nodes of its cluster. Return whether all of them answer, and all drives
    work. `verbose`: also counters and settings."""
    from ais_loader.objects.client import connect

    with waiting(f"{url} to answer"), connect(url, mode="r") as client:
        described: dict[str, Any] = client.describe()
    nodes, drives = described.get("nodes", [described]), described["drives"]
    silent = [node for node in nodes if "error" in node]
    broken = [drive for drive in drives if drive["state"] != "ok"]
    wrong = [f"{count_text(len(silent), 'node')} without an answer"] if silent else []
    wrong += [f"{count_text(len(broken), 'drive')} not ok"] if broken else []
    with OutputLines() as lines:
        if as_json:
            lines.add(json.dumps(described))
        else:
            have = f"{count_text(len(drives), 'drive')} of {count_text(len(nodes), 'node')}"
            lines.add(f"{', '.join(wrong) or 'healthy'}: {have}, version {described['version']}")
            for drive in drives:
                free = f"{size_text(drive['free_bytes'])} free of {size_text(drive['size_bytes'])}"
                lines.add(f"{printable(drive['path'] or drive['uuid'])}: {printable(drive['state'])}, {free}")
            for node in silent:
                lines.add(f"error: node {node['uuid']} at {node['endpoint']}: {printable(node['error'])}")
            for key, value in described.items() if verbose else ():
                if key != "drives":
                    for line in _value_lines(key.replace("_", " "), value):
                        lines.add(printable(line))
    return not wrong


def _value_lines(name: str, value: object) -> Iterator[str]:
    """Format a value as one line; a mapping or a list of mappings as one line per part."""
    if isinstance(value, Mapping):
        yield f"{name}:"
        yield from (f"  {key}: {value[key]}" for key in sorted(value))
    elif isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
        yield f"{name}:"
        yield from ("  " + ", ".join(f"{key} {part}" for key, part in one.items() if part != "") for one in value)
    else:
        yield f"{name}: {value}"
