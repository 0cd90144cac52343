"""Features of nodes: capabilities that older nodes lack, by the names used in a cluster's map."""

from __future__ import annotations

from collections.abc import Sequence

TRANSFORMS = "transforms"
"""Entries of batches can be transformed (BatchRequest.transform)."""
FEATURES: Sequence[str] = (TRANSFORMS,)
"""Features of nodes of this version."""
