"""Listing of a bucket of S3 or Google, page by page, with the keys exactly as they are.

obstore's listing fails at a key that is no path of its own, such as a//b or one with a tab, drops a slash at the end,
and lists by folders. So ListObjectsV2, which both have, is requested here. obstore signs the URL, with its credentials.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from urllib.parse import quote, unquote_plus

from storage_node.limits.bounded_xml import XmlSource, parse
from storage_node.remote.drivers.driver import KeyPage, ListedKey
from storage_node.remote.drivers.listing_request import page_of
from storage_node.remote.drivers.object_stores import ObjectStores


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
    return await page_of(
        lambda: (stores.signed_url(text), {}), place, stores, secrets, lambda source: _parsed(source, stores.prefix)
    )


def _parsed(source: XmlSource, above: str) -> KeyPage:
    """Return the page in an answer. `above`: prefix of all keys, which is removed."""
    rows: list[tuple[str, ...]] = []
    names = ("Key", "Size", "ETag", "LastModified")
    root = parse(
        source, "ListBucketResult", {"Contents": lambda row: rows.append(tuple(row.find(name) or "" for name in names))}
    )
    is_encoded = root.find("EncodingType") == "url"
    keys, markers, last = [], 0, ""
    for key, size, etag, modified in rows:
        if is_encoded:
            key = unquote_plus(key)
        if not key.startswith(above):
            raise ValueError("it has a key outside the prefix")
        last, size_bytes = key.removeprefix(above), int(size or 0)
        if not last or (last.endswith("/") and not size_bytes):
            markers += 1
            continue
        modified_ns = int(datetime.fromisoformat(modified).timestamp() * 1000) * 1_000_000 if modified else 0
        keys.append(ListedKey(last, size_bytes, etag, modified_ns))
    is_truncated = root.find("IsTruncated") == "true"
    if is_truncated and not last:
        raise ValueError("it is incomplete and has no keys")
    return KeyPage(keys, last if is_truncated else "", markers)
