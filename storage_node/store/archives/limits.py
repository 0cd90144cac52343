"""Limits of what archives whose members are read may hold of one drive, and of the process: one frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """Raises ValueError."""

    open_shards: int = 128
    """Kept open, with two descriptors each: the shard's and its index's. The least recently used goes."""
    copy_bytes: int = 4 << 30
    """For decompressed copies of what has no restart points, in files that are gone with the process."""

    def __post_init__(self) -> None:
        if self.open_shards < 1:
            raise ValueError(f"open_shards={self.open_shards}: need at least 1")
        if self.copy_bytes < 0:
            raise ValueError(f"shard_copy_bytes={self.copy_bytes}: need at least 0")
