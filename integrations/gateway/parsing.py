"""Parsing of texts that clients send: percent-encoding, queries and JSON."""

from __future__ import annotations

import json
from typing import Any, NoReturn
from urllib.parse import unquote_to_bytes

from .errors import S3Error


def decoded(text: str, *, plus: bool = False) -> str:
    """Decode percent-encoding once. Raises S3Error unless the result is UTF-8."""
    try:
        return unquote_to_bytes(text.replace("+", " ") if plus else text).decode()
    except UnicodeError:
        raise S3Error("InvalidURI", f"{text[:200]!r} is not the percent-encoding of UTF-8") from None


def parse_json(data: bytes) -> Any:
    """Parse a document. Raises ValueError for what is not JSON in UTF-8, and for texts that UTF-8 does not have."""
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
        if b"\\u" in data:  # half of a surrogate pair, which JSON can name
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the document is nested too deeply") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def query_pairs(query: str) -> list[tuple[str, str]]:
    """Return the parameters of a query, decoded, in their order. Raises S3Error."""
    parts = [part.partition("=") for part in query.split("&") if part]
    if len(parts) > 100:
        raise S3Error("InvalidURI", "the query has too many parameters")
    return [(decoded(name, plus=True), decoded(value, plus=True)) for name, _, value in parts]
