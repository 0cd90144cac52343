"""Fragments of coded groups, gathered from the nodes that have them like the entries of any batch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from ais_loader.errors import NodeUnavailable
from ais_loader.wire.frame import MAX_PAYLOAD_BYTES, Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.node_waits import NodeWaits
from storage_node.batch.gather.gather import Gather
from storage_node.batch.gather.routing import routing_of
from storage_node.batch.resources import BatchResources


class GatheredFragments:
    """`Fetching` of a node. Belongs to the node's event loop."""

    def __init__(self, resources: BatchResources) -> None:
        self._resources = resources
        self.hedging = resources.hedging

    async def frames(self, request: pb.BatchRequest) -> AsyncGenerator[Frame, None]:
        """See `Fetching.frames`."""
        resources = self._resources
        if (view := resources.node.membership.view) is None:
            raise NodeUnavailable("this node is not part of a cluster, and has no fragments of coded objects")
        request.map_version = view.version
        gather = Gather(resources, request, routing_of(resources, view, request), NodeWaits())
        gather.start()
        try:
            left = len(request.name)
            while left:
                frame = await gather.next(MAX_PAYLOAD_BYTES)
                left -= len(frame.index) if frame.completes_entry else 0
                yield frame
                gather.memory.release(frame.payload_bytes)
        finally:
            await gather.close()

    def failing(self, bucket: str, names: Iterable[str]) -> set[str]:
        """See `Fetching.failing`."""
        view = self._resources.node.membership.view
        if view is None or not any(self._resources.peers.is_failing(node.peer_endpoint) for node in view.nodes):
            return set()
        return {name for name, endpoint in self._endpoints(bucket, names) if self._resources.peers.is_failing(endpoint)}

    def stood_still(self, bucket: str, late: Iterable[str], arrived: Iterable[str]) -> None:
        """See `Fetching.stood_still`."""
        moved = {endpoint for _, endpoint in self._endpoints(bucket, arrived)}
        for endpoint in {endpoint for _, endpoint in self._endpoints(bucket, late)} - moved:
            self._resources.peers.stands_still(endpoint)

    def _endpoints(self, bucket: str, names: Iterable[str]) -> list[tuple[str, str]]:
        """Return each name with the node that has the object, if it is another one."""
        view, names = self._resources.node.membership.view, list(names)
        if view is None or (found := view.to_read(bucket)) is None:
            return []
        first = [holders[0] for holders in view.holders(found, names)]
        local = self._resources.node.membership.node_uuid
        return [
            (name, view.nodes[at].peer_endpoint)
            for name, at in zip(names, first, strict=True)
            if view.nodes[at].uuid != local
        ]
