"""Requests and answers, independent of the HTTP server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from ais_loader.objects.client import Client
    from ais_loader.values.source import Buffer

    from .bodies import Body

    Chunk: TypeAlias = Buffer | list[bytes | memoryview]
    """Bytes that are sent together."""

INLINE_BYTES = 64 << 10
"""Bodies of answers of at most this size are sent together with the headers, by the event loop."""


@dataclass(slots=True)
class RequestHead:
    """The line and headers of a request, what they name, and the client that the request may use."""

    method: str
    path: str
    """The path as it was sent, percent-encoded."""
    query: dict[str, str]
    """Parameters, decoded. Those without a value have an empty one."""
    headers: Mapping[str, str]
    """Headers by their names in lower case."""
    bucket: str
    key: str
    """The object's name as the client has it; "" if the path names none."""
    client: Client


@dataclass(slots=True)
class Request(RequestHead):
    """A request whose signature has been verified, and whose body has arrived."""

    body: Body | None = None
    """None if the call takes none."""
    with_members: bool = False
    """Keys such as `shard.tar/member` name members of archives."""
    owner: str = ""


class Incoming(Protocol):
    """The body of a request while it arrives."""

    def feed(self, pieces: Sequence[bytes]) -> None:
        """Take what arrived next. Raises Refusal."""

    def finish(self) -> None:
        """Check the whole body. Raises Refusal."""


@dataclass(slots=True)
class Response:
    """An answer. `body` is sent with its length if it is bytes, and otherwise with `size_bytes`, or in chunks."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | Iterator[Buffer] | Iterator[Chunk] = b""
    size_bytes: int | None = None
    """Length of a body that is an iterator. None: not known, and the body is sent in chunks."""
    repeated: tuple[tuple[str, str], ...] = ()
    """Further headers, whose names may repeat."""


def xml_response(body: bytes, status: int = 200) -> Response:
    """Return an answer with a document."""
    return Response(status, {"content-type": "application/xml"}, body)
