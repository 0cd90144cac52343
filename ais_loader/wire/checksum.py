"""CRC-32C, the only checksum of clients and nodes: on drives, in archive indexes, in frames and at their receivers."""

from __future__ import annotations

from ais_loader.extras import compiled

with compiled("ais_loader.wire._crc32c"):
    from ais_loader.wire._crc32c import crc32c

__all__ = ["crc32c"]
