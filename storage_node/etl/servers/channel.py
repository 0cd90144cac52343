"""Channel to a transform's server: what each way of talking to one has to do, and how it can fail."""

from __future__ import annotations

from typing import Protocol

from storage_node.etl.servers.receiver import Receiver
from storage_node.etl.values import Content, Origin
from storage_node.etl.webserver.protocol import Request

CONNECT_S = 5.0
"""For a connection to be made."""


class ServerFailed(Exception):
    """The server said that nothing was made of the object; the message is its."""


class PutFailed(Exception):
    """The server made it, and could not put it where it was told to."""


class Unanswered(Exception):
    """Nobody knows whether it was transformed; it may be asked again."""

    def __init__(self, message: str, *, connected: bool) -> None:
        super().__init__(message)
        self.connected = connected
        """Somebody was there, and broke off. Otherwise nobody is, or is not ready yet."""


class Channel(Protocol):
    """Connections to one server, on the node's event loop. Made where they are needed, kept, and closed when broken."""

    async def ask(self, request: Request, origin: Origin, content: Content, receiver: Receiver) -> str:
        """Pass one object through; the output goes to `receiver`, unless the request has it put: then its receipt.

        Cancelled, it leaves no connection behind on which something is under way.

        Raises ServerFailed, PutFailed, Unanswered, and what `receiver` raises.
        """

    async def close(self) -> None:
        """Never raises."""
