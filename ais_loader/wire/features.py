"""Features of nodes: what some can do that nodes before them could not, by the names that a cluster's map has."""

from __future__ import annotations

from collections.abc import Sequence

TRANSFORMS = "transforms"
"""Entries of batches pass through transforms (BatchRequest.transform)."""
FEATURES: Sequence[str] = (TRANSFORMS,)
"""Of nodes of this version."""
