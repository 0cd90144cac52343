"""Services of one node: its description, its map and its vote on the next one, and its drives."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.map_delta import carried, delta_of
from storage_node.batch.session import BatchService
from storage_node.cluster.consensus.acceptor_store import AcceptorStore
from storage_node.cluster.drives.manager import DriveManager
from storage_node.cluster.map.confirmation import witnessed
from storage_node.cluster.map.revoked_tokens import RevokedTokens
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.etl.worker.stage import sandbox_state
from storage_node.remote.tier import RemoteTier
from storage_node.security.rights.granted import GRANTED
from storage_node.services.call_table import CALLER, PACKAGE, Role
from storage_node.services.errors import Context
from storage_node.settings.command_template import parse_text

_GET_MAP = f"/{PACKAGE}.Cluster/GetMap"


class NodeService:
    def __init__(self, batches: BatchService, version: str, tier: RemoteTier) -> None:
        self._batches = batches
        self._tier = tier
        self._node = batches.node
        self._version = version

    async def Describe(self, request: objects_pb.DescribeRequest, context: Context) -> objects_pb.DescribeResponse:
        store = self._node.store
        states = await self._node.read(store.pool.states)
        counts, limits = self._node.metrics, self._node.limits()
        pending = self._tier.write_back.rows(all_buckets=True)
        if CALLER.get() is Role.CLIENT:
            limits.pop("etl_commands", None)  # clients are told their names and arguments, in `etl_command`
        return objects_pb.DescribeResponse(
            version=self._version,
            store_uuid=store.store_uuid,
            drive=[
                objects_pb.Drive(
                    uuid=state.uuid,
                    path=state.path,
                    state=state.problem or "ok",
                    objects_estimate=state.objects_estimate,
                    free_bytes=state.free_bytes,
                    size_bytes=state.size_bytes,
                )
                for state in states
            ],
            pid=os.getpid(),
            open_sessions=self._batches.open_sessions,
            active_batches=self._batches.resources.batches.held,
            reserved_bytes=self._batches.resources.reserved_bytes,
            limits=limits,
            batches=sum(sum(ended.values()) for ended in counts.batches.values()),
            entries=sum(sum(good.values()) for good in counts.entries.values()),
            entry_bytes=sum(sum(good.values()) for good in counts.entry_bytes.values()),
            etl_command={name: parse_text(text).usage for name, text in self._node.config.etl.commands.items()},
            etl_sandbox=sandbox_state(self._node.config.etl),
            pending_uploads=sum(row.count for row in pending),
            pending_upload_bytes=sum(row.bytes for row in pending),
            oldest_pending_upload_s=max((row.oldest_s for row in pending), default=0.0),
            upload_conflicts=sum(row.conflicts for row in pending),
        )


class ClusterService:
    """The Cluster service of one node.

    Args:
        peer_endpoint: Returns the endpoint in the response, see GetMapResponse.
        is_inside: See `PeerCheck.is_inside`.
    """

    def __init__(
        self,
        node: Node,
        membership: Membership,
        acceptor_store: AcceptorStore,
        peer_endpoint: Callable[[], str],
        is_inside: Callable[[str, Context], Awaitable[bool | None]],
    ) -> None:
        self._is_inside = is_inside
        self._node = node
        self._peer_endpoint = peer_endpoint
        self._membership = membership
        self._acceptor_store = acceptor_store
        self._of_clients = pb.ClusterMap()

    async def GetMap(self, request: pb.GetMapRequest, context: Context) -> pb.GetMapResponse:
        is_inside = await self._is_inside(_GET_MAP, context)
        view = self._membership.view
        response = pb.GetMapResponse(node_uuid=self._membership.node_uuid, peer_endpoint=self._peer_endpoint())
        if is_inside is not None and view is not None:
            response.version = view.version
            newest = view.map if is_inside else self._for_clients(view.map)
            base = next((one for one in self._membership.recent if one.version == request.known_version), None)
            if view.version > request.known_version and base is not None and GRANTED.get() is None:
                response.delta.CopyFrom(delta_of(base if is_inside else _bare(base), newest))
            elif view.version > request.known_version:  # also to a client that sees some of the buckets
                response.map.CopyFrom(newest)
        return response

    def _for_clients(self, map_: pb.ClusterMap) -> pb.ClusterMap:
        """Return what clients need for routing: the map without the code and the jobs of ETL, which may be megabytes.

        No new map is ever derived from it: callers that may propose or teach a map identify themselves in every call.
        """
        if (self._of_clients.cluster_uuid, self._of_clients.version) != (map_.cluster_uuid, map_.version):
            self._of_clients = _bare(map_)
        return self._of_clients

    async def Learn(self, request: pb.LearnRequest, context: Context) -> pb.LearnResponse:
        async with _refusing_invalid_maps(context):
            view = self._membership.view
            map_ = carried(request, view.map if view is not None else None)
            # A delta from another map is an earlier change than the latest one here.
            known = self._membership.map_version
            return pb.LearnResponse(version=known if map_ is None else await self._node.learn(map_))

    async def Prepare(self, request: pb.PrepareRequest, context: Context) -> pb.PrepareResponse:
        async with _refusing_invalid_maps(context):
            return await self._node.read(self._acceptor_store.prepare, request)

    async def Accept(self, request: pb.AcceptRequest, context: Context) -> pb.AcceptResponse:
        async with _refusing_invalid_maps(context):
            return await self._node.read(self._acceptor_store.accept, request)

    async def Witness(self, request: pb.WitnessRequest, context: Context) -> pb.WitnessResponse:
        state = self._acceptor_store.state
        return pb.WitnessResponse(accepted=witnessed(state, request.version, request.digest))


def _bare(map_: pb.ClusterMap) -> pb.ClusterMap:
    bare = pb.ClusterMap()
    bare.CopyFrom(map_)
    bare.ClearField("transform")
    bare.ClearField("job")
    return bare


@contextlib.asynccontextmanager
async def _refusing_invalid_maps(context: Context) -> AsyncIterator[None]:
    try:
        yield
    except LoaderError:  # some are also a ValueError
        raise
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))


def drive_calls(manager: DriveManager) -> dict[str, Callable[[Any], Awaitable[pb.ListDrivesResponse]]]:
    """Return the calls of the Drives service."""

    async def after(change: Awaitable[None]) -> pb.ListDrivesResponse:
        await change
        return await manager.report()

    return {
        "ListDrives": lambda request: manager.report(),
        "AddDrive": lambda request: after(manager.add(request.path)),
        "RetireDrive": lambda request: after(manager.retire(request.drive)),
        "ReinstateDrive": lambda request: after(manager.reinstate(request.drive)),
        "ForgetDrive": lambda request: after(manager.forget(request.drive, lost=request.lost)),
        "DisableDrive": lambda request: after(manager.disable(request.drive)),
        "EnableDrive": lambda request: after(manager.enable(request.drive, request.path)),
    }


def token_calls(revoked: RevokedTokens) -> dict[str, Callable[[Any], Awaitable[pb.ListRevokedTokensResponse]]]:
    """Return the calls of the Tokens service, by which operators revoke tokens of clients."""

    async def listed(request: pb.ListRevokedTokensRequest | pb.RevokeTokenRequest) -> pb.ListRevokedTokensResponse:
        if isinstance(request, pb.RevokeTokenRequest):
            await revoked.revoke(request.token.id, request.token.expires_s)
        tokens = [pb.RevokedToken(id=one, expires_s=until_s) for one, until_s in revoked.all().items()]
        return pb.ListRevokedTokensResponse(token=tokens, audience=revoked.audience)

    return {"RevokeToken": listed, "ListRevokedTokens": listed}
