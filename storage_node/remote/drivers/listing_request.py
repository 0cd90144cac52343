"""Request for one page of a listing: sent, received and parsed in a thread, with limits on its size and pace."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ais_loader.errors import RemoteUnavailable
from storage_node.limits.bounded_xml import XmlSource
from storage_node.limits.pace import Pace
from storage_node.remote.drivers import driver
from storage_node.remote.drivers.driver import RequestFailure
from storage_node.remote.drivers.failures import failure_of, failure_of_answer, message
from storage_node.remote.drivers.object_stores import ObjectStores

T = TypeVar("T")
_REFUSAL_BYTES = 1 << 16


async def page_of(
    request: Callable[[], tuple[str, Mapping[str, str]]],
    place: str,
    stores: ObjectStores,
    secrets: Sequence[str],
    parse: Callable[[XmlSource], T],
) -> T:
    """Return the page that `parse` makes of the answer to a GET.

    Args:
        request: returns the signed URL, and headers. Runs in a thread, because credentials may have to be requested.
        place: what is listed, for messages.
        parse: parses the answer as it arrives, in a thread. Raises ValueError for what is no listing.

    Raises RequestFailure.
    """
    scheme = stores.remote.scheme
    try:
        url, headers = await asyncio.to_thread(request)
    except Exception as error:  # noqa: BLE001 - obstore's classes have no common one
        raise failure_of(error, place, scheme, secrets) from None
    proxy = stores.way.get("proxy_url", "")
    try:
        return await asyncio.to_thread(_get, url, headers, stores.timeout_s, proxy, parse)
    except _ListingRefused as refused:
        raise failure_of_answer(refused.status, refused.body, place, scheme, secrets) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise RequestFailure(RemoteUnavailable(message(place, f"no answer: {reason}", secrets)), retry=True) from None
    except ValueError as error:
        reason = f"its listing cannot be read: {error}"
        raise RequestFailure(RemoteUnavailable(message(place, reason, secrets)), retry=True) from None


def not_advancing(place: str, after: str, secrets: Sequence[str]) -> RequestFailure:
    """Return the failure of a listing that would never end."""
    reason = f"its listing does not advance after {after!r}: each page must follow the one before"
    return RequestFailure(RemoteUnavailable(message(place, reason, secrets)))


class _ListingRefused(Exception):
    """The answer has another status than 200."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status)
        self.status, self.body = status, body.decode(errors="replace")


def _get(url: str, headers: Mapping[str, str], timeout_s: float, proxy: str, parse: Callable[[XmlSource], T]) -> T:
    way = [urllib.request.ProxyHandler({"http": proxy, "https": proxy})] if proxy else []
    opener = urllib.request.build_opener(_NoRedirects, _Http, _Https, *way)
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with contextlib.closing(opener.open(request, timeout=timeout_s)) as answer:
            if answer.status != 200:
                raise _ListingRefused(answer.status, answer.read(_REFUSAL_BYTES))
            return parse(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise _ListingRefused(error.code, error.read(_REFUSAL_BYTES)) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """A redirect is an answer: the signature is for one host."""


class _PacedReads(io.RawIOBase):
    """Reads of a connection. They fail once the server sends too slowly: a limit on silence ends with each byte."""

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw, self._pace, self._moved_bytes = raw, Pace(driver.PACE), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._raw.readinto(buffer) or 0
        self._moved_bytes += count
        if self._pace.is_slow(time.monotonic(), self._moved_bytes):
            raise TimeoutError(driver.TOO_SLOW)
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _PacedAnswer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_PacedReads(self.fp.detach()))


class _ListingConnection(http.client.HTTPConnection):
    response_class = _PacedAnswer


class _TlsConnection(http.client.HTTPSConnection):
    response_class = _PacedAnswer


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_ListingConnection, request)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_TlsConnection, request)
