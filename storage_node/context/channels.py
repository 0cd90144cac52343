"""Channel pool: a gRPC channel to each other node, and the nodes that failed recently. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import grpc.aio

from ais_loader.wire.backoff import Backoff
from ais_loader.wire.channel_options import CHANNEL_OPTIONS
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.reserved import ERROR_KIND_KEY
from ais_loader.wire.suspects import Suspects
from storage_node.cluster.errors import ReplicaLost, refused
from storage_node.context.caller import MAP_VERSION_KEY, Caller

log = logging.getLogger(__name__)

AVOID = Backoff(0.5, 0.5, jitter=0)
"""Time for which a node that could not be reached is not the first choice."""
AVOID_SILENT = Backoff(5.0, 5.0, jitter=0)
"""The same for a node that did not answer: every attempt costs the full timeout."""


REACH_TIMEOUT_S = 2.0
"""Time for a node to accept a stream; after that, the next host in order takes its place."""
STEP_TIMEOUT_S = 10.0
"""Time for each later step of a write: receiving a piece, staging a group, committing."""


class Channels:
    """Channels to other nodes. `caller`: the identity with which they are called."""

    def __init__(
        self, caller: Caller, heard_of_map: Callable[[str, int], None] = lambda endpoint, version: None
    ) -> None:
        """`heard_of_map`: called with the endpoint of a node that has refused this one as a stranger, and with its map
        version."""
        self.caller = caller
        self._heard_of_map = heard_of_map
        self._channels: dict[str, Any] = {}
        self._suspects: Suspects[str] = Suspects()
        self._unproved: dict[str, str | None] = {}
        """Reasons, already logged, for which nodes did not accept this node's identity."""

    def to(self, endpoint: str) -> Any:
        """Return a channel, which connects on first use and stays open until `close`."""
        channel = self._channels.get(endpoint)
        if channel is None:
            made = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
            channel = self._channels[endpoint] = self.caller.through(made, endpoint)
        return channel

    def failed(self, endpoint: str, *, silent: bool = False) -> None:
        """Note that a node could not be reached, or did not answer in time."""
        self._suspects.failed(endpoint, AVOID_SILENT if silent else AVOID)

    def answered(self, endpoint: str) -> None:
        self._suspects.answered(endpoint)

    def refused(self, endpoint: str, error: grpc.aio.AioRpcError) -> None:
        """Note that a call has ended with this error."""
        if error.code() is grpc.StatusCode.UNAUTHENTICATED and self._unproved.get(endpoint) != error.details():
            self._unproved[endpoint] = error.details()
            log.warning("%s does not answer this node: %s", endpoint, error.details())
        for key, value in error.trailing_metadata() or ():
            if key == MAP_VERSION_KEY and str(value).isdecimal():
                self._heard_of_map(endpoint, int(value))

    @contextlib.contextmanager
    def reporting(self, endpoint: str) -> Iterator[None]:
        """Translate gRPC errors of an unresponsive node into ReplicaLost, and mark the node as failed."""
        try:
            yield
        except TimeoutError as error:
            self.failed(endpoint, silent=True)
            raise ReplicaLost(f"{endpoint}: no answer in time") from error
        except grpc.aio.AioRpcError as error:
            late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            if late or error.code() == grpc.StatusCode.UNAVAILABLE:
                self.failed(endpoint, silent=late)
            self.refused(endpoint, error)
            for key, kind in error.trailing_metadata() or ():
                if key == ERROR_KIND_KEY:
                    raise refused(endpoint, pb.Error(kind=str(kind), message=error.details())) from error
            raise ReplicaLost(f"{endpoint}: {'no answer in time' if late else error.details()}") from error
        except asyncio.CancelledError as error:
            # gRPC also raises this if the other node cancelled the call, which does not end this task.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self.failed(endpoint)
            raise ReplicaLost(f"{endpoint}: it is stopping") from error
        except asyncio.InvalidStateError as error:  # raised by a write to a call that has ended
            self.failed(endpoint)
            raise ReplicaLost(f"{endpoint}: the connection broke") from error

    def avoided(self, endpoint: str) -> bool:
        """Whether a node failed recently."""
        return endpoint in self._suspects

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        await asyncio.gather(*(channel.close() for channel in channels))
