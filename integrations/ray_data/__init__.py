"""Ray Data integration: reads objects and members of shards as rows of a dataset, and stores rows as objects."""

from __future__ import annotations

from .read import read_ais
from .write import Written, write_ais

__all__ = ["Written", "read_ais", "write_ais"]
