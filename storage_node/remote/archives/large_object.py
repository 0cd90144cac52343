"""Large object: a cold object of which readers want parts, until they have asked for much of it."""

from __future__ import annotations

from dataclasses import dataclass

from ais_loader.wire.cold_reads import is_whole
from storage_node.remote.drivers.remote_object import RemoteObject


@dataclass(slots=True)
class LargeObject:
    info: RemoteObject
    large_bytes: int
    """Objects of at most this size are stored at once. So is one of which a longer part is wanted."""
    described_s: float = 0.0
    """When the storage was asked for `info`, on the monotonic clock."""
    requested_bytes: int = 0
    """Bytes that readers have asked for, repeatedly or not."""

    @property
    def is_due(self) -> bool:
        """Whether the object is to be stored."""
        return is_whole(self.info.size_bytes, self.large_bytes, self.requested_bytes)

    def note(self, length: int) -> bool:
        """Count a part that a reader asks for. Returns whether the object is to be stored."""
        self.requested_bytes += max(0, length)
        return self.is_due or length > self.large_bytes
