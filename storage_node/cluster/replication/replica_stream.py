"""Replica stream: one replica of a write as its coordinator drives it, on this node or on another one over gRPC.

Every step has a deadline. A replica that misses one is lost, as is one whose node cannot be reached, and the
coordinator continues without it. Closing a stream that was not committed removes what it staged.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from typing import Any

import grpc.aio

from ais_loader.errors import LoaderError
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from storage_node.cluster.errors import ReplicaLost
from storage_node.cluster.replication.replica import HeldWrite
from storage_node.context.channels import REACH_TIMEOUT_S, STEP_TIMEOUT_S, Channels
from storage_node.context.node import Node


class ReplicaStream(ABC):
    """One replica of a write. Belongs to one task at a time."""

    def __init__(self, node: int) -> None:
        self.node = node
        """The node's index in the map."""
        self.objects = 1
        """Number of objects in the stream."""

    @abstractmethod
    async def begin(self, request: wire.WriteRequest) -> wire.WriteResponse:
        """Send the first message and return its answer. Raises ReplicaLost, quickly if the node is down."""

    @abstractmethod
    async def send(self, request: wire.WriteRequest, timeout_s: float) -> None:
        """Send a message without waiting for an answer. Raises ReplicaLost."""

    @abstractmethod
    async def receive(self, timeout_s: float) -> wire.WriteResponse:
        """Return the next answer. Raises ReplicaLost."""

    @abstractmethod
    async def close(self) -> None: ...

    async def ask(self, request: wire.WriteRequest, timeout_s: float) -> wire.WriteResponse:
        await self.send(request, timeout_s)
        return await self.receive(timeout_s)


class LocalReplicaStream(ReplicaStream):
    """The replica on this node. A drive has no deadline: it answers or fails."""

    def __init__(self, node: int, here: Node, held: HeldWrite | None = None) -> None:
        super().__init__(node)
        self._here = here
        self._held = held or HeldWrite(here.store)
        self._answers: deque[wire.WriteResponse] = deque()

    async def begin(self, request: wire.WriteRequest) -> wire.WriteResponse:
        return await self.ask(request, STEP_TIMEOUT_S)

    async def send(self, request: wire.WriteRequest, timeout_s: float) -> None:
        try:
            answer = await self._here.read(self._held.take, request)
        except LoaderError as error:
            raise ReplicaLost(f"this node: {error}", error) from error
        if answer is not None:
            self._answers.append(answer)

    async def receive(self, timeout_s: float) -> wire.WriteResponse:
        return self._answers.popleft()

    async def close(self) -> None:
        if not self._held.has_ended:
            await asyncio.shield(
                self._here.read(self._held.abort)
            )  # a cancelled read that has not started would never run


class RemoteReplicaStream(ReplicaStream):
    """A replica on another node, for the lifetime of the stream."""

    def __init__(self, node: int, endpoint: str, channels: Channels, reach_timeout_s: float = REACH_TIMEOUT_S) -> None:
        super().__init__(node)
        self._reach_timeout_s = reach_timeout_s
        self._endpoint = endpoint
        self._channels = channels
        self._call: Any = ais_replica_pb2_grpc.ReplicaStub(channels.to(endpoint)).Write()

    async def begin(self, request: wire.WriteRequest) -> wire.WriteResponse:
        with self._channels.reporting(self._endpoint):
            async with asyncio.timeout(self._reach_timeout_s):
                await self._call.write(request)
                await self._call.initial_metadata()  # sent at once, before the node does any work
        return await self.receive(STEP_TIMEOUT_S)

    async def send(self, request: wire.WriteRequest, timeout_s: float) -> None:
        with self._channels.reporting(self._endpoint):
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)

    async def receive(self, timeout_s: float) -> wire.WriteResponse:
        with self._channels.reporting(self._endpoint):
            async with asyncio.timeout(timeout_s):
                answer = await self._call.read()
            if answer is grpc.aio.EOF:
                raise ReplicaLost(f"{self._endpoint}: it ended the write ({await self._call.details()})")
        self._channels.answered(self._endpoint)
        found: wire.WriteResponse = answer
        return found

    async def close(self) -> None:
        self._call.cancel()
