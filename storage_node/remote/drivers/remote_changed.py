"""RemoteChanged: the error for an object that was replaced while it was read."""

from __future__ import annotations

from ais_loader.errors import RemoteUnavailable


class RemoteChanged(RemoteUnavailable):
    """The remote object was replaced or deleted after its first bytes were read. Reading it again returns the new
    version."""
