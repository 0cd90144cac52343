"""Link from a transform's server to nodes: inputs are fetched and outputs are put over connections that are kept.

Whoever reaches the server names the address. So only this machine's own addresses and the origins that the author has
listed are gone to, and where a redirect leads is not.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ais_loader.checksum import crc32c
from storage_node.config import is_loopback
from storage_node.etl.webserver.protocol import CHUNK_BYTES, MAX_ERROR_CHARACTERS, RECEIPT, short

TIMEOUT_S = 60.0
"""Of silence, in either direction."""


class NodeLinkFailed(Exception):
    """The node did not give, or did not take; the message says what it said."""


@dataclass(slots=True)
class Put:
    """What a node has taken."""

    receipt: str
    size_bytes: int
    checksum: int


class NodeLink:
    """Connections of each thread to each node; used by threads that serve requests."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self._origins = {_origin(url) for url in origins}
        self._local = threading.local()
        self._lock = threading.Lock()
        self._all: set[http.client.HTTPConnection] = set()  # guarded by _lock

    def fetched(self, url: str, token: str) -> Iterator[bytes]:
        """The input, in chunks. Raises NodeLinkFailed, also while it is consumed."""
        connection, path = self._connection(url)
        whole = False
        try:
            answer = self._asked(connection, "GET", path, token, b"")
            while chunk := answer.read(CHUNK_BYTES):
                yield chunk
            whole = True
        except (OSError, http.client.HTTPException) as error:
            raise NodeLinkFailed(f"the input could not be fetched from the node: {error!r}") from error
        finally:
            if not whole:  # what is left of the answer would be taken for the next one
                connection.close()

    def put(self, url: str, token: str, output: bytes | Iterator[bytes]) -> Put:
        """Raises NodeLinkFailed, and what `output` raises."""
        connection, path = self._connection(url)
        taken = Put("", 0, 0)

        def counted(chunks: Iterator[bytes]) -> Iterator[bytes]:
            for chunk in chunks:
                taken.size_bytes += len(chunk)
                taken.checksum = crc32c(chunk, taken.checksum)
                yield chunk

        if isinstance(output, bytes):
            taken.size_bytes, taken.checksum = len(output), crc32c(output)
        else:
            connection.close()  # what is made only once is not sent into a connection that has gone stale
            output = counted(output)
        whole = False
        try:
            answer = self._asked(connection, "PUT", path, token, output)
            answer.read()
            whole = True
        except (OSError, http.client.HTTPException) as error:
            raise NodeLinkFailed(f"the output could not be put to the node: {error!r}") from error
        finally:
            if not whole:
                connection.close()
        taken.receipt = answer.getheader(RECEIPT, "")
        return taken

    def close(self) -> None:
        """Connections of all threads. Nothing may be under way."""
        with self._lock:
            while self._all:
                self._all.pop().close()

    def _asked(
        self, connection: http.client.HTTPConnection, method: str, path: str, token: str, body: bytes | Iterator[bytes]
    ) -> http.client.HTTPResponse:
        headers = {"Authorization": f"Bearer {token}"}
        if isinstance(body, bytes) and method == "PUT":
            headers["Content-Length"] = str(len(body))
        was_open = connection.sock is not None
        try:
            connection.request(method, path, body or None, headers, encode_chunked=isinstance(body, Iterator))
            answer = connection.getresponse()
        except (ConnectionError, http.client.BadStatusLine):
            connection.close()
            if not was_open:
                raise
            connection.request(method, path, body or None, headers)  # the node had closed it meanwhile
            answer = connection.getresponse()
        if answer.status not in (200, 204):
            said = answer.read(MAX_ERROR_CHARACTERS).decode("utf-8", "replace")
            connection.close()
            raise NodeLinkFailed(f"the node answered {answer.status} {answer.reason}: {short(said)}")
        return answer

    def _connection(self, url: str) -> tuple[http.client.HTTPConnection, str]:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
        if parts.scheme != "http" or parts.username or (not is_loopback(host) and _origin(url) not in self._origins):
            raise NodeLinkFailed(f"{url} is neither on this machine nor among the `nodes` of this server")
        kept: dict[tuple[str, int], http.client.HTTPConnection] = self._local.__dict__.setdefault("kept", {})
        if (host, port) not in kept:
            kept[host, port] = connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
            with self._lock:
                self._all.add(connection)
        return kept[host, port], f"{parts.path}?{parts.query}" if parts.query else parts.path


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or 80
