"""Errors of a change of the map. A ValueError of an edit comes out as it is.

Each is of the class that clients of the node receive for it, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader.errors import InvalidRequest, LoaderError, NodeUnavailable, SilenceTimeout


class ChangeFailed(LoaderError):
    """Root of these. Nothing was changed unless the class says otherwise."""


class NoMajority(ChangeFailed, NodeUnavailable):
    """Too few nodes answered; `silent` has the endpoints of those that did not."""

    def __init__(self, message: str, silent: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.silent = list(silent)


class Contended(ChangeFailed, SilenceTimeout):
    """Other changes came first until the time was over."""


class OutcomeUnknown(ChangeFailed, SilenceTimeout):
    """The change may have been made, or may yet be by whoever changes the map next: look at the map."""


class NodesSilent(ChangeFailed, NodeUnavailable):
    """Nodes that have to be asked before the change do not answer."""


class OtherCluster(ChangeFailed, InvalidRequest):
    """A node belongs to another cluster than was meant."""
