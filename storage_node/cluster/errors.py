"""Errors of a cluster's nodes that several of its components raise."""

from __future__ import annotations

from ais_loader.errors import LoaderError, NodeUnavailable, OutcomeUnknown, StaleMap


class TooFewCopies(NodeUnavailable):
    """Fewer nodes than the bucket's `min_copies` could take a write; it may be retried."""


class Unfinished(TooFewCopies):
    """Fewer nodes than `min_copies` have committed a write; some of them may have."""


def of_one_of_many(error: LoaderError) -> LoaderError:
    """Convert an error for one object among many, which the client does not retry as it does a single write."""
    return OutcomeUnknown(str(error)) if isinstance(error, Unfinished) else error


class NotAMember(StaleMap):
    """A node that is not in the cluster, or not yet, called others as a member; it first fetches their map."""
