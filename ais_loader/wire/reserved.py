"""Reserved keys: of an object's metadata, which are the store's and never a client's, and of a call's trailer."""

from __future__ import annotations

ORIGINAL_SIZE = "ais-original-size"
"""In bytes, of what was put, where something else is stored that holds the same."""
ORIGINAL_CHECKSUM = "ais-original-crc32c"
"""Of the same, as eight hexadecimal digits."""
RESERVED = frozenset({ORIGINAL_SIZE, ORIGINAL_CHECKSUM})

ERROR_KIND_KEY = "ais-error-kind"
"""Trailing metadata of a failed call: the error's kind."""
