"""Response of a transform's server to one HTTP request, common to all web frameworks. Runs in threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from storage_node.etl.webserver.base import Failed, Refused, TransformServer
from storage_node.etl.webserver.node_link import NodeLinkFailed
from storage_node.etl.webserver.protocol import CHECKSUM, PUT_FAILED, RECEIPT, SIZE, TransformRequest


@dataclass(slots=True)
class Answer:
    """Status and body. If the body is an iterator that raises, the response is aborted, not ended."""

    status: int
    body: bytes | Iterator[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)


def answer(server: TransformServer, request: TransformRequest, body: Iterable[bytes]) -> Answer:
    """Handle a request. Never raises. The caller reads the rest of `body`, or breaks off."""
    try:
        if not request.path:
            raise Refused("no request for a transform: it has no Ais-Etl-Path")
        output = server.perform(request, body)
        if not request.put_url:
            return Answer(200, output, {"Content-Type": "application/octet-stream"})
    except Refused as error:
        return _error(400, str(error))
    except Failed as error:
        return _error(500, str(error))
    except NodeLinkFailed as error:
        return _error(502, str(error))
    try:
        put = server.put(request, output)
    except Failed as error:
        return _error(500, str(error))
    except NodeLinkFailed as error:
        return _error(502, str(error), {PUT_FAILED: "1"})
    return Answer(204, b"", {RECEIPT: put.receipt, SIZE: str(put.size_bytes), CHECKSUM: f"{put.checksum:08x}"})


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Answer:
    return Answer(status, text.encode(), {"Content-Type": "text/plain; charset=utf-8"} | (headers or {}))
