"""Metadata of a stored copy that describe its remote object: by them it is validated, and known to be evictable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ais_loader.errors import InvalidRequest
from ais_loader.wire.reserved import REMOTE_ETAG, STORE_PREFIX, is_reserved
from storage_node.remote.write_back.upload_plan import STAMP_KEY
from storage_node.store.write import checked_metadata

if TYPE_CHECKING:
    from storage_node.remote.remote_object import RemoteObject

VERSION = f"{STORE_PREFIX}remote-version"
MODIFIED = f"{STORE_PREFIX}remote-modified-ns"
CONTENT_TYPE = f"{STORE_PREFIX}content-type"


def metadata_of(found: RemoteObject) -> dict[str, str]:
    """Return the metadata of a stored copy: the user's, and the remote object's properties.

    Metadata of the user that this store cannot keep are left out.
    """
    own = {
        key: value
        for key, value in (
            (REMOTE_ETAG, found.etag),
            (VERSION, found.version),
            (MODIFIED, str(found.modified_ns)),
            (CONTENT_TYPE, found.content_type),
        )
        if value
    }
    users = {key: value for key, value in found.metadata.items() if not is_reserved(key) and key.lower() != STAMP_KEY}
    try:
        return checked_metadata(own | users)
    except InvalidRequest:
        return own


def is_copy(metadata: Mapping[str, str]) -> bool:
    """Whether a stored object is a copy of a remote one, which can be fetched again."""
    return REMOTE_ETAG in metadata
