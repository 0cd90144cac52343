"""Previews: the kind of an object by its name, and rows of a table from its first bytes. Pure."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["image", "audio", "table", "text", "archive", "none"]
TEXT_BYTES = 256 << 10
"""Number of bytes read from the beginning of a text or a table."""
MAX_ROWS = 200
MAX_COLUMNS = 100
MAX_CELLS = 10_000
MAX_TABLE_BYTES = 512 << 10
"""Size limit of a table as JSON, in which a character beyond ASCII takes up to twelve bytes."""
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
"""Content types sent to browsers, by the ending of the name; all others are sent as bytes."""
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
    """Return the kind by the ending of the name, without reading any bytes."""
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
    """Decode the beginning of a text. A character that is cut, or is not UTF-8, becomes a replacement character."""
    return head.decode("utf-8", errors="replace")


def table_of(name: str, head: bytes, *, whole: bool) -> Table | None:
    """Parse rows of CSV, TSV or lines of JSON. Returns None if the bytes are neither.

    Args:
        head: the beginning of the bytes.
        whole: nothing follows them. Otherwise the last line may be cut, and is left out.
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
    lines = [line for line in text.split("\n") if line.strip()]
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
    """Return a table with at most the permitted number of rows and columns."""
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
