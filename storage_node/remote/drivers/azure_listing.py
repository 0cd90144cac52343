"""Listing of an Azure container, page by page, with the keys exactly as they are.

obstore's listing fails at a key that is no path of its own, such as a//b. So List Blobs is requested here, signed with
the account's key or a shared access signature; see `ObjectStores.azure_listing_request`.

Azure continues a listing at a marker, and not after a key. Markers are kept by the last key before them; a listing that
starts after another key is read from the beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from email.utils import parsedate_to_datetime
from urllib.parse import unquote

from ais_loader.errors import Unsupported
from storage_node.limits.bounded_xml import Element, XmlSource, parse
from storage_node.remote.drivers.driver import KeyPage, ListedKey, RequestFailure
from storage_node.remote.drivers.failures import message
from storage_node.remote.drivers.listing_request import not_advancing, page_of
from storage_node.remote.drivers.object_stores import ObjectStores

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
