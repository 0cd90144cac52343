"""Membership of one node: the newest committed map that it knows, and its place in it. Thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.context.map_pin import MapLease


class Membership:
    """The map of one node; `view` is None while the node belongs to no cluster."""

    def __init__(self, node_uuid: bytes, view: ClusterView | None = None) -> None:
        self.node_uuid = node_uuid
        self.view = view
        """Replaced, never modified: read it once and use that value throughout."""
        self.lease = MapLease(self)
        self._lock = threading.Lock()
        self._listeners: list[Callable[[ClusterView], None]] = []

    @property
    def position(self) -> int | None:
        """This node's index in the map; None if it is not in the map."""
        view = self.view
        return None if view is None else view.position.get(self.node_uuid)

    def learn(self, map_: pb.ClusterMap) -> int:
        """Use a committed map if it is newer; return the version that is known then. Raises ValueError."""
        view = ClusterView(map_)
        with self._lock:
            if self.view is not None and view.map.cluster_uuid != self.view.map.cluster_uuid:
                raise ValueError("the map of another cluster")
            if self.view is None or view.version > self.view.version:
                # Listeners run first, so that whoever sees the new map finds its buckets.
                for listener in self._listeners:
                    listener(view)
                self.view = view
            return self.view.version

    def on_change(self, listener: Callable[[ClusterView], None]) -> None:
        """Call `listener` with every new map, one at a time, before it is used. An error of a listener refuses the map.

        Listeners run in the order in which they were added, none after one that failed.
        """
        self._listeners.append(listener)
