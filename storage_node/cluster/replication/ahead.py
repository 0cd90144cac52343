"""Versions above what nobody could be asked about.

An owner that does not answer may have a version that no other node has heard of: of a write whose coordinator died
after one commit. The first write that has to do without an owner therefore goes far ahead, and all that this node
coordinates later goes on from there. Without this, an acknowledged write could lose against that half-done one when the
owner comes back.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage_node.cluster.replication.replica_set import ReplicaSelection

VERSION_SKIP = 1 << 17
"""So many writes the owners of one object would have to be apart."""


class VersionClockSkips:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._missing: set[str] = set()  # endpoints that have been leapt for since they last took part

    def skip_for(self, writes: Iterable[ReplicaSelection]) -> int:
        """How far the versions of these writes have to be above the clock of this node."""
        skip = 0
        for write in writes:
            for node in write.owners:
                endpoint = write.replica_set.endpoint(node)
                if node in write.taking:
                    self._missing.discard(endpoint)
                elif endpoint not in self._missing:
                    self._missing.add(endpoint)
                    skip = VERSION_SKIP
        return skip
