"""Previews: of which kind an object is by its name, and rows of a table from its first bytes. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["image", "audio", "table", "text", "archive", "none"]
TEXT_BYTES = 256 << 10
"""Of a text or a table, so much is read from the beginning."""
MAX_ROWS = 200
MAX_COLUMNS = 100
MAX_CELLS = 10_000
MAX_TABLE_BYTES = 512 << 10
"""Size of a table as JSON, in which characters beyond ASCII take up to twelve bytes."""
_CELL = 300
_ABSENT = object()
MEDIA = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "m4a": "audio/mp4",
}
"""What a browser is told of the bytes, by the ending of their name; of all others, that they are bytes."""
_TABLES = {"csv", "tsv", "jsonl", "ndjson"}
_TEXTS = {
    "txt",
    "text",
    "json",
    "md",
    "py",
    "yaml",
    "yml",
    "toml",
    "xml",
    "html",
    "svg",
    "log",
    "cls",
    "srt",
    "vtt",
    "lst",
}
_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.lz4", ".zip")


def ending(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[2].lower()


def kind_of(name: str) -> Kind:
    """By the ending of the name: bytes are not looked at."""
    if name.lower().endswith(_ARCHIVES):
        return "archive"
    if (media := MEDIA.get(ending(name))) is not None:
        return "image" if media.startswith("image/") else "audio"
    return "table" if ending(name) in _TABLES else "text" if ending(name) in _TEXTS else "none"


@dataclass(frozen=True, slots=True)
class Table:
    """The first rows and columns of a table."""

    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    more: bool = False
    """Whether rows, columns or cells are left out."""


def text_of(head: bytes) -> str:
    """What can be shown of the beginning of a text; a character that is cut, or no UTF-8, shows as such."""
    return head.decode("utf-8", errors="replace")


def table_of(name: str, head: bytes, *, whole: bool) -> Table | None:
    """Rows of CSV, TSV or lines of JSON; None for what cannot be read as that.

    Args:
        head: the beginning of the bytes.
        whole: nothing comes after them. Otherwise the last line may be cut, and is left out.
    """
    text = text_of(head)
    if not whole:
        text = text[: text.rfind("\n") + 1]
    if ending(name) in ("csv", "tsv"):
        return _separated(text, "\t" if ending(name) == "tsv" else ",", whole)
    return _json_lines(text, whole)


def _separated(text: str, delimiter: str, whole: bool) -> Table | None:
    try:
        rows = list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return None
    if not rows:
        return None
    return _bounded(rows[0], rows[1:], more=not whole)


def _json_lines(text: str, whole: bool) -> Table | None:
    found: list[dict[str, Any]] = []
    lines = [line for line in text.splitlines() if line.strip()]
    for line in lines[:MAX_ROWS]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
        found.append(value if isinstance(value, dict) else {"value": value})
    if not found:
        return None
    columns = list(dict.fromkeys(name for row in found for name in row))
    shown = columns[:MAX_COLUMNS]
    body = ([row.get(name, _ABSENT) for name in shown] for row in found)
    return _bounded(columns, body, more=not whole or len(lines) > MAX_ROWS)


def _bounded(columns: Sequence[str], rows: Iterable[Sequence[object]], *, more: bool) -> Table:
    """A table of as many rows and columns as may be shown."""
    table = Table([_cell(name) for name in columns[:MAX_COLUMNS]])
    most_rows = min(MAX_ROWS, MAX_CELLS // max(1, len(table.columns)))
    left_bytes = MAX_TABLE_BYTES
    more = more or len(columns) > MAX_COLUMNS
    for row in rows:
        shown = [_cell(value) for value in row[: len(table.columns)]]
        left_bytes -= len(json.dumps(shown))
        if len(table.rows) == most_rows or left_bytes < 0:
            more = True
            break
        table.rows.append(shown)
    return replace(table, more=more)


def _cell(value: object) -> str:
    if value is _ABSENT:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
