"""Errors of a cluster's nodes that every room of the cluster raises."""

from __future__ import annotations

from ais_loader.errors import NodeUnavailable


class TooFewCopies(NodeUnavailable):
    """Fewer nodes than the bucket's `min_copies` could take a write; it may be tried again."""
