"""Limits on the open archives and decompressed copies of one drive, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardLimits:
    """Raises ValueError."""

    open_shards: int = 128
    """Maximum number of open shards, least recently used closed first. Each has two descriptors: the shard's and its
    index's."""
    copy_bytes: int = 4 << 30
    """Disk budget for decompressed copies of shards without restart points. Their files disappear with the process."""

    def __post_init__(self) -> None:
        if self.open_shards < 1:
            raise ValueError(f"open_shards={self.open_shards}: need at least 1")
        if self.copy_bytes < 0:
            raise ValueError(f"shard_copy_bytes={self.copy_bytes}: need at least 0")
