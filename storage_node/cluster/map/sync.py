"""Map synchronization: a node polls its peers for a newer map, finishes interrupted changes, and publishes its address.

A node with a read lease does not poll: the answers to its renewals say which map the others know.

A node that missed a Learn call, because it was down or cut off, gets the map within seconds of its return. A change
whose proposer died is finished. A node that returns at another address, or with other features, records that in the
map.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing

from ais_loader.errors import LoaderError
from ais_loader.wire.backoff import Backoff
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.acceptor_store import AcceptorStore
from storage_node.cluster.consensus.change import CALL_TIMEOUT_S, AsyncChannels
from storage_node.cluster.consensus.effects import Edit
from storage_node.cluster.consensus.errors import ChangeFailed
from storage_node.cluster.map.mutations import set_endpoints, unchanged
from storage_node.context.channels import Caller, fetched_map
from storage_node.context.membership import Membership
from storage_node.limits.wakeup import tick

BACKOFF = Backoff(2.5, 18.75, jitter=0.4)
PEERS_ASKED = 3
"""Peers asked per round; news spreads from node to node. All of them are asked at the start."""
CHANGE_TIMEOUT_S = 10.0
log = logging.getLogger(__name__)


class MapSync:
    """Keeps the map of one node up to date. Belongs to the node's event loop."""

    def __init__(
        self,
        learn: Callable[[pb.ClusterMap], Awaitable[int]],
        membership: Membership,
        acceptor_store: AcceptorStore,
        endpoint: str,
        peer_endpoint: str,
        caller: Caller,
        is_in_touch: Callable[[], bool],
    ) -> None:
        """
        Args:
            learn: takes a committed map, off the event loop.
            endpoint: host:port of this node as clients reach it; empty when that is not known.
            peer_endpoint: the same for other nodes.
            caller: as whom they are called.
            is_in_touch: whether others tell this node of a newer map anyway.
        """
        self._learn = learn
        self._membership = membership
        self._acceptor_store = acceptor_store
        self._endpoint = endpoint
        self._peer_endpoint = peer_endpoint
        self._caller = caller
        self._is_in_touch = is_in_touch
        self._undecided: pb.ClusterMap | None = None
        self._logged = ""
        self._moved = self._has_moved()
        """Decided by the map it had at its start; a map that it learns later already shows where it is."""

    async def run(self) -> None:
        """Run until cancelled."""
        attempts = 0
        in_vain = 0
        async with aclosing(AsyncChannels(self._caller)) as channels:
            while True:
                peers = [] if attempts and self._is_in_touch() else self._peers()
                random.shuffle(peers)
                answered = await self._ask(channels, peers[: PEERS_ASKED if attempts else None])
                attempts += 1
                if self._moved:
                    self._moved = not await self._publish(channels)
                await self._finish(channels)
                in_vain = 0 if answered or not peers else in_vain + 1
                await tick(BACKOFF.pause_s(in_vain))

    def _peers(self) -> list[str]:
        """Return the other nodes; for a node in no cluster, those with which it was to form or join one."""
        map_ = self._map()
        nodes: Iterable[pb.MapNode] = map_.node if map_ is not None else ()
        return [node.peer_endpoint for node in nodes if node.uuid != self._membership.node_uuid]

    def _map(self) -> pb.ClusterMap | None:
        view = self._membership.view
        return view.map if view is not None else self._acceptor_store.state.accepted

    async def _ask(self, channels: AsyncChannels, peers: list[str]) -> bool:
        """Fetch the newest map of these peers; return whether one has answered."""
        view = self._membership.view
        known = view.map if view is not None else None
        fetched = await asyncio.gather(*(fetched_map(channels.to(peer), known, CALL_TIMEOUT_S) for peer in peers))
        found = [map_ for map_ in fetched if map_ is not None]
        maps = [map_ for map_ in found if self._concerns(map_)]
        for map_ in sorted(maps, key=lambda map_: map_.version, reverse=True):
            try:
                await self._learn(map_)
                break
            except (LoaderError, ValueError) as error:  # one node's bad map must not hide those of others
                self._log(f"a newer map of the cluster cannot be used: {error}")
        return bool(found)

    def _concerns(self, map_: pb.ClusterMap) -> bool:
        view = self._membership.view
        if view is not None:
            return view.map.cluster_uuid == map_.cluster_uuid
        return any(node.uuid == self._membership.node_uuid for node in map_.node)

    def _has_moved(self) -> bool:
        """Return whether the node has another address than the map says."""
        view, position = self._membership.view, self._membership.position
        if view is None or position is None or not self._endpoint or not self._peer_endpoint:
            return False
        member = view.nodes[position]
        return (member.endpoint, member.peer_endpoint) != (self._endpoint, self._peer_endpoint)

    async def _publish(self, channels: AsyncChannels) -> bool:
        """Record this node's address in the map; return whether the map has it."""
        if not self._has_moved():
            return True
        change = set_endpoints(self._membership.node_uuid, self._endpoint, self._peer_endpoint)
        try:
            await self._change(channels, change)
        except (ChangeFailed, ValueError) as error:
            self._log(f"the cluster's map cannot be told that this node is at {self._endpoint}: {error}")
            return False
        return True

    async def _change(self, channels: AsyncChannels, edit: Edit) -> None:
        endpoints = [self._peer_endpoint, *self._peers()]
        await channels.change_map(self._membership.view, edit, timeout_s=CHANGE_TIMEOUT_S, endpoints=endpoints)

    async def _finish(self, channels: AsyncChannels) -> None:
        """Finish a change that was accepted here and is still undecided."""
        accepted, before = self._acceptor_store.state.accepted, self._undecided
        self._undecided = accepted
        if accepted is None or accepted is not before or not self._peer_endpoint:
            return  # its proposer may still be working
        try:
            await self._change(channels, unchanged)
        except (ChangeFailed, ValueError) as error:
            self._log(f"a change of the cluster's map that was begun is not decided: {error}")

    def _log(self, problem: str) -> None:
        """Log a problem, but not twice in a row."""
        if problem != self._logged:
            log.warning("%s", problem)
        self._logged = problem
