"""Channel to a transform's server: the interface of all protocols, and the errors they raise."""

from __future__ import annotations

from typing import Protocol

from storage_node.etl.servers.receiver import Receiver
from storage_node.etl.values import Content, Origin
from storage_node.etl.webserver.protocol import Request

CONNECT_S = 5.0
"""Time limit for establishing a connection."""


class ServerFailed(Exception):
    """The server reported that it made no output for the object; the message is the server's."""


class PutFailed(Exception):
    """The server made the output but could not put it to its destination."""


class Unanswered(Exception):
    """It is unknown whether the object was transformed; it may be sent again."""

    def __init__(self, message: str, *, connected: bool) -> None:
        super().__init__(message)
        self.connected = connected
        """Whether there was a connection, which broke. Otherwise the server is not running, or not ready yet."""


class Channel(Protocol):
    """Connections to one server, on the node's event loop: opened on demand, reused, closed when broken."""

    async def ask(self, request: Request, origin: Origin, content: Content, receiver: Receiver) -> str:
        """Pass one object through. The output goes to `receiver`; if the request has it put elsewhere, return the
        receipt.

        If cancelled, no connection remains with a request in progress.

        Raises ServerFailed, PutFailed, Unanswered, and what `receiver` raises.
        """

    async def close(self) -> None:
        """Close all connections. Never raises."""
