"""Checksummed JSON: small files that are read only if intact; a text with its checksum and a format version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ais_loader.errors import StoreFormatError
from storage_node.store.checksum import crc32c


def encode_checked(kind: str, version: int, fields: dict[str, Any]) -> bytes:
    """Encode fields under the key `kind`."""
    body = json.dumps(fields, sort_keys=True)
    return json.dumps({"format": version, "checksum": crc32c(body.encode()), kind: body}).encode()


def decode_checked(kind: str, version: int, data: bytes, source: Path) -> dict[str, Any]:
    """Decode fields. Raises StoreFormatError for another version or a damaged file; ValueError, KeyError, TypeError,
    AttributeError for anything that `encode_checked` never writes."""
    outer = json.loads(data)
    if outer["format"] != version:
        raise StoreFormatError(f"{source}: format {outer['format']}; this version reads format {version}")
    if crc32c(outer[kind].encode()) != outer["checksum"]:
        raise StoreFormatError(f"{source}: the checksum does not match, the file is damaged")
    fields: dict[str, Any] = json.loads(outer[kind])
    return fields
