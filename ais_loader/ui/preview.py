"""Previews: of which kind an object is by its name, and rows of a table from its first bytes. Pure."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["image", "audio", "table", "text", "archive", "none"]
TEXT_BYTES = 256 << 10
"""Of a text or a table, so much is read from the beginning."""
MAX_ROWS = 200
_CELL = 300
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
    """The first rows of a table."""

    columns: list[str]
    rows: list[list[str]] = field(default_factory=list)
    more: bool = False


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
    body = [[_cell(value) for value in row] for row in rows[1 : MAX_ROWS + 1]]
    return Table([_cell(name) for name in rows[0]], body, not whole or len(rows) > MAX_ROWS + 1)


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
    body = [[_cell(row[name]) if name in row else "" for name in columns] for row in found]
    return Table([_cell(name) for name in columns], body, not whole or len(lines) > MAX_ROWS)


def _cell(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
