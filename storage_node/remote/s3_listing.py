"""Listing of a bucket of S3 or Google, page by page, with the keys exactly as they are.

obstore's listing fails at a key that is no path of its own, such as a//b or one with a tab, drops a slash at the end,
and lists by folders. So ListObjectsV2, which both have, is requested here. obstore signs the URL, with its credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, unquote_plus

from ais_loader.errors import RemoteUnavailable
from storage_node.remote.driver import KeyPage, ListedKey, RequestFailure
from storage_node.remote.failures import failure_of, failure_of_answer, message
from storage_node.remote.object_stores import ObjectStores

_MAX_ANSWER = 64 << 20


async def pages(stores: ObjectStores, prefix: str, after: str, secrets: Sequence[str]) -> AsyncIterator[KeyPage]:
    """Yield pages of keys that begin with `prefix` and follow `after`, relative to the location's prefix.

    Raises RequestFailure.
    """
    while True:
        page = await _page(stores, prefix, after, secrets)
        yield page
        if not page.after:
            return
        after = page.after


async def _page(stores: ObjectStores, prefix: str, after: str, secrets: Sequence[str]) -> KeyPage:
    place = f"{stores.remote.url}/{prefix}"
    query = {"encoding-type": "url", "list-type": "2", "prefix": stores.prefix + prefix}
    if after:
        query["start-after"] = stores.prefix + after
    text = "&".join(f"{name}={quote(value, safe='')}" for name, value in sorted(query.items()))
    body = await answer_of(lambda: (stores.signed_url(text), {}), place, stores, secrets)
    try:
        return _parsed(body, stores.prefix)
    except (ET.ParseError, ValueError) as error:
        raise unreadable(place, error, secrets) from None


async def answer_of(
    request: Callable[[], tuple[str, Mapping[str, str]]], place: str, stores: ObjectStores, secrets: Sequence[str]
) -> bytes:
    """Return the content of the answer to a GET of a listing.

    Args:
        request: returns the signed URL, and headers. Runs in a thread, because credentials may have to be requested.
        place: what is listed, for messages.

    Raises RequestFailure.
    """
    scheme = stores.remote.scheme
    try:
        url, headers = await asyncio.to_thread(request)
    except Exception as error:  # noqa: BLE001 - obstore's classes have no common one
        raise failure_of(error, place, scheme, secrets) from None
    try:
        status, body = await asyncio.to_thread(_get, url, headers, stores.timeout_s, stores.way.get("proxy_url", ""))
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise RequestFailure(RemoteUnavailable(message(place, f"no answer: {reason}", secrets)), retry=True) from None
    if status != 200:
        raise failure_of_answer(status, body.decode(errors="replace"), place, scheme, secrets)
    return body


def unreadable(place: str, error: Exception, secrets: Sequence[str]) -> RequestFailure:
    """Return the failure of an answer that is no listing."""
    reason = f"its listing cannot be read: {error}"
    return RequestFailure(RemoteUnavailable(message(place, reason, secrets)), retry=True)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """A redirect is an answer: the signature is for one host."""


def _get(url: str, headers: Mapping[str, str], timeout_s: float, proxy: str) -> tuple[int, bytes]:
    way = [urllib.request.ProxyHandler({"http": proxy, "https": proxy})] if proxy else []
    opener = urllib.request.build_opener(_NoRedirects, *way)
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with contextlib.closing(opener.open(request, timeout=timeout_s)) as answer:
            body = answer.read(_MAX_ANSWER)
            return answer.status, body
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(1 << 16)


def _parsed(body: bytes, above: str) -> KeyPage:
    """Return the page in an answer. `above`: prefix of all keys, which is removed."""
    root = ET.fromstring(body)
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    if root.tag != f"{space}ListBucketResult":
        raise ValueError(f"it is a {root.tag!r}")

    def text(element: ET.Element, name: str) -> str:
        return element.findtext(space + name) or ""

    is_encoded = text(root, "EncodingType") == "url"
    keys, markers, last = [], 0, ""
    for one in root.iterfind(f"{space}Contents"):
        key = text(one, "Key")
        if is_encoded:
            key = unquote_plus(key)
        if not key.startswith(above):
            raise ValueError("it has a key outside the prefix")
        last, size_bytes = key.removeprefix(above), int(text(one, "Size") or 0)
        if not last or (last.endswith("/") and not size_bytes):
            markers += 1
            continue
        modified = text(one, "LastModified")
        modified_ns = int(datetime.fromisoformat(modified).timestamp() * 1000) * 1_000_000 if modified else 0
        keys.append(ListedKey(last, size_bytes, text(one, "ETag"), modified_ns))
    is_truncated = text(root, "IsTruncated") == "true"
    if is_truncated and not last:
        raise ValueError("it is incomplete and has no keys")
    return KeyPage(keys, last if is_truncated else "", markers)
