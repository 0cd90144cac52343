"""HTTP between a node and a transform's server: where to ask, and what stands in the headers.

    GET  /health      200 when transforms may be sent
    PUT  /transform   hpush: the body is the input; without one where a file is named
    GET  /transform   hpull: the input is fetched from the node, or is the file that is named
    GET  /ws          a WebSocket, whose binary frames are the messages of protos/ais_etl_server.proto

200 with the output, 204 where it was put to where the node said, 4xx and 5xx with one line that says why not. What a
header holds that need not be ASCII is percent-encoded. A WebSocket or a gRPC stream has the same request as a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from ais_loader.wire.generated import ais_etl_server_pb2 as pb

TRANSFORM_PATH = "/transform"
HEALTH_PATH = "/health"
WEBSOCKET_PATH = "/ws"

PATH = "Ais-Etl-Path"
ARGS = "Ais-Etl-Args"
FILE = "Ais-Etl-File"
SOURCE_URL = "Ais-Etl-Source-Url"
SOURCE_TOKEN = "Ais-Etl-Source-Token"
PUT_URL = "Ais-Etl-Put-Url"
PUT_TOKEN = "Ais-Etl-Put-Token"
RECEIPT = "Ais-Etl-Receipt"
"""Of an answer: what the node said that took the output."""
SIZE = "Ais-Etl-Size"
CHECKSUM = "Ais-Etl-Checksum"
"""CRC-32C, eight hexadecimal digits."""
PUT_FAILED = "Ais-Etl-Put-Failed"
"""Of an error: the transform was well, but nobody took its output."""

CHUNK_BYTES = 1 << 20
MAX_ARGS_BYTES = 4096
"""Of arguments as headers: more than this, percent-encoded, some servers refuse."""
MAX_ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class Request:
    """What a node asks of a server for one object; the input itself comes beside it, or from where this says."""

    path: str
    """BUCKET/NAME, for a member /MEMBER behind it."""
    args: str = ""
    """JSON; empty for none."""
    file: str = ""
    """The input is this file."""
    source_url: str = ""
    """The input is fetched from there."""
    source_token: str = ""
    put_url: str = ""
    """The output is put there."""
    put_token: str = ""

    def headers(self) -> dict[str, str]:
        found = {PATH: self.path, ARGS: self.args, FILE: self.file}
        headers = {name: quote(value) for name, value in found.items() if value}
        if self.source_url:
            headers |= {SOURCE_URL: self.source_url, SOURCE_TOKEN: self.source_token}
        if self.put_url:
            headers |= {PUT_URL: self.put_url, PUT_TOKEN: self.put_token}
        return headers

    @classmethod
    def of_headers(cls, headers: Any) -> Request:
        """`headers`: of any framework; its `get` finds names in any case."""
        return cls(
            unquote(headers.get(PATH, "")),
            unquote(headers.get(ARGS, "")),
            unquote(headers.get(FILE, "")),
            headers.get(SOURCE_URL, ""),
            headers.get(SOURCE_TOKEN, ""),
            headers.get(PUT_URL, ""),
            headers.get(PUT_TOKEN, ""),
        )

    @classmethod
    def of_message(cls, first: pb.ServerInput) -> Request:
        return cls(first.path, first.args, first.file, put_url=first.put_url, put_token=first.put_token)

    def message(self, data: bytes | memoryview = b"", last: bool = False) -> pb.ServerInput:
        """The first of an object."""
        return pb.ServerInput(
            path=self.path,
            args=self.args,
            file=self.file,
            put_url=self.put_url,
            put_token=self.put_token,
            data=bytes(data),
            last=last,
        )


def short(text: str) -> str:
    """An error's text as one that may be sent and shown."""
    text = text.strip()
    return text if len(text) <= MAX_ERROR_CHARACTERS else text[: MAX_ERROR_CHARACTERS - 2] + " …"
