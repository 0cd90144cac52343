"""Errors of a cluster's nodes that several of its components raise."""

from __future__ import annotations

from ais_loader import errors
from ais_loader.errors import LoaderError, NodeUnavailable, Overloaded, SilenceTimeout, StaleMap
from ais_loader.wire.generated import ais_objects_pb2 as pb


class TooFewCopies(NodeUnavailable):
    """Fewer nodes than the bucket's `min_copies` could take a write, or have committed it; it may be retried."""


class LeftBehind(TooFewCopies):
    """This node acted by an old map; nothing was changed."""


class NotAMember(StaleMap):
    """A node that is not in the cluster, or not yet, called others as a member; it first fetches their map."""


class ReplicaLost(Exception):
    """A node takes no part in a write, or no longer. `refusal` is its reason; None if it did not answer."""

    def __init__(self, message: str, refusal: LoaderError | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may succeed: the node did not answer, or is stopping."""
        return self.refusal is None or type(self.refusal) in (LoaderError, NodeUnavailable, Overloaded, SilenceTimeout)


def refused(who: str, error: pb.Error) -> ReplicaLost:
    return ReplicaLost(f"{who}: {error.message}", errors.from_node(error.kind, error.message))
