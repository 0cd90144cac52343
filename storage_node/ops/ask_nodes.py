"""Node polling: asks nodes for their state, given only their endpoints. Neither Ray nor a cluster has to be running."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as objects_rpc
from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from ais_loader.wire.generated import ais_replica_pb2_grpc as replica_rpc
from storage_node.context.channels import OPERATOR, Caller, resolved

CALL_TIMEOUT_S = 10.0
"""Time within which a node of a busy machine answers."""
_AT_ONCE = 32
T = TypeVar("T")
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Answer of the node at an endpoint. Without one, `described` is None and `problem` has the reason."""

    endpoint: str
    """Address at which clients reach the node, and at which it was asked."""
    uuid: str = ""
    map: cluster_pb.ClusterMap | None = None
    described: objects_pb.DescribeResponse | None = None
    problem: str = ""
    progress: replica_pb.ProgressResponse | None = None
    """Progress of repair."""
    drives: cluster_pb.ListDrivesResponse | None = None
    """The node's drives."""
    peer_endpoint: str = ""
    """Address at which other nodes and operators reach it."""


def ask_nodes(endpoints: Iterable[str], caller: Caller, timeout_s: float | None = None) -> dict[str, NodeAnswer]:
    """Ask all nodes in parallel, by their endpoints for clients. Returns the answers by endpoint."""
    several = list(dict.fromkeys(endpoints))
    if not several:
        return {}
    with ThreadPoolExecutor(min(len(several), _AT_ONCE)) as threads:
        return {
            answer.endpoint: answer for answer in threads.map(lambda one: ask_node(one, caller, timeout_s), several)
        }


def ask_node(endpoint: str, caller: Caller = OPERATOR, timeout_s: float | None = None) -> NodeAnswer:
    timeout_s = CALL_TIMEOUT_S if timeout_s is None else timeout_s

    def ask(channel: Any) -> tuple[cluster_pb.GetMapResponse, objects_pb.DescribeResponse]:
        return (
            cluster_rpc.ClusterStub(channel).GetMap(cluster_pb.GetMapRequest(), timeout=timeout_s),
            objects_rpc.NodeStub(channel).Describe(objects_pb.DescribeRequest(), timeout=timeout_s),
        )

    try:
        known, described = ask_as_client(endpoint, caller, ask)
    except grpc.RpcError as error:
        reason = (error.details() or "").rpartition(": ")[2]
        return NodeAnswer(endpoint, problem=f"{error.code().name.lower().replace('_', ' ')}: {reason}")
    peer_endpoint = resolved(endpoint, known.peer_endpoint)
    with caller.channel(peer_endpoint, _OPTIONS) as channel:
        try:
            progress = replica_rpc.RepairStub(channel).Progress(replica_pb.ProgressRequest(), timeout=timeout_s)
        except grpc.RpcError:
            progress = None
        try:
            drives = cluster_rpc.DrivesStub(channel).ListDrives(cluster_pb.ListDrivesRequest(), timeout=timeout_s)
        except grpc.RpcError:
            drives = None
    map_ = known.map if known.HasField("map") else None
    return NodeAnswer(endpoint, known.node_uuid.hex(), map_, described, "", progress, drives, peer_endpoint)


def ask_as_client(endpoint: str, caller: Caller, ask: Callable[[Any], T]) -> T:
    """Ask a node at its address for clients. Where clients need tokens, `caller` proves itself instead.

    Raises grpc.RpcError.
    """
    with caller.client_channel(endpoint, _OPTIONS) as channel:
        try:
            return ask(channel)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAUTHENTICATED:
                raise
        proving = caller.through(channel, endpoint)
        if caller.credentials is None:
            return ask(proving)
        # Certificates are shown to the peer listener only, which serves all that the other one does.
        known = ask_address(proving)
    with caller.channel(resolved(endpoint, known.peer_endpoint), _OPTIONS) as inside:
        return ask(inside)


def ask_address(channel: Any) -> cluster_pb.GetMapResponse:
    """Ask a node for its addresses, and not for its map. Raises grpc.RpcError."""
    request = cluster_pb.GetMapRequest(known_version=2**63)
    return cluster_rpc.ClusterStub(channel).GetMap(request, timeout=CALL_TIMEOUT_S)  # type: ignore[no-any-return]


def newest_map(answers: Iterable[NodeAnswer]) -> cluster_pb.ClusterMap | None:
    """Return the newest map; None if no node that answered is in a cluster. Raises ValueError if there are several
    clusters."""
    maps = [answer.map for answer in answers if answer.map is not None]
    if len({map_.cluster_uuid for map_ in maps}) > 1:
        of = "; ".join(f"{a.endpoint} of {a.map.cluster_uuid.hex()}" for a in answers if a.map is not None)
        raise ValueError(f"these nodes belong to different clusters: {of}")
    return max(maps, key=lambda map_: map_.version, default=None)
