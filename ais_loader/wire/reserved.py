"""Keys of an object's metadata that are the store's: what a client says under them is not kept."""

from __future__ import annotations

ORIGINAL_SIZE = "ais-original-size"
"""In bytes, of what was put, where something else is stored that holds the same."""
ORIGINAL_CHECKSUM = "ais-original-crc32c"
"""Of the same, as eight hexadecimal digits."""
RESERVED = frozenset({ORIGINAL_SIZE, ORIGINAL_CHECKSUM})
