"""Reserved keys: of an object's metadata, which are the store's and never a client's, and of a call."""

from __future__ import annotations

ORIGINAL_SIZE = "ais-original-size"
"""In bytes, of what was put, where something else is stored that holds the same."""
ORIGINAL_CHECKSUM = "ais-original-crc32c"
"""Of the same, as eight hexadecimal digits."""
RESERVED = frozenset({ORIGINAL_SIZE, ORIGINAL_CHECKSUM})

TENANT_KEY = "ais-tenant-bin"
"""Metadata of a call that carries an object: the tenant's name, in UTF-8."""
ERROR_KIND_KEY = "ais-error-kind"
"""Trailing metadata of a failed call: the error's kind."""
ROLE_KEY, OPERATOR_ROLE, NODE_ROLE = "ais-role", "operator", "node"
"""Metadata of a call to a peer listener: what the caller is, and the two that there are."""
