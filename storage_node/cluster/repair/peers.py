"""RPC client of repair: its calls to the other nodes, each with a deadline. Belongs to the node's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc, ais_replica_pb2_grpc
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.channels import Channels
from storage_node.cluster.repair.plan import UNKNOWN, Answer, State
from storage_node.cluster.repair.transfers import bucket_ref
from storage_node.cluster.replication.replica import from_wire
from storage_node.cluster.replication.replica_stream import REACH_TIMEOUT_S, STEP_TIMEOUT_S, ReplicaLost, reporting

PAGE_NAMES = 1000
PUSH_TIMEOUT_S = 120.0
"""For what one node asks another to send: it may wait for its turn there."""


class RepairPeers:
    def __init__(self, channels: Channels) -> None:
        self.channels = channels

    async def newest(
        self, view: ClusterView, bucket: pb.MapBucket, asked: Mapping[int, Sequence[str]]
    ) -> tuple[dict[int, Answer], set[int]]:
        """What each of these nodes has of its names, without those that do not answer; and who answers by this map.

        Only what these say of themselves is to be relied on when a copy is taken away; see `map.lease`.
        """
        by_this_map: set[int] = set()

        async def ask(node: int, names: Sequence[str]) -> tuple[int, Answer] | None:
            endpoint = view.nodes[node].endpoint
            request = wire.NewestRequest(bucket=bucket_ref(bucket), name=names, allow_unknown=True)
            stub = ais_replica_pb2_grpc.ReplicaStub(self.channels.to(endpoint))
            try:
                with reporting(self.channels, endpoint):
                    found: wire.NewestResponse = await stub.Newest(request, timeout=STEP_TIMEOUT_S)
            except ReplicaLost:
                return None
            if found.map_version == view.version:
                by_this_map.add(node)
            return node, {state.name: state_of(state) for state in found.object}

        answers = await asyncio.gather(*(ask(node, names) for node, names in asked.items()))
        return dict(answer for answer in answers if answer is not None), by_this_map

    async def versions(
        self, endpoint: str, bucket: pb.MapBucket, start_after: str
    ) -> tuple[list[tuple[str, State]], bool]:
        """A page of what the node has, and whether more follow. Raises ReplicaLost."""
        request = wire.VersionsRequest(bucket=bucket_ref(bucket), start_after=start_after, limit=PAGE_NAMES)
        stub = ais_replica_pb2_grpc.ReplicaStub(self.channels.to(endpoint))
        with reporting(self.channels, endpoint):
            page: wire.VersionsResponse = await stub.Versions(request, timeout=STEP_TIMEOUT_S)
        found = [(state.name, state_of(state)) for state in page.object]
        return [(name, state) for name, state in found if state is not None], page.more

    async def push(self, endpoint: str, bucket: pb.MapBucket, names: Sequence[str], here: bytes) -> None:
        """Have the node send these names to this one. Raises ReplicaLost."""
        request = wire.PushRequest(bucket=bucket_ref(bucket), name=names, node_uuid=here)
        stub = ais_replica_pb2_grpc.RepairStub(self.channels.to(endpoint))
        with reporting(self.channels, endpoint):
            await stub.Push(request, timeout=PUSH_TIMEOUT_S)

    async def returned(self, endpoint: str, here: bytes, own_endpoint: str) -> int:
        """Tell the node that this one is back; the version of its map. Raises ReplicaLost."""
        request = wire.ReturnedRequest(node_uuid=here, endpoint=own_endpoint)
        stub = ais_replica_pb2_grpc.RepairStub(self.channels.to(endpoint))
        with reporting(self.channels, endpoint):
            answer: wire.ReturnedResponse = await stub.Returned(request, timeout=2 * REACH_TIMEOUT_S + STEP_TIMEOUT_S)
        return answer.map_version

    async def progress(self, endpoint: str) -> wire.ProgressResponse:
        """Raises ReplicaLost."""
        stub = ais_replica_pb2_grpc.RepairStub(self.channels.to(endpoint))
        with reporting(self.channels, endpoint):
            answer: wire.ProgressResponse = await stub.Progress(wire.ProgressRequest(), timeout=REACH_TIMEOUT_S)
        return answer

    async def close(self) -> None:
        await self.channels.close()


async def reach(channels: Channels, endpoint: str) -> None:
    """Make sure that a channel, which may be waiting before it connects again, works now. Raises ReplicaLost."""
    stub = ais_cluster_pb2_grpc.ClusterStub(channels.to(endpoint))
    with reporting(channels, endpoint):
        await stub.GetMap(pb.GetMapRequest(known_version=2**63), timeout=REACH_TIMEOUT_S, wait_for_ready=True)
    channels.answered(endpoint)


def state_of(state: wire.ObjectState) -> State | None:
    if state.unknown:
        return UNKNOWN
    if not state.HasField("version"):
        return None
    return State(from_wire(state.version), state.is_tombstone, state.size_bytes)
