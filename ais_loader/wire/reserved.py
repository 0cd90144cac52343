"""Reserved keys of an object's metadata, which only the store sets, and of a call's metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ais_loader.errors import InvalidRequest

STORE_PREFIX = "ais."
"""Prefix of the keys by which the store says how it made an object: by a job, or by a promotion."""
REMOTE_PREFIX = f"{STORE_PREFIX}remote-"
"""Prefix of the keys that describe an object's remote object."""
REMOTE_ETAG = f"{REMOTE_PREFIX}etag"
"""ETag of the remote object that a stored object is a copy of."""
CONTENT_HEADERS = ("cache-control", "content-disposition", "content-encoding", "content-language", "content-type")
"""Headers of a remote object that describe its content. With the prefix of the store, they are keys here."""
REMOTE_PENDING = f"{REMOTE_PREFIX}pending"
"""Condition of an upload that has not been done yet; see `storage_node.remote.write_back.upload_plan`."""
REMOTE_DELETED = f"{REMOTE_PREFIX}deleted"
"""In a tombstone: the remote object has been deleted as well."""
DENIED, DENIED_CONTENT, ALLOWED = f"{STORE_PREFIX}denied", f"{STORE_PREFIX}denied-content", f"{STORE_PREFIX}allowed"
"""In a tombstone: why the object is denied, the denied content that it had if that is why, and that it is denied no
longer."""
ETAG_VERSION = "etag:"
"""Beginning of the version of a remote object that is not stored; its ETag follows."""

TENANT_KEY = "ais-tenant-bin"
"""Metadata of a call that carries an object: the tenant's name, in UTF-8."""
ERROR_KIND_KEY = "ais-error-kind"
"""Trailing metadata of a failed call: the error's kind."""
ROLE_KEY, OPERATOR_ROLE, NODE_ROLE = "ais-role", "operator", "node"
"""Metadata of a call to a peer listener: the role of the caller, and its two values."""


def is_reserved(key: str) -> bool:
    """Whether a key of an object's metadata is the store's."""
    return key.startswith(STORE_PREFIX)


def require_unreserved(keys: Iterable[str]) -> None:
    """Check metadata from a client. Raises InvalidRequest for a key that is reserved for the store."""
    for key in keys:
        if is_reserved(key):
            raise InvalidRequest(
                f"metadata {key!r}: keys that begin with {STORE_PREFIX!r} are set by the store alone; use another key"
            )


def of_client(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata without what the store has set."""
    return {key: value for key, value in metadata.items() if not is_reserved(key)}


def of_store(metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata that the store has set, without those of a remote object, which do not hold for a copy."""
    return {key: value for key, value in metadata.items() if is_reserved(key) and not key.startswith(REMOTE_PREFIX)}
