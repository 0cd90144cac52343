"""Metadata of a stored copy that describe its remote object: by them it is validated, and known to be evictable."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ais_loader.errors import InvalidRequest
from ais_loader.wire.reserved import REMOTE_ETAG, STORE_PREFIX, is_reserved
from storage_node.store.write import checked_metadata

if TYPE_CHECKING:
    from storage_node.remote.drivers.remote_object import RemoteObject

VERSION = f"{STORE_PREFIX}remote-version"
MODIFIED = f"{STORE_PREFIX}remote-modified-ns"
STAMP_KEY = "aisloaderwrite"
"""Key of a write's stamp in a remote object's metadata. Letters alone: Azure allows no hyphen."""


def metadata_of(found: RemoteObject) -> dict[str, str]:
    """Return the metadata of a stored copy: the user's, and the remote object's properties and headers.

    The user's are left out if this store cannot keep them all, and so are headers.
    """
    own = {
        key: value
        for key, value in ((REMOTE_ETAG, found.etag), (VERSION, found.version), (MODIFIED, str(found.modified_ns)))
        if value
    }
    users = {key: value for key, value in found.metadata.items() if not is_reserved(key) and key.lower() != STAMP_KEY}
    headers = {f"{STORE_PREFIX}{name}": value for name, value in found.headers.items()}
    for more in (headers | users, headers):
        with contextlib.suppress(InvalidRequest):
            return checked_metadata(own | more)
    return own


def is_copy(metadata: Mapping[str, str]) -> bool:
    """Whether a stored object is a copy of a remote one, which can be fetched again."""
    return REMOTE_ETAG in metadata
