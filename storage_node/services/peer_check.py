"""Peer check: how a caller of the peer listener proves who it is, and that it may make the call.

A proof of the cluster's secret names the address that was called. The receiver accepts only its own addresses, so a
proof that was given to one node, or to a process that has taken over its address, does not work at another node.

A node that was removed from the cluster may not know it yet and continues to send its state to others. Therefore the
sender of each call is looked up in the receiver's map, and refused if it is not there. If the sender's map is newer
than the receiver's, the sender may have joined in that map, so the receiver fetches it first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NoReturn

import grpc
import grpc.aio

from ais_loader.errors import LoaderError, NodeUnavailable
from ais_loader.wire.peer_proof import PROOF_KEY, CallClaim, ProofCheck, ProofError, StaleProof
from ais_loader.wire.reserved import NODE_ROLE, OPERATOR_ROLE, ROLE_KEY
from storage_node.context import channels
from storage_node.context.channels import Channels, newer_map
from storage_node.context.errors import NotAMember
from storage_node.context.membership import Membership
from storage_node.context.node import Node
from storage_node.limits.tasks import settled
from storage_node.security.identity.certified import certified
from storage_node.services.call_table import CALLER, PACKAGE, Role, call_of
from storage_node.services.errors import Context, abort
from storage_node.services.lane.calls import LANE_CHECK
from storage_node.settings.config import EVERY_ADDRESS

LEARN_TIMEOUT_S = 2.0
PEERS_ASKED = 3
_ROLES = {OPERATOR_ROLE: Role.OPERATOR, NODE_ROLE: Role.PEER}
_CLUSTER = f"/{PACKAGE}.Cluster/"
_MAX_VERSION = (1 << 64) - 1


class _Refused(Exception):
    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class _Stranger(Exception):
    def __init__(self, error: NotAMember, map_version: int) -> None:
        super().__init__(str(error))
        self.error = error
        self.map_version = map_version


class PeerCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Check of the callers of the peer listener: proof, role, membership. Belongs to the node's event loop."""

    def __init__(
        self, node: Node, membership: Membership, port: Callable[[], int], client_port: Callable[[], int]
    ) -> None:
        """`port`, `client_port`: Return the ports of the two listeners, once they listen."""
        self._node = node
        self._membership = membership
        self._port = port
        self._client_port = client_port
        self._proofs = ProofCheck(node.caller.secret) if node.caller.secret else None
        self._known_hosts: set[tuple[str, str]] = set()
        """Verified hosts that callers have named, each with the address of the listener that it leads to."""
        self._channels = Channels(node.caller)
        self._learning: asyncio.Task[None] | None = None

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        try:
            node_uuid = await self._require(handler_call_details.method, handler_call_details.invocation_metadata)
        except (_Refused, _Stranger, LoaderError) as refused:
            return _refusal(refused)
        handler = await continuation(handler_call_details)
        return certified(handler, node_uuid) if self._node.config.listen.cert_file else handler

    async def is_inside(self, method: str, context: Context) -> bool | None:
        """Return whether the caller is a node or an operator, at either listener.

        At the client listener, such a caller states its role and proves it like at the peer listener. With TLS, the
        client listener sees no certificates: None stands for a caller that has to ask the peer listener. Aborts a call
        whose proof is invalid.
        """
        if CALLER.get() is not Role.CLIENT:
            return True
        meta = _texts(context.invocation_metadata())
        if ROLE_KEY not in meta:
            return False
        if self._node.config.listen.cert_file:
            return None
        try:
            await self._require_proof(method, meta, of_clients=True)
        except _Refused as refused:
            await context.abort(refused.code, str(refused))
        except NodeUnavailable as error:
            await abort(context, error)
        return True

    async def _require(self, method: str, metadata: Any) -> bytes:
        """Check a caller; return the uuid of a node, empty for an operator. Raises _Refused, _Stranger,
        NodeUnavailable."""
        meta = _texts(metadata)
        await self._require_proof(method, meta)
        role = _ROLES.get(meta.get(ROLE_KEY, ""))
        if role is None:
            raise _Refused(
                grpc.StatusCode.UNAUTHENTICATED,
                "this address is for the cluster's nodes and its operators' commands; clients have another one",
            )
        if (by := call_of(method).by) and not by & role:
            raise _Refused(grpc.StatusCode.PERMISSION_DENIED, f"{method} is not for a caller of role {role.name}")
        CALLER.set(role)
        uuid, version = _sender(meta) if role is Role.PEER else (b"", 0)
        LANE_CHECK.set(partial(self._require_still, uuid))
        if role is Role.PEER:
            await self._require_member(method, uuid, version)
        return uuid

    def _require_still(self, uuid: bytes) -> None:
        """Check a call by lane. A node that is refused repeats it by gRPC, and is told there what to do."""
        view = self._membership.view
        if view is None or uuid not in view.position:
            raise NotAMember(f"node {uuid.hex()} is not in the cluster by the map of the node that it called")
        CALLER.set(Role.PEER)

    async def _require_proof(self, method: str, meta: dict[str, str], *, of_clients: bool = False) -> None:
        """Check the proof. `of_clients`: at the client listener. Raises _Refused, NodeUnavailable."""
        proof = meta.get(PROOF_KEY)
        if self._proofs is None:
            if proof is not None:
                raise _Refused(
                    grpc.StatusCode.UNAUTHENTICATED,
                    "this node has no peer secret, and the caller has one: set peer_secret_file on this node too",
                )
            return
        if proof is None:
            raise _Refused(
                grpc.StatusCode.UNAUTHENTICATED,
                "this node has a peer secret, and the call has no proof of one: set peer_secret_file for the "
                "caller too",
            )
        claim = CallClaim(
            method, meta.get(ROLE_KEY, ""), meta.get(channels.NODE_KEY, ""), meta.get(channels.MAP_VERSION_KEY, "")
        )
        try:
            target = self._proofs.check(proof, claim)
        except StaleProof as error:
            raise NodeUnavailable(str(error)) from error
        except ProofError as error:
            raise _Refused(grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        if not await self._is_here(target, of_clients):
            raise _Refused(
                grpc.StatusCode.UNAUTHENTICATED,
                f"the call was made to {target}, which is no address of this node "
                f"({' or '.join(sorted(self._addresses(of_clients)))}): call it there, or set "
                f"{'advertise' if of_clients else 'peer_advertise'}",
            )

    def _addresses(self, of_clients: bool) -> set[str]:
        """Addresses by which others know a listener."""
        config, view, position = self._node.config, self._membership.view, self._membership.position
        member = view.nodes[position] if view is not None and position is not None else None
        if of_clients:
            port, known = self._client_port(), member.endpoint if member is not None else ""
            return {config.endpoint(port), f"{config.listen.host}:{port}", known} - {""}
        port, known = self._port(), member.peer_endpoint if member is not None else ""
        return {config.peer_endpoint(port), f"{config.listen.peer_host}:{port}", known} - {""}

    async def _is_here(self, target: str, of_clients: bool) -> bool:
        """Return whether this is an address of a listener."""
        if target in self._addresses(of_clients):
            return True
        config = self._node.config
        host, peer_host = config.listen.host, config.listen.peer_host
        listens_at, listens_on = (host, self._client_port()) if of_clients else (peer_host, self._port())
        host, _, port = target.rpartition(":")
        if port != str(listens_on) or host in ("", *EVERY_ADDRESS):
            return False
        advertised = config.endpoint(0).rpartition(":")[0] if listens_at in EVERY_ADDRESS else ""
        if (host, listens_at) not in self._known_hosts and (host == advertised or await _leads_to(host, listens_at)):
            self._known_hosts.add((host, listens_at))
        return (host, listens_at) in self._known_hosts

    async def _require_member(self, method: str, uuid: bytes, version: int) -> None:
        view = self._membership.view
        if view is not None and uuid not in view.position and version > view.version:
            await self._learn(version)
            view = self._membership.view
        if view is None:
            if not method.startswith(_CLUSTER):  # that call may make it a member
                raise NodeUnavailable("this node belongs to no cluster yet")
        elif uuid not in view.position and not call_of(method).strangers:
            if version > view.version:
                raise NodeUnavailable(f"this node has not learned map {version} yet, and does not know the caller")
            raise _Stranger(
                NotAMember(f"node {uuid.hex()} is not in the cluster by its map {view.version}: learn that map"),
                view.version,
            )

    async def _learn(self, version: int) -> None:
        """Fetch a map at least as new as `version`. Gives up after a while, or if no node has it."""
        if self._learning is None or self._learning.done():
            self._learning = asyncio.create_task(self._ask(version), name="learning the map of a caller")
        await asyncio.wait({self._learning}, timeout=LEARN_TIMEOUT_S)

    async def _ask(self, version: int) -> None:
        view = self._membership.view
        nodes = [node for node in view.nodes if node.uuid != self._membership.node_uuid] if view is not None else []
        for node in nodes[:PEERS_ASKED]:
            known = self._membership.view.map if self._membership.view is not None else None
            if known is not None and known.version >= version:
                return
            map_ = await newer_map(self._channels.to(node.peer_endpoint), known, LEARN_TIMEOUT_S / PEERS_ASKED)
            if map_ is not None:
                try:
                    await self._node.learn(map_)
                except (LoaderError, ValueError):
                    continue

    async def close(self) -> None:
        if self._learning is not None:
            self._learning.cancel()
            await settled(self._learning)
        await self._channels.close()


def _texts(metadata: Any) -> dict[str, str]:
    return {key: value for key, value in metadata or () if isinstance(value, str)}


def _sender(meta: dict[str, str]) -> tuple[bytes, int]:
    """Return the uuid and the map version of the sender. Raises _Refused."""
    try:
        uuid = bytes.fromhex(meta[channels.NODE_KEY])
        version = int(meta[channels.MAP_VERSION_KEY])
    except (KeyError, ValueError):
        uuid, version = b"", -1
    if len(uuid) != 16 or not 0 <= version <= _MAX_VERSION:
        raise _Refused(grpc.StatusCode.UNAUTHENTICATED, "a node says its uuid and the version of its map")
    return uuid, version


async def _leads_to(host: str, listens_at: str) -> bool:
    """Return whether a connection to `host` reaches what listens at this address of this machine."""
    loop = asyncio.get_running_loop()
    try:
        named = await loop.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_DGRAM)
        if listens_at not in EVERY_ADDRESS:
            listening = await loop.getaddrinfo(listens_at.strip("[]"), 0, type=socket.SOCK_DGRAM)
            return not {address for *_, address in named}.isdisjoint(address for *_, address in listening)
    except (OSError, UnicodeError):
        return False
    for family, kind, protocol, _, address in named:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)  # only an address of this machine can be bound
            return True
    return False


def _refusal(error: _Refused | _Stranger | LoaderError) -> grpc.RpcMethodHandler:
    """Return a handler for any kind of call, which ends it before a message is read."""

    async def refuse(_: object, context: Context) -> NoReturn:
        if isinstance(error, _Refused):
            await context.abort(error.code, str(error))
        if isinstance(error, _Stranger):
            await abort(context, error.error, ((channels.MAP_VERSION_KEY, str(error.map_version)),))
        await abort(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)
