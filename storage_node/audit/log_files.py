"""Files of an audit log: `audit-NUMBER.jsonl` in one folder, numbered from 1, of which the newest are kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from storage_node.audit.chain import FIRST, BrokenLine, Line, Link, decode

FOLDER_NAME = "audit"
OPEN = "open"
"""Event of the line that begins a file, or a run of the node."""
CLOSE = "close"
"""Event of the line that a node writes when it stops."""
_NAME = re.compile(r"audit-(\d{8})\.jsonl")
_MAX_DEPTH = 3


def path_of(folder: Path, number: int) -> Path:
    return folder / f"audit-{number:08}.jsonl"


def number_of(path: Path) -> int | None:
    """Return the number of a log file; None for any other file."""
    found = _NAME.fullmatch(path.name)
    return int(found[1]) if found is not None else None


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of the files of a log, oldest first. Raises OSError."""
    return sorted(number for one in os.listdir(folder) if (number := number_of(Path(one))) is not None)


def logs_below(folder: Path, depth: int = _MAX_DEPTH) -> Iterator[Path]:
    """Iterate over the folders of logs in a folder, a drive, or below a root. Skips unreadable folders."""
    try:
        if numbers_in(folder):
            yield folder
            return
        inside = sorted(one for one in folder.iterdir() if one.is_dir() and not one.is_symlink())
    except OSError:
        return
    is_drive = any(one.name == "objects" for one in inside)
    for one in inside if depth else ():
        if not is_drive or one.name == FOLDER_NAME:
            yield from logs_below(one, depth - 1)


def last_link(folder: Path) -> Link:
    """Return the end of the chain: the newest line that is whole. Raises OSError."""
    for number in reversed(numbers_in(folder)):
        for line in reversed(path_of(folder, number).read_bytes().split(b"\n")):
            try:
                return decode(line).link
            except BrokenLine:
                continue
    return Link(0, FIRST)


def lines_of(path: Path) -> Iterator[Line]:
    """Iterate over the whole lines of a file; others are skipped. Raises OSError."""
    with open(path, "rb") as file:
        for line in file:
            try:
                yield decode(line.rstrip(b"\n"))
            except BrokenLine:
                continue
