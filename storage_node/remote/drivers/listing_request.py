"""Request for one page of a listing: sent, received and parsed in a thread, with limits on its size and pace.

The listing of an Azure container has the keys exactly as they are. obstore's fails at a key that is no path of its own,
such as a//b. So List Blobs is requested here, signed with the account's key or a shared access signature; see
`ObjectStores.azure_listing_request`.

Azure continues a listing at a marker, and not after a key. Markers are kept by the last key before them; a listing that
starts after another key is read from the beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import unquote

from ais_loader.errors import RemoteUnavailable, Unsupported
from storage_node.limits.bounded_xml import Element, XmlSource, parse
from storage_node.limits.pace import Pace
from storage_node.remote.drivers import driver
from storage_node.remote.drivers.driver import KeyPage, ListedKey, RequestFailure
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


PAGE_KEYS = 1000
"""The most keys of a page. Azure would send 5,000, of up to 4 KiB each, in an answer beyond the limit."""
_MARKERS_KEPT = 1000


class AzureListing:
    """Listings of one container. Belongs to one event loop."""

    def __init__(self, stores: ObjectStores, secrets: Sequence[str]) -> None:
        self._stores, self._secrets = stores, secrets
        self._markers: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def pages(self, prefix: str, after: str) -> AsyncIterator[KeyPage]:
        """Yield pages of keys that begin with `prefix` and follow `after`, relative to the location's prefix.

        Raises RequestFailure.
        """
        place = f"{self._stores.remote.url}/{prefix}"
        marker = self._markers.get((prefix, after), "")
        continued, known, pages = bool(marker), marker, 0
        while True:
            query = {
                "comp": "list",
                "maxresults": str(PAGE_KEYS),
                "prefix": self._stores.prefix + prefix,
                "restype": "container",
                **({"marker": marker} if marker else {}),
            }
            keys, marker, markers = await page_of(
                lambda query=query: self._stores.azure_listing_request(query),  # type: ignore[misc]
                place,
                self._stores,
                self._secrets,
                lambda source: _parsed(source, self._stores.prefix),
            )
            # Markers may lead in a circle, which comes by each marker that is kept.
            pages += 1
            if marker and marker == known:
                raise not_advancing(place, after, self._secrets)
            if not pages & (pages - 1):
                known = marker
            if continued and keys and min(keys).key <= after:
                raise self._unordered(place, min(keys).key, after)
            # Azure may order by UTF-16. A page is put into the order of UTF-8; pages cannot be.
            keys = sorted(key for key in keys if key.key > after or not after)
            if marker and not keys:
                continue  # before `after`, or only directory markers
            last = keys[-1].key if keys else after
            if marker:
                self._keep(prefix, last, marker)
            yield KeyPage(keys, last if marker else "", markers)
            if not marker:
                return
            after, continued = last, True

    def _unordered(self, place: str, key: str, after: str) -> RequestFailure:
        reason = f"it lists {key!r} after {after!r}: such names cannot be listed here; name the objects in your entries"
        return RequestFailure(Unsupported(message(place, reason, self._secrets)))

    def _keep(self, prefix: str, last: str, marker: str) -> None:
        self._markers[prefix, last] = marker
        while len(self._markers) > _MARKERS_KEPT:
            self._markers.popitem(last=False)


def _parsed(source: XmlSource, above: str) -> tuple[list[ListedKey], str, int]:
    """Return the keys of an answer, the marker of the next page, and the number of directory markers."""
    keys, markers = [], 0

    def take(blob: Element) -> None:
        nonlocal markers
        name, properties = blob.child("Name"), blob.child("Properties") or Element("Properties", {})
        key = "" if name is None else name.text
        if name is not None and name.attributes.get("Encoded") == "true":
            key = unquote(key)
        if not key.startswith(above):
            raise ValueError("it has a key outside the prefix")
        key = key.removeprefix(above)
        size_bytes = int(properties.find("Content-Length") or 0)
        is_folder = properties.find("ResourceType") == "directory"
        if not key or is_folder or (key.endswith("/") and not size_bytes):
            markers += 1
            return
        modified = properties.find("Last-Modified")
        modified_ns = int(parsedate_to_datetime(modified).timestamp()) * 1_000_000_000 if modified else 0
        keys.append(ListedKey(key, size_bytes, quoted_etag(properties.find("Etag") or ""), modified_ns))

    root = parse(source, "EnumerationResults", {"Blob": take})
    return keys, root.find("NextMarker") or "", markers


def quoted_etag(etag: str) -> str:
    """Return a tag of a listing as a GET has it: Azure's listings leave out the quotes."""
    return f'"{etag}"' if etag and '"' not in etag else etag
