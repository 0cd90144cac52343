"""Services between nodes: Replica, for coordinators of writes, and Repair, which makes replicas equal."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.repair.unsure_copies import UnsureCopies
from storage_node.cluster.replication import replica
from storage_node.cluster.replication.replica import HeldWrite
from storage_node.context.node import Node
from storage_node.limits.call_slots import CallStream, Received
from storage_node.services.errors import Context


class ReplicaService:
    def __init__(self, node: Node, unsure: UnsureCopies) -> None:
        self._node = node
        self._store = node.store
        self._unsure = unsure

    async def Write(self, requests: AsyncIterator[Received[wire.WriteRequest]], context: Any) -> None:
        # Not a generator: one that is cancelled at a yield would keep what is staged until it is collected.
        with self._node.replica_streams.open("") as stream:
            held = HeldWrite(self._store, self._known_map)
            await context.send_initial_metadata(())  # this node is alive, however long the drive may take
            try:
                await self._take_all(held, requests, stream, context)
            finally:
                # Also when the coordinator has died: its stream ends, and no other node knows of the staged files.
                # Shielded: if it were cancelled before it runs, it would never run.
                if not held.has_ended:
                    await asyncio.shield(self._node.read(held.abort))

    async def _take_all(
        self, held: HeldWrite, requests: AsyncIterator[Received[wire.WriteRequest]], stream: CallStream, context: Any
    ) -> None:
        async with aclosing(stream.messages(requests, keeps=_is_group)) as messages:
            async for request in messages:
                if (response := await self._node.read(held.take, request)) is not None:
                    await stream.waiting(context.write(response))

    async def Newest(self, request: wire.NewestRequest, context: Context) -> wire.NewestResponse:
        map_version = self._node.membership.lease.version
        return await self._node.read(functools.partial(replica.newest, map_version=map_version), self._store, request)

    async def Bury(self, request: wire.BuryRequest, context: Context) -> wire.BuryResponse:
        bury = functools.partial(replica.write_tombstone, known_map=self._known_map)
        return await self._node.read(bury, self._store, request)

    async def Versions(self, request: wire.VersionsRequest, context: Context) -> wire.VersionsResponse:
        versions = functools.partial(replica.versions, view=self._node.membership.view)
        return await self._node.read(versions, self._store, request)

    async def Recode(self, request: wire.RecodeRequest, context: Context) -> wire.RecodeResponse:
        grace_s = self._node.config.cluster.coding_grace_s
        answer: wire.RecodeResponse
        answer = await self._node.read(functools.partial(replica.recode, grace_s=grace_s), self._store, request)
        self._unsure.note_sent(request.bucket.uuid, ((request.name[at], request.entry[at]) for at in answer.done))
        return answer

    def _known_map(self) -> int:
        return self._node.map_version


def _is_group(request: wire.WriteRequest) -> bool:
    """Return whether a message is a group, whose objects are in memory until they are committed."""
    return bool(request.WhichOneof("part") == "group")
