"""WebDataset integration: `ais://` shards for its pipelines and writers, and a map-style dataset of their samples."""

from __future__ import annotations

from .opener import install, uninstall
from .shard_samples import ShardSamples

__all__ = ["ShardSamples", "install", "uninstall"]
