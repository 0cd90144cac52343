"""Replica stream: one replica of a write as its coordinator drives it, on this node or on another one over gRPC.

Every step has a deadline. A replica that misses one is lost, as is one whose node cannot be reached, and the
coordinator continues without it. Closing a stream that was not committed removes what it staged.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio

from ais_loader import errors
from ais_loader.errors import LoaderError, NodeUnavailable, Overloaded, SilenceTimeout
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc
from ais_loader.wire.reserved import ERROR_KIND_KEY
from storage_node.cluster.replication.replica import HeldWrite
from storage_node.context.channels import Channels
from storage_node.context.node import Node

REACH_TIMEOUT_S = 2.0
"""Time for a node to accept the stream; after that, the next host in order takes its place."""
STEP_TIMEOUT_S = 10.0
"""Time for each later step: receiving a piece, staging a group, committing."""


class ReplicaLost(Exception):
    """A node takes no part in a write, or no longer. `refusal` is its reason; None if it did not answer."""

    def __init__(self, message: str, refusal: LoaderError | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal

    @property
    def may_pass(self) -> bool:
        """Whether another attempt may succeed: the node did not answer, or is stopping."""
        return self.refusal is None or type(self.refusal) in (LoaderError, NodeUnavailable, Overloaded, SilenceTimeout)


def refused(who: str, error: pb.Error) -> ReplicaLost:
    return ReplicaLost(f"{who}: {error.message}", errors.from_node(error.kind, error.message))


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
        with self._reporting():
            async with asyncio.timeout(self._reach_timeout_s):
                await self._call.write(request)
                await self._call.initial_metadata()  # sent at once, before the node does any work
        return await self.receive(STEP_TIMEOUT_S)

    async def send(self, request: wire.WriteRequest, timeout_s: float) -> None:
        with self._reporting():
            async with asyncio.timeout(timeout_s):
                await self._call.write(request)

    async def receive(self, timeout_s: float) -> wire.WriteResponse:
        with self._reporting():
            async with asyncio.timeout(timeout_s):
                answer = await self._call.read()
            if answer is grpc.aio.EOF:
                raise ReplicaLost(f"{self._endpoint}: it ended the write ({await self._call.details()})")
        self._channels.answered(self._endpoint)
        found: wire.WriteResponse = answer
        return found

    def _reporting(self) -> contextlib.AbstractContextManager[None]:
        return reporting(self._channels, self._endpoint)

    async def close(self) -> None:
        self._call.cancel()


@contextlib.contextmanager
def reporting(channels: Channels, endpoint: str) -> Iterator[None]:
    """Translate gRPC errors of an unresponsive node into ReplicaLost, and mark the node as failed."""
    try:
        yield
    except TimeoutError as error:
        channels.failed(endpoint, silent=True)
        raise ReplicaLost(f"{endpoint}: no answer in time") from error
    except grpc.aio.AioRpcError as error:
        late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        if late or error.code() == grpc.StatusCode.UNAVAILABLE:
            channels.failed(endpoint, silent=late)
        channels.refused(endpoint, error)
        for key, kind in error.trailing_metadata() or ():
            if key == ERROR_KIND_KEY:
                raise refused(endpoint, pb.Error(kind=str(kind), message=error.details())) from error
        raise ReplicaLost(f"{endpoint}: {'no answer in time' if late else error.details()}") from error
    except asyncio.CancelledError as error:
        # gRPC also raises this if the other node cancelled the call, which does not end this task.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        channels.failed(endpoint)
        raise ReplicaLost(f"{endpoint}: it is stopping") from error
    except asyncio.InvalidStateError as error:  # raised by a write to a call that has ended
        channels.failed(endpoint)
        raise ReplicaLost(f"{endpoint}: the connection broke") from error
