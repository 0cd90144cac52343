"""HTTP protocol between a node and a transform's server: paths and headers.

    GET  /health      200 when transforms may be sent
    PUT  /transform   hpush: the body is the input; no body if a file is named
    GET  /transform   hpull: the input is fetched from the node, or is the named file
    GET  /ws          a WebSocket, whose binary frames are the messages of protos/ais_etl_server.proto

The response is 200 with the output, 204 if the output was put to its destination, 4xx or 5xx with one line that gives
the reason. Header values that may be non-ASCII are percent-encoded. Over a WebSocket, the same request is a message.
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
"""In a response: the receipt of the node that stored the output."""
SIZE = "Ais-Etl-Size"
CHECKSUM = "Ais-Etl-Checksum"
"""CRC-32C, eight hexadecimal digits."""
PUT_FAILED = "Ais-Etl-Put-Failed"
"""In an error: the transform succeeded, but its output was not accepted."""

CHUNK_BYTES = 1 << 20
MAX_ARGS_BYTES = 4096
"""Maximum size of arguments in headers: percent-encoded, more than this is rejected by some servers."""
MAX_ERROR_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class TransformRequest:
    """A node's request to a server for one object. The input is sent along with it, or fetched from where it says."""

    path: str
    """BUCKET/NAME, followed by /MEMBER for a member."""
    args: str = ""
    """JSON; empty if there are none."""
    file: str = ""
    """Path of the file that is the input."""
    source_url: str = ""
    """URL from which the input is fetched."""
    source_token: str = ""
    put_url: str = ""
    """URL to which the output is put."""
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
    def of_headers(cls, headers: Any) -> TransformRequest:
        """Parse headers of any framework; its `get` must ignore case."""
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
    def of_message(cls, first: pb.ServerInput) -> TransformRequest:
        return cls(first.path, first.args, first.file, put_url=first.put_url, put_token=first.put_token)

    def message(self, data: bytes | memoryview = b"", last: bool = False) -> pb.ServerInput:
        """Return the first message of an object."""
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
    """Shorten an error's text for sending and display."""
    text = text.strip()
    return text if len(text) <= MAX_ERROR_CHARACTERS else text[: MAX_ERROR_CHARACTERS - 2] + " …"
