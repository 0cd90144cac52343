"""Node polling: nodes asked how they are, by their endpoints alone; no Ray, and no cluster, has to be up for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as objects_rpc
from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from ais_loader.wire.generated import ais_replica_pb2_grpc as replica_rpc
from storage_node.context.caller import OPERATOR, Caller, resolved

CALL_TIMEOUT_S = 3.0
_AT_ONCE = 32
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the node at an endpoint says; without an answer `described` is None and `problem` says why."""

    endpoint: str
    """Where clients reach it, and where it was asked."""
    uuid: str = ""
    map: cluster_pb.ClusterMap | None = None
    described: objects_pb.DescribeResponse | None = None
    problem: str = ""
    progress: replica_pb.ProgressResponse | None = None
    """How far it is with making copies equal; None also of a node of a version that does not say."""
    drives: cluster_pb.ListDrivesResponse | None = None
    """Likewise."""
    peer_endpoint: str = ""
    """Where other nodes and operators reach it."""

    @property
    def features(self) -> Sequence[str]:
        """What it can do that nodes before it could not."""
        return self.described.feature if self.described is not None else ()


def ask_nodes(endpoints: Iterable[str], caller: Caller, timeout_s: float = CALL_TIMEOUT_S) -> dict[str, Answer]:
    """By endpoint, of those for clients; all at once."""
    several = list(dict.fromkeys(endpoints))
    if not several:
        return {}
    with ThreadPoolExecutor(min(len(several), _AT_ONCE)) as threads:
        return {
            answer.endpoint: answer for answer in threads.map(lambda one: ask_node(one, caller, timeout_s), several)
        }


def ask_node(endpoint: str, caller: Caller = OPERATOR, timeout_s: float = CALL_TIMEOUT_S) -> Answer:
    with grpc.insecure_channel(endpoint, options=_OPTIONS) as channel:
        try:
            known = cluster_rpc.ClusterStub(channel).GetMap(cluster_pb.GetMapRequest(), timeout=timeout_s)
            described = objects_rpc.NodeStub(channel).Describe(objects_pb.DescribeRequest(), timeout=timeout_s)
        except grpc.RpcError as error:
            reason = (error.details() or "").rpartition(": ")[2]
            return Answer(endpoint, problem=f"{error.code().name.lower().replace('_', ' ')}: {reason}")
    peer_endpoint = resolved(endpoint, known.peer_endpoint)
    with caller.through(grpc.insecure_channel(peer_endpoint, options=_OPTIONS), peer_endpoint) as channel:
        try:
            progress = replica_rpc.RepairStub(channel).Progress(replica_pb.ProgressRequest(), timeout=timeout_s)
        except grpc.RpcError:
            progress = None
        try:
            drives = cluster_rpc.DrivesStub(channel).ListDrives(cluster_pb.ListDrivesRequest(), timeout=timeout_s)
        except grpc.RpcError:
            drives = None
    map_ = known.map if known.HasField("map") else None
    return Answer(
        endpoint,
        known.node_uuid.hex(),
        map_,
        described,
        progress=progress,
        drives=drives,
        peer_endpoint=peer_endpoint,
    )


def newest_map(answers: Iterable[Answer]) -> cluster_pb.ClusterMap | None:
    """None when nobody who answered is part of a cluster. Raises ValueError when they are part of different ones."""
    maps = [answer.map for answer in answers if answer.map is not None]
    if len({map_.cluster_uuid for map_ in maps}) > 1:
        of = "; ".join(f"{a.endpoint} of {a.map.cluster_uuid.hex()}" for a in answers if a.map is not None)
        raise ValueError(f"these nodes belong to different clusters: {of}")
    return max(maps, key=lambda map_: map_.version, default=None)
