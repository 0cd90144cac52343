"""Metadata of a stored copy and of its remote object: by them a copy is validated, and known to be evictable."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ais_loader.errors import InvalidRequest
from ais_loader.wire.reserved import CONTENT_HEADERS, REMOTE_ETAG, STORE_PREFIX, is_reserved, of_store
from storage_node.store.write import checked_metadata

if TYPE_CHECKING:
    from storage_node.remote.drivers.driver import RemoteObject

VERSION = f"{STORE_PREFIX}remote-version"
MODIFIED = f"{STORE_PREFIX}remote-modified-ns"
STAMP_KEY = "aisloaderwrite"
"""Key of a write's stamp in a remote object's metadata. Letters alone: Azure allows no hyphen."""
MADE_KEY = "aisloadermade"
"""Key of what the store says of how it made an object, as JSON in ASCII: Azure allows none of its own keys."""
_MOST_MADE_BYTES = 1500
"""S3 keeps 2 KB of metadata. What is longer is left out: the object is made again once its copy is evicted."""


def remote_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata with which an object is put to remote storage."""
    headers = {f"{STORE_PREFIX}{header}" for header in CONTENT_HEADERS}
    made = {key: value for key, value in of_store(metadata).items() if key not in headers}
    text = json.dumps(made, separators=(",", ":"))
    sent = {key: value for key, value in metadata.items() if not is_reserved(key) or key in headers}
    return sent | {MADE_KEY: text} if made and len(text) <= _MOST_MADE_BYTES else sent


def _made(text: str) -> dict[str, str]:
    try:
        return of_store({str(key): str(value) for key, value in json.loads(text).items()})
    except (ValueError, AttributeError, RecursionError):  # it is written by others
        return {}


def metadata_of(found: RemoteObject) -> dict[str, str]:
    """Return the metadata of a stored copy: the user's, and the remote object's properties and headers.

    The user's are left out if this store cannot keep them all, and so are headers.
    """
    own = {
        key: value
        for key, value in ((REMOTE_ETAG, found.etag), (VERSION, found.version), (MODIFIED, str(found.modified_ns)))
        if value
    }
    made = _made(next((value for key, value in found.metadata.items() if key.lower() == MADE_KEY), "{}"))
    users = {
        key: value
        for key, value in found.metadata.items()
        if not is_reserved(key) and key.lower() not in (STAMP_KEY, MADE_KEY)
    }
    headers = {f"{STORE_PREFIX}{name}": value for name, value in found.headers.items()}
    for more in (made | headers | users, made | headers, headers):
        with contextlib.suppress(InvalidRequest):
            return checked_metadata(own | more)
    return own


def is_copy(metadata: Mapping[str, str]) -> bool:
    """Whether a stored object is a copy of a remote one, which can be fetched again."""
    return REMOTE_ETAG in metadata
