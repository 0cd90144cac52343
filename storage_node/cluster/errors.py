"""Errors of a cluster's nodes that every room of the cluster raises."""

from __future__ import annotations

from ais_loader.errors import LoaderError, NodeUnavailable, OutcomeUnknown, StaleMap


class TooFewCopies(NodeUnavailable):
    """Fewer nodes than the bucket's `min_copies` could take a write; it may be tried again."""


class Unfinished(TooFewCopies):
    """Fewer nodes than that have committed a write, of which some may have."""


def of_one_of_many(error: LoaderError) -> LoaderError:
    """What a client is told of an object among many, which it does not send again as it does a write of its own."""
    return OutcomeUnknown(str(error)) if isinstance(error, Unfinished) else error


class NotAMember(StaleMap):
    """A node that is in the cluster no more, or not yet, asks others as one of it: it learns their map first."""
