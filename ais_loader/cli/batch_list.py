"""Batch list parser: one entry per line, as a name or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from ais_loader.cli.stores import parse_entry
from ais_loader.errors import InvalidRequest
from ais_loader.values.entry import Entry

_FIELDS: dict[str, type] = {"bucket": str, "name": str, "member": str, "start": int, "length": int, "version": str}
_REQUIRED = frozenset({"bucket", "name"})
_NULLABLE = frozenset({"member", "length", "version"})
# Fields of `ls --json` and `ledger --json` beyond what is fetched.
_IGNORED = frozenset({"size_bytes", "crc32c", "modified", "metadata", "step", "rank", "number", "source", "piece"})


def parse_list(lines: Iterable[bytes], origin: str) -> list[Entry]:
    """Parse an entry from each line that is not blank and does not begin with "#".

    A line is `ais://BUCKET/NAME`, `BUCKET/NAME`, or a JSON object with some of the fields of an Entry. Raises
    click.ClickException with the number of the wrong line.
    """
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n").lstrip()
            if text and not text.startswith("#"):
                entries.append(_parse_json(text) if text.startswith(("{", "[")) else _parse_name(text))
        except UnicodeDecodeError:
            raise click.ClickException(f"{origin}, line {number}: not UTF-8 text") from None
        except InvalidRequest as error:
            raise click.ClickException(f"{origin}, line {number}: {error}") from None
    return entries


def _parse_name(text: str) -> Entry:
    if text.endswith("/"):
        raise InvalidRequest(f"{text!r} is a folder: `ls --recursive` lists the objects in it")
    return parse_entry(text)


def _parse_json(text: str) -> Entry:
    try:
        fields: Any = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InvalidRequest('need one JSON object per line, as in {"bucket": "speech", "name": "en/a.wav"}')
    if "folder" in fields:
        raise InvalidRequest(f"{fields['folder']!r} is a folder: `ls --recursive` lists the objects in it")
    if unknown := sorted(fields.keys() - _FIELDS.keys() - _IGNORED):
        raise InvalidRequest(f"unknown field {unknown[0]!r}; an entry has {', '.join(_FIELDS)}")
    known = {name: value for name, value in fields.items() if name in _FIELDS}
    for name, kind in _FIELDS.items():
        if name not in known:
            if name in _REQUIRED:
                raise InvalidRequest(f"no {name}; need bucket and name")
            continue
        value = known[name]
        if value is None and name in _NULLABLE:
            continue
        # Not isinstance: `true` is not a number of bytes.
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            need = "a number of bytes, 0 or more" if kind is int else "a string"
            raise InvalidRequest(f"{name} must be {need}, got {json.dumps(value)}")
    return Entry(**known)
