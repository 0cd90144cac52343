"""RemoteObject: an object at its remote storage, as the storage describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ais_loader.errors import RemoteUnavailable

_MADE_UP = "modified-"


def made_up_etag(modified_ns: int, size_bytes: int) -> str:
    """Return a tag for an object of a server that sends none."""
    return f"{_MADE_UP}{modified_ns}-{size_bytes}"


def is_made_up(etag: str) -> bool:
    """Whether a tag is one that the server does not know."""
    return etag.startswith(_MADE_UP)


@dataclass(frozen=True, slots=True)
class RemoteObject:
    """An object at its remote storage."""

    name: str
    """Name relative to the prefix of the bucket's URL."""
    size_bytes: int
    etag: str
    """Entity tag as the storage sends it, with its quotes; "" if it has none. A file's is made of its inode, time and
    size; that of a web server without tags, of the time and size."""
    version: str = ""
    """Version id; "" if the storage has none."""
    modified_ns: int = 0
    """Time of the last modification, in nanoseconds since 1970."""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The user's metadata. Listings leave it out, and so do files."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Those of `CONTENT_HEADERS` that the storage sends."""


class RemoteChanged(RemoteUnavailable):
    """The remote object was replaced or deleted after its first bytes were read. Reading it again returns the new
    version."""
