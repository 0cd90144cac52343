"""Files of an audit log: `audit-NUMBER.jsonl` in one folder, numbered from 1, of which the newest are kept.

The lines are a chain: each is a JSON object that ends with the digest of the line before, and its own. The own digest
covers everything before it in the line, so also the one of the line before. A line that was changed, removed, added or
moved therefore does not fit. Digests have no key: whoever can write the files can make another chain, which only a
digest kept elsewhere tells from the first one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from storage_node.store import store_record as records
from storage_node.store.drive import identity
from storage_node.store.store_record import AuditEnd

FOLDER_NAME = "audit"
OPEN = "open"
"""Event of the line that begins a file, or a run of the node."""
CLOSE = "close"
"""Event of the line that a node writes when it stops."""
_NAME = re.compile(r"audit-(\d{8})\.jsonl")
_MAX_DEPTH = 3
_TAIL_BYTES = 64 << 10


def path_of(folder: Path, number: int) -> Path:
    return folder / f"audit-{number:08}.jsonl"


def number_of(path: Path) -> int | None:
    """Return the number of a log file; None for any other file."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found is not None else None


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of the files of a log, oldest first. Raises OSError."""
    return sorted(number for one in os.listdir(folder) if (number := number_of(Path(one))) is not None)


def files_in(folder: Path) -> list[Path]:
    """Return the files of a log, oldest first; none if there is no folder. Raises OSError."""
    try:
        return [path_of(folder, number) for number in numbers_in(folder)]
    except FileNotFoundError:
        return []


def logs_below(folder: Path, depth: int = _MAX_DEPTH) -> Iterator[tuple[Path, AuditEnd]]:
    """Iterate over the folders of logs in a folder, a drive, or below a root, with the ends that records of drives
    have. Skips unreadable folders. Raises StoreFormatError for a damaged record."""
    try:
        if numbers_in(folder):
            yield folder, _kept_ends(folder.parent).get(folder, AuditEnd())
            return
        inside = sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
        kept = _kept_ends(folder)
    except OSError:
        return
    is_drive = any(one.name == "objects" for one in inside)
    for one in inside if depth else ():
        if one not in kept and (not is_drive or one.name == FOLDER_NAME):
            yield from logs_below(one, depth - 1)
    yield from kept.items()


def _kept_ends(drive: Path) -> dict[Path, AuditEnd]:
    """Return the ends of the logs on a drive and in folders elsewhere that its record has; none if it is no drive."""
    record = records.read(drive)
    if record is None or (known := identity.read(drive)) is None:
        return {}
    folders = {known.drive_uuid: drive / FOLDER_NAME, **{place: Path(place) for place in record.audit if "/" in place}}
    return {folder: record.audit[place] for place, folder in folders.items() if place in record.audit}


def links_backwards(folder: Path) -> Iterator[Link]:
    """Iterate over the whole lines of a log, from the newest one. Raises OSError."""
    for path in reversed(files_in(folder)):
        with open(path, "rb") as file:
            for line in _lines_backwards(file):
                with contextlib.suppress(BrokenLine):
                    yield decode(line).link


def cut_torn_end(path: Path) -> int:
    """Remove a line without an end from the end of a file; return its bytes. Raises OSError."""
    try:
        with open(path, "rb+") as file:
            torn_bytes = len(next(_lines_backwards(file)))
            file.truncate(file.seek(0, os.SEEK_END) - torn_bytes)
            return torn_bytes
    except FileNotFoundError:
        return 0


def _lines_backwards(file: BinaryIO) -> Iterator[bytes]:
    """Iterate over the lines of a file from its end, without their newlines. The first one is what follows the last
    newline, often empty. A full log file is large, and only its end is read."""
    left_bytes, rest = file.seek(0, os.SEEK_END), b""
    while left_bytes:
        size_bytes = min(max(_TAIL_BYTES, len(rest)), left_bytes)  # doubled in a line that is longer
        left_bytes -= size_bytes
        file.seek(left_bytes)
        rest, *lines = (file.read(size_bytes) + rest).split(b"\n")
        yield from reversed(lines)
    yield rest


def lines_of(path: Path) -> Iterator[Line]:
    """Iterate over the whole lines of a file; others are skipped. Raises OSError."""
    with open(path, "rb") as file:
        for line in file:
            try:
                yield decode(line.rstrip(b"\n"))
            except BrokenLine:
                continue


FIRST = "0" * 64
"""The digest before the first line."""
_LINE = re.compile(rb'(\{"seq":\d+,.*),"sum":"([0-9a-f]{64})"\}', re.DOTALL)


class Link(NamedTuple):
    """The end of a chain: the number of its last line, and that line's digest."""

    seq: int = 0
    sum: str = FIRST


class Line(NamedTuple):
    """One line that was read; its own digest is right."""

    fields: dict[str, Any]
    link: Link

    @property
    def before(self) -> str:
        """The digest of the line before."""
        return str(self.fields["prev"])


class BrokenLine(ValueError):
    """A line that is not what was written."""


def encode(last: Link, fields: Mapping[str, Any]) -> tuple[bytes, Link]:
    """Return the line after `last`, with its newline, and the new end of the chain."""
    number = last.seq + 1
    body = json.dumps({"seq": number, **fields, "prev": last.sum}, separators=(",", ":"))[:-1].encode()
    own = _digest(body)
    return body + f',"sum":"{own}"}}\n'.encode(), Link(number, own)


def decode(line: bytes) -> Line:
    """Read a line without its newline. Raises BrokenLine."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise BrokenLine("this is no line of an audit log")
    own = found[2].decode()
    if _digest(found[1]) != own:
        raise BrokenLine("the line was changed: its digest is another one")
    fields = json.loads(found[1] + b"}")
    return Line(fields, Link(int(fields["seq"]), own))


def _digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=32).hexdigest()


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
