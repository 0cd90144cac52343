"""Head of an answer: its status and headers as HTTP 1.1 has them, for answers that do not pass the HTTP server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from http import HTTPStatus

from storage_node.gateway.attributes import http_date

_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def head(status: int, headers: Iterable[tuple[str, str]], *, size_bytes: int | None, keep_alive: bool) -> bytes:
    """Return everything that precedes the body.

    Args:
        size_bytes: Length of the body. None: it is sent in chunks.
        keep_alive: Another request may follow on the connection.

    Raises ValueError for a header with a control character.
    """
    lines = [f"{name}: {value}" for name, value in headers]
    lines.append("transfer-encoding: chunked" if size_bytes is None else f"content-length: {size_bytes}")
    lines.append(f"date: {http_date(int(time.time()))}")
    if not keep_alive:
        lines.append("connection: close")
    for line in lines:
        if _FORBIDDEN.search(line):
            raise ValueError(f"a header has a control character: {line[:80]!r}")
    return "\r\n".join([f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "\r\n"]).encode()
