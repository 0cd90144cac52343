"""Identity of a caller between nodes: which node it is, by which map it acts, and the cluster's secret.

It travels as metadata of every call to a peer listener. A `CallerChannel` adds it to all that is called through it, so
that no call between nodes can be made without. Who has no place in a map, an operator's command, says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ais_loader.wire.reserved import NODE_ROLE, OPERATOR_ROLE, ROLE_KEY

NODE_KEY = "ais-node"
MAP_VERSION_KEY = "ais-map-version"
SECRET_KEY = "ais-peer-secret"
MIN_SECRET_CHARACTERS = 16
_SECRET = re.compile(rf"[!-~]{{{MIN_SECRET_CHARACTERS},1024}}")

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Caller:
    """`node_uuid` is empty for an operator, who acts by no map."""

    secret: str = field(default="", repr=False)
    node_uuid: bytes = b""
    map_version: Callable[[], int] = int

    def metadata(self) -> Metadata:
        """As things stand now."""
        secret = ((SECRET_KEY, self.secret),) if self.secret else ()
        if not self.node_uuid:
            return (ROLE_KEY, OPERATOR_ROLE), *secret
        return (
            (ROLE_KEY, NODE_ROLE),
            (NODE_KEY, self.node_uuid.hex()),
            (MAP_VERSION_KEY, str(self.map_version())),
            *secret,
        )

    def through(self, channel: Any) -> Any:
        """A channel for generated stubs, of grpc or grpc.aio, that calls as this caller."""
        return CallerChannel(channel, self.metadata)


OPERATOR = Caller()
"""Of a cluster without a secret."""


class CallerChannel:
    """What stubs use of a channel. Not a gRPC interceptor: those put a queue in front of each stream of grpc.aio."""

    def __init__(self, channel: Any, metadata: Callable[[], Metadata]) -> None:
        self._channel = channel
        self._metadata = metadata

    def unary_unary(self, *arguments: Any, **named: Any) -> Any:
        return _Method(self._channel.unary_unary(*arguments, **named), self._metadata)

    def unary_stream(self, *arguments: Any, **named: Any) -> Any:
        return _Method(self._channel.unary_stream(*arguments, **named), self._metadata)

    def stream_unary(self, *arguments: Any, **named: Any) -> Any:
        return _Method(self._channel.stream_unary(*arguments, **named), self._metadata)

    def stream_stream(self, *arguments: Any, **named: Any) -> Any:
        return _Method(self._channel.stream_stream(*arguments, **named), self._metadata)

    def close(self) -> Any:
        """To be awaited where the channel is one of grpc.aio."""
        return self._channel.close()

    def __enter__(self) -> CallerChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


class _Method:
    def __init__(self, method: Any, metadata: Callable[[], Metadata]) -> None:
        self._method = method
        self._metadata = metadata

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._method(*arguments, metadata=self._metadata(), **named)

    def future(self, *arguments: Any, **named: Any) -> Any:
        return self._method.future(*arguments, metadata=self._metadata(), **named)


def read_secret(path: str | Path) -> str:
    """The secret in a file; "" for no path. Raises OSError, and ValueError where the file holds none."""
    if not path:
        return ""
    text = Path(path).read_text(encoding="ascii", errors="replace").strip()
    if not _SECRET.fullmatch(text):
        raise ValueError(
            f"{path}: a secret is one line of {MIN_SECRET_CHARACTERS} to 1024 printable ASCII characters, as "
            "`openssl rand -hex 32` makes"
        )
    return text


def resolved(asked: str, told: str) -> str:
    """Where a node that was asked at one endpoint listens for peers, by what it told; see GetMapResponse."""
    if not told:
        return asked
    return asked.rpartition(":")[0] + told if told.startswith(":") else told
