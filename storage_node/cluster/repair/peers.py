"""RPC client of repair: calls to the other nodes, each with a deadline. Belongs to the node's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc as rpc
from ais_loader.wire.generated.ais_cluster_pb2_grpc import ClusterStub
from storage_node.cluster.repair.plan import UNKNOWN, Answer, State
from storage_node.cluster.repair.transfers import SYNC_TIMEOUT_S, bucket_ref, recode_request
from storage_node.cluster.replication.replica import from_wire
from storage_node.context.channels import REACH_TIMEOUT_S, STEP_TIMEOUT_S, Channels
from storage_node.context.errors import ReplicaLost
from storage_node.context.node import PeerClocks
from storage_node.store.format import Version

PAGE_NAMES = 1000
PUSH_TIMEOUT_S = 120.0
"""Time for a node to send what it was asked for, including its wait for a turn, beside that for the bytes."""
_LEAST_BYTES_PER_S = 1 << 20
T = TypeVar("T")


class RepairPeers:
    def __init__(
        self, channels: Channels, advance_clock: Callable[[Iterable[Version]], Awaitable[None]], clocks: PeerClocks
    ) -> None:
        """`advance_clock` advances the version clock beyond the versions that nodes report."""
        self.channels = channels
        self._clocks = clocks
        self._advance_clock = advance_clock

    async def newest(
        self,
        view: ClusterView,
        bucket: pb.MapBucket,
        requests: Mapping[int, Sequence[str]],
        *,
        make_lasting: bool = False,
        coded_only: bool = False,
    ) -> tuple[dict[int, Answer], set[int]]:
        """Return the state of these names on each node that answers, and which of them answered under this map.

        With `coded_only`, only of names whose bytes are in a group. With `make_lasting`, nodes sync what they report to
        disk first, or do not answer. Only a node's report about itself may justify removing a replica; see `map.lease`.
        """
        by_this_map: set[int] = set()

        async def ask(node: int, names: Sequence[str]) -> tuple[int, Answer] | None:
            endpoint = view.nodes[node].peer_endpoint
            request = wire.NewestRequest(
                bucket=bucket_ref(bucket),
                name=names,
                allow_unknown=True,
                make_lasting=make_lasting,
                coded_only=coded_only,
            )
            timeout_s = SYNC_TIMEOUT_S if make_lasting else STEP_TIMEOUT_S
            found: wire.NewestResponse
            try:
                found = await self.channels.ask(endpoint, rpc.ReplicaStub, "Newest", request, timeout_s)
            except ReplicaLost:
                return None
            if found.map_version == view.version:
                by_this_map.add(node)
            self._clocks.note(view.nodes[node].uuid, found.wall_ms)
            answer = {state.name: state_of(state) for state in found.object}
            await self._advance_clock(_versions(answer.values()))
            return node, answer

        answers = await asyncio.gather(*(ask(node, names) for node, names in requests.items()))
        return dict(answer for answer in answers if answer is not None), by_this_map

    async def versions(
        self, endpoint: str, bucket: pb.MapBucket, start_after: str, until: str, owner_uuid: bytes, map_version: int
    ) -> tuple[list[tuple[str, State]], str]:
        """Return a page of the names that the node has, or has evicted, up to `until`, and after which name the next
        page begins, if there is one. With `owner_uuid`, only names that this node owns, if the other one acts by this
        map. Raises ReplicaLost."""
        request = wire.VersionsRequest(
            bucket=bucket_ref(bucket),
            start_after=start_after,
            limit=PAGE_NAMES,
            with_evicted=True,
            until=until,
            owner_uuid=owner_uuid,
            map_version=map_version,
        )
        page: wire.VersionsResponse
        page = await self.channels.ask(endpoint, rpc.ReplicaStub, "Versions", request, STEP_TIMEOUT_S)
        found = [(state.name, state_of(state)) for state in page.object]
        await self._advance_clock(_versions(state for _, state in found))
        return [(name, state) for name, state in found if state is not None], page.next

    async def compare(self, endpoint: str, request: wire.CompareRequest) -> wire.CompareResponse:
        """Return in which ranges the node differs. It may have to read all of them. Raises ReplicaLost."""
        answer: Awaitable[wire.CompareResponse]
        answer = self.channels.ask(endpoint, rpc.RepairStub, "Compare", request, PUSH_TIMEOUT_S)
        return await while_it_answers(answer, self.channels, endpoint)

    async def recode(
        self,
        endpoint: str,
        bucket: pb.MapBucket,
        coded: Sequence[tuple[str, bytes]],
        wall_ms: int,
        *,
        only_files: bool = False,
    ) -> set[str]:
        """Send encoded entries of objects whose bytes are in a group; return the names that the node has so now. Raises
        ReplicaLost."""
        request = recode_request(bucket, coded, wall_ms, only_files=only_files)
        answer: wire.RecodeResponse
        answer = await self.channels.ask(endpoint, rpc.ReplicaStub, "Recode", request, SYNC_TIMEOUT_S)
        return {coded[at][0] for at in answer.done}

    async def recall(self, endpoint: str, bucket: pb.MapBucket, group: bytes, names: Sequence[str]) -> None:
        """Have the node make copies of objects whose bytes are in a group. Raises ReplicaLost."""
        request = wire.RecallRequest(bucket=bucket_ref(bucket), group=group, name=names)
        with self.channels.reporting(endpoint):
            call = rpc.RepairStub(self.channels.to(endpoint)).Recall(request)
            await while_it_answers(call, self.channels, endpoint)

    async def push(self, endpoint: str, bucket: pb.MapBucket, sizes: Mapping[str, int], node_uuid: bytes) -> None:
        """Make the node send objects to this one, of about these sizes by name. Raises ReplicaLost."""
        request = wire.PushRequest(bucket=bucket_ref(bucket), name=sizes, node_uuid=node_uuid)
        timeout_s = PUSH_TIMEOUT_S + sum(sizes.values()) / _LEAST_BYTES_PER_S
        await self.channels.ask(endpoint, rpc.RepairStub, "Push", request, timeout_s)

    async def too_few(self, endpoint: str, bucket: pb.MapBucket | None = None, names: Sequence[str] = ()) -> None:
        """Make the node create the missing replicas of these objects, or of all that it has. Raises ReplicaLost."""
        request = wire.TooFewRequest(bucket=bucket_ref(bucket) if bucket is not None else None, name=names)
        await self.channels.ask(endpoint, rpc.RepairStub, "TooFew", request, REACH_TIMEOUT_S)

    async def returned(self, endpoint: str, node_uuid: bytes, own_endpoint: str) -> int:
        """Tell the node that this one is back; return the version of its map. Raises ReplicaLost."""
        request = wire.ReturnedRequest(node_uuid=node_uuid, endpoint=own_endpoint)
        timeout_s = 2 * REACH_TIMEOUT_S + STEP_TIMEOUT_S
        answer: wire.ReturnedResponse
        answer = await self.channels.ask(endpoint, rpc.RepairStub, "Returned", request, timeout_s)
        return answer.map_version

    async def progress(self, endpoint: str) -> wire.ProgressResponse:
        """Return the repair progress of a node. Raises ReplicaLost."""
        answer: wire.ProgressResponse
        answer = await self.channels.ask(endpoint, rpc.RepairStub, "Progress", wire.ProgressRequest(), REACH_TIMEOUT_S)
        return answer

    async def close(self) -> None:
        await self.channels.close()


async def reach(channels: Channels, endpoint: str) -> None:
    """Make sure that a channel works now, even if it was waiting to reconnect. Raises ReplicaLost."""
    request = pb.GetMapRequest(known_version=2**63)
    await channels.ask(endpoint, ClusterStub, "GetMap", request, REACH_TIMEOUT_S, wait_for_ready=True)
    channels.answered(endpoint)


async def while_it_answers(call: Awaitable[T], channels: Channels, endpoint: str) -> T:
    """Await a call that may take long; give up when its node answers no other call either.

    Raises ReplicaLost, and what the call raises.
    """
    answer = asyncio.ensure_future(_awaited(call))
    try:
        while not (await asyncio.wait({answer}, timeout=REACH_TIMEOUT_S))[0]:
            await reach(channels, endpoint)
        return answer.result()
    finally:
        answer.cancel()


async def _awaited(call: Awaitable[T]) -> T:
    return await call


def _versions(states: Iterable[State | None]) -> list[Version]:
    return [state.version for state in states if state is not None]


def state_of(state: wire.ObjectState) -> State | None:
    if state.unknown:
        return UNKNOWN
    if not state.HasField("version"):
        return State(from_wire(state.evicted), True, is_evicted=True) if state.HasField("evicted") else None
    version, marks = from_wire(state.version), state.raw_metadata
    return State(version, state.is_tombstone, state.size_bytes, False, marks, state.writes, state.group)
