"""Check of a log's files: whether each line is what was written, in its place, and none is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storage_node.security.audit.log_files import CLOSE, FIRST, OPEN, BrokenLine, Link, decode, number_of
from storage_node.store.store_record import AuditEnd


@dataclass(slots=True)
class LogVerdict:
    """Result of the check of one log."""

    folder: Path
    files: int = 0
    lines: int = 0
    last: Link = field(default_factory=Link)
    """The end of the chain, as far as it is right."""
    first_number: int = 1
    """Number of the oldest file."""
    is_closed: bool = False
    """Whether the node has written that it stopped: otherwise it runs, or was killed."""
    lost: int = 0
    """Lines that the node could not write, as the log itself says."""
    sums: set[str] = field(default_factory=set)
    """Digests of all lines that are right."""
    problem: str = ""
    """The first thing that is wrong; empty if nothing is."""


def verify(folder: Path, files: Sequence[Path], end: AuditEnd = AuditEnd()) -> LogVerdict:  # noqa: B008  # frozen
    """Check the files of one log, in this order, up to the first thing that is wrong. Raises OSError.

    `end`: the end that the store's record has, which must be there.
    """
    verdict = LogVerdict(folder)
    oldest = before = 0
    for path in files:
        number = number_of(path)
        if number is None:
            verdict.problem = f"{path}: this is no file of an audit log (audit-NUMBER.jsonl)"
            return verdict
        if verdict.files == 0:
            verdict.first_number = number
        elif number != before + 1:
            gap = f"{number - before - 1} files before it are missing, from number {before + 1} on"
            verdict.problem = f"{path}: {gap if number > before else 'the file is out of order'}"
            return verdict
        before, verdict.files = number, verdict.files + 1
        oldest = _verify_file(path, number, verdict) or oldest
        if verdict.problem:
            return verdict
    if verdict.first_number > oldest > 0:
        verdict.problem = f"{files[0]}: files before it are missing: the log was kept from file {oldest} on"
    elif end.seq and end.sum not in verdict.sums:
        verdict.problem = (
            f"{folder}: line {end.seq} is missing, which the store's record has as the end of a former time"
        )
    return verdict


def _verify_file(path: Path, number: int, verdict: LogVerdict) -> int:
    """Check one file; return the oldest file that existed at its last beginning, 0 if it has none."""
    oldest = 0
    with open(path, "rb") as file:
        for at, text in enumerate(file, 1):
            where = f"{path}, line {at}"
            if not text.endswith(b"\n"):
                verdict.problem = f"{where}: the end is missing ({len(text):,} bytes are there)"
                return oldest
            try:
                line = decode(text[:-1])
            except BrokenLine as error:
                verdict.problem = f"{where}: {error}"
                return oldest
            fields, link = line
            event = fields.get("event")
            if at == 1 and (event != OPEN or fields.get("file") != number):
                verdict.problem = f"{where}: the file does not begin as file {number} does: it is another one"
            elif verdict.lines or number == 1:
                verdict.problem = _break(where, line.before, link.seq, verdict)
            if verdict.problem:
                return oldest
            if event == OPEN:
                oldest = int(fields["oldest"])
            elif event == "lost":
                verdict.lost += int(fields["lines"])
            verdict.is_closed = event == CLOSE
            verdict.last, verdict.lines = link, verdict.lines + 1
            verdict.sums.add(link.sum)
    if not oldest:
        verdict.problem = f"{path}: the file is empty, or its beginning is missing"
    return oldest


def _break(where: str, before: str, seq: int, verdict: LogVerdict) -> str:
    expected = verdict.last if verdict.lines else Link(0, FIRST)
    if seq > expected.seq + 1:
        return f"{where}: lines are missing before it: its number is {seq}, after {expected.seq}"
    if seq <= expected.seq:
        return f"{where}: the line is out of order: its number is {seq}, after {expected.seq}"
    return "" if before == expected.sum else f"{where}: the line does not follow the one before it"
