"""Errors of a change of the map. A ValueError of an edit is raised unchanged.

Each error belongs to the class that clients of the node receive for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ais_loader.errors import InvalidRequest, LoaderError, NodeUnavailable, SilenceTimeout


class ChangeFailed(LoaderError):
    """Root of these errors. Nothing was changed unless the class says otherwise."""


class NoMajority(ChangeFailed, NodeUnavailable):
    """Too few nodes answered; `silent` has the endpoints of those that did not."""

    def __init__(self, message: str, silent: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.silent = list(silent)


class Contended(ChangeFailed, SilenceTimeout):
    """Other changes came first until the time limit."""


class ChangeUnknown(ChangeFailed, SilenceTimeout):
    """The change may have been made, or may still be made by the next proposer: read the map."""


class NodesSilent(ChangeFailed, NodeUnavailable):
    """Nodes that must be asked before the change do not answer."""


class OtherCluster(ChangeFailed, InvalidRequest):
    """A node belongs to a different cluster than intended."""
