"""Lines of audit logs, and logs without a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from ais_loader.testing.waiting import eventually
from storage_node.cli.audit import audit
from storage_node.security.audit.log import AuditLog, LogPlace
from storage_node.security.audit.log_files import LogVerdict, files_in, lines_of
from storage_node.security.audit.log_files import verify as verify_log
from storage_node.server import NodeServer
from storage_node.store.store_record import AuditEnd

NODE = "ab" * 16


@contextmanager
def log_in(
    folder: Path,
    *,
    file_bytes: int = 1 << 20,
    files: int = 100,
    collect_s: float = 0.0,
    end: AuditEnd = AuditEnd(),  # noqa: B008  # frozen
    keep: Callable[[AuditEnd], object] = bool,
) -> Iterator[AuditLog]:
    """An open log, closed at the end."""
    place = LogPlace(folder, end, keep)
    log = AuditLog(lambda: place, NODE, file_bytes=file_bytes, files=files, collect_s=collect_s)
    log.open()
    try:
        yield log
    finally:
        log.close()


def append(log: AuditLog, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        log.append(lambda number=number: {"event": "change", "number": number})  # type: ignore[misc]


def files_of(folder: Path) -> list[Path]:
    """The files of a log, oldest first; none before its first line."""
    return files_in(folder)


def verify(files: Sequence[Path]) -> LogVerdict:
    """The check of these files alone."""
    return verify_log(files[0].parent, files)


def lines_in(folder: Path) -> list[dict[str, Any]]:
    return [line.fields for path in files_of(folder) for line in lines_of(path)]


def logged(node: NodeServer, **wanted: object) -> list[dict[str, Any]]:
    """The lines of a running node with these fields."""
    assert node.batches is not None and node.batches.node.audit is not None
    folder = node.batches.node.audit.folder
    return [line for line in lines_in(folder) if all(line.get(key) == value for key, value in wanted.items())]


def awaited(node: NodeServer, count: int = 1, **wanted: object) -> list[dict[str, Any]]:
    """So many lines with these fields, once they are written."""
    eventually(lambda: len(logged(node, **wanted)) >= count)
    found = logged(node, **wanted)
    assert len(found) == count, found
    return found


def run(*words: object, fails: bool = False) -> str:
    result = CliRunner().invoke(audit, list(map(str, words)))
    assert (result.exit_code != 0) == fails, result.output
    return result.output
