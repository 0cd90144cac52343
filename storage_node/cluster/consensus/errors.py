"""Errors of a change of the map. A ValueError of an edit comes out as it is.

Store errors, so that a node passes them on to its client as it does with others.
"""

from __future__ import annotations

from collections.abc import Sequence

from storage_node.store.errors import StoreError


class ChangeFailed(StoreError):
    """Root of these. Nothing was changed unless the class says otherwise."""


class NoMajority(ChangeFailed):
    """Too few nodes answered; `silent` has the endpoints of those that did not."""

    kind = "node-unavailable"

    def __init__(self, message: str, silent: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.silent = list(silent)


class Contended(ChangeFailed):
    """Other changes came first until the time was over."""

    kind = "timeout"


class OutcomeUnknown(ChangeFailed):
    """The change may have been made, or may yet be by whoever changes the map next: look at the map."""

    kind = "timeout"


class NodesSilent(ChangeFailed):
    """Nodes that have to be asked before the change do not answer."""

    kind = "node-unavailable"


class OtherCluster(ChangeFailed):
    """A node belongs to another cluster than was meant."""

    kind = "invalid-request"
