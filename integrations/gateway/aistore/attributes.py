"""Attributes of objects as headers, and the custom metadata that clients set."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from ais_loader.objects.bucket import Bucket
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.reserved import is_reserved

from .. import attributes as stored
from .bodies import CHECKSUM_TYPE, CHECKSUM_VALUE
from .request import AISError

ATIME, VERSION, PRESENT, CUSTOM = "ais-atime", "ais-version", "ais-present", "ais-custom-md"
PROPS = frozenset(
    (
        *("name", "size", "checksum", "atime", "version", "custom", "location", "copies", "ec", "chunked"),
        *("last-modified", "etag"),
    )
)
LOCATION = "t[store]"


def headers_of(info: ObjectInfo) -> dict[str, str]:
    """Return the headers of an answer that stores or reads an object."""
    headers = {ATIME: str(info.modified_ns), VERSION: version_of(info)}
    if info.is_stored:
        headers |= {CHECKSUM_TYPE: "crc32c", CHECKSUM_VALUE: f"{info.checksum:08x}"}
    return {name: value for name, value in headers.items() if _is_header(value)}


def version_of(info: ObjectInfo) -> str:
    """Return the version as an integer that grows with every write; the ETag of a remote object that is not stored."""
    return info.version.split(".")[1] if info.is_stored else info.version


def headers_of_props(info: ObjectInfo, props: frozenset[str], bucket: Bucket) -> dict[str, str]:
    """Return the headers that have these properties of an object."""
    all_headers = headers_of(info)
    wanted = {PRESENT: "true" if info.is_stored else "false"}
    of_prop = {"checksum": (CHECKSUM_TYPE, CHECKSUM_VALUE), "atime": (ATIME,), "version": (VERSION,)}
    for prop, names in of_prop.items():
        if prop in props:
            wanted |= {name: all_headers[name] for name in names if name in all_headers}
    if "location" in props:
        wanted["ais-location"] = LOCATION
    if "copies" in props:
        wanted["ais-mirror-copies"] = str(bucket.info().copies)
    if "chunked" in props and (sizes := stored.part_sizes(info)):
        wanted |= {"ais-chunks-count": str(len(sizes)), "ais-chunks-max-chunk-size": str(max(sizes))}
    if "last-modified" in props:
        wanted["last-modified"] = stored.last_modified(info)
    if "etag" in props:
        wanted["etag"] = f'"{stored.etag(info)}"'
    return wanted


def custom_headers(info: ObjectInfo) -> tuple[tuple[str, str], ...]:
    """Return a header for each pair of custom metadata. Pairs that a header cannot hold are left out."""
    return tuple((CUSTOM, f"{key}={value}") for key, value in custom_of(info).items() if _is_header(f"{key}={value}"))


def _is_header(text: str) -> bool:
    return text.isprintable()


def custom_of(info: ObjectInfo) -> dict[str, str]:
    """Return the metadata that clients have set."""
    metadata = info.metadata.items()
    return {key: value for key, value in metadata if not is_reserved(key) and not key.startswith(stored.OWN)}


def changed(info: ObjectInfo, custom: Mapping[str, Any], *, replaces: bool) -> dict[str, str]:
    """Return an object's metadata after a change of the custom ones. Raises AISError for what metadata cannot hold."""
    for key, value in custom.items():
        if not isinstance(value, str) or not key or key.startswith(stored.OWN) or is_reserved(key):
            raise AISError(400, f"custom metadata {key[:80]!r}: need a string, and a key without 's3.' and 'ais.'")
    old = custom_of(info)
    kept = {key: value for key, value in info.metadata.items() if not (replaces and key in old)}
    return {**kept, **custom}


def custom_text(info: ObjectInfo) -> str:
    """Return custom metadata as listings show them."""
    pairs: Iterable[str] = (f"{key}:{value}" for key, value in sorted(custom_of(info).items()))
    return f"[{' '.join(pairs)}]" if info.metadata and custom_of(info) else ""


def time_text(time_ns: int) -> str:
    """Return a time as listings show it by default, such as `20 Nov 26 10:32 UTC`."""
    moment = datetime.datetime.fromtimestamp(time_ns // 1_000_000_000, datetime.UTC)
    return f"{moment:%d %b %y %H:%M} UTC"
