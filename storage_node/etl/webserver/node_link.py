"""Link from a transform's server to nodes: fetches inputs and puts outputs over persistent connections.

Any client that reaches the server can name an address. Therefore the link connects only to this machine's own addresses
and to the origins that the author has listed, and follows no redirects.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ais_loader.wire.checksum import crc32c
from storage_node.etl.webserver.protocol import CHUNK_BYTES, MAX_ERROR_CHARACTERS, RECEIPT, short
from storage_node.settings.config import is_loopback

TIMEOUT_S = 60.0
"""Maximum time without data, in either direction."""


class NodeLinkFailed(Exception):
    """The node did not send or did not accept the data; the message contains its response."""


@dataclass(slots=True)
class Put:
    """The output as a node has stored it."""

    receipt: str
    size_bytes: int
    checksum: int


class NodeLink:
    """Connections to each node, used by the threads that serve requests."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self._origins = {_origin(url) for url in origins}
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, int], list[http.client.HTTPConnection]] = {}  # guarded by _lock
        self._closed = False  # guarded by _lock

    def fetched(self, url: str, token: str) -> Iterator[bytes]:
        """Yield the input in chunks. Raises NodeLinkFailed, also while it is consumed."""
        with self._connection(url, "the input could not be fetched from the node") as connection:
            answer = _exchange(connection, "GET", url, token, b"")
            wanted, got = answer.length, 0
            while chunk := answer.read(CHUNK_BYTES):
                got += len(chunk)
                yield chunk
            if wanted is not None and got != wanted:  # http.client does not report it
                raise ConnectionError(f"it broke off after {got:,} of {wanted:,} bytes")

    def put(self, url: str, token: str, output: bytes | Iterator[bytes]) -> Put:
        """Put an output. Raises NodeLinkFailed, and what `output` raises."""
        sent = Put("", 0, 0)

        def counted(chunks: Iterator[bytes]) -> Iterator[bytes]:
            for chunk in chunks:
                sent.size_bytes += len(chunk)
                sent.checksum = crc32c(chunk, sent.checksum)
                yield chunk

        with self._connection(url, "the output could not be put to the node") as connection:
            if isinstance(output, bytes):
                sent.size_bytes, sent.checksum = len(output), crc32c(output)
            else:
                connection.close()  # an iterator cannot be sent again if the connection is stale
                output = counted(output)
            answer = _exchange(connection, "PUT", url, token, output)
            answer.read()
        sent.receipt = answer.getheader(RECEIPT, "")
        return sent

    def close(self) -> None:
        """Close idle connections now, and the others after their use."""
        with self._lock:
            self._closed = True
            for connections in self._idle.values():
                while connections:
                    connections.pop().close()

    @contextlib.contextmanager
    def _connection(self, url: str, failure: str) -> Iterator[http.client.HTTPConnection]:
        """Return a connection for exclusive use. It is reused afterwards unless this raises; errors of the connection
        become NodeLinkFailed."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 80
        if parts.scheme != "http" or parts.username or (not is_loopback(host) and _origin(url) not in self._origins):
            raise NodeLinkFailed(f"{url} is neither on this machine nor among the `nodes` of this server")
        with self._lock:
            idle = self._idle.setdefault((host, port), [])
            connection = idle.pop() if idle else http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        try:
            yield connection
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise NodeLinkFailed(f"{failure}: {error!r}") from error
        except BaseException:  # the rest of the response would be mistaken for the next one
            connection.close()
            raise
        with self._lock:
            if not self._closed:
                idle.append(connection)
                return
        connection.close()


def _exchange(
    connection: http.client.HTTPConnection, method: str, url: str, token: str, body: bytes | Iterator[bytes]
) -> http.client.HTTPResponse:
    parts = urlsplit(url)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
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
        connection.request(method, path, body or None, headers)  # the node had closed the idle connection
        answer = connection.getresponse()
    if answer.status not in (200, 204):
        text = answer.read(MAX_ERROR_CHARACTERS).decode("utf-8", "replace")
        raise NodeLinkFailed(f"the node answered {answer.status} {answer.reason}: {short(text)}")
    return answer


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or 80
