"""Relay: the bytes of an object that another node of the cluster fetches, sent from node to node while they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeAlias

from ais_loader.wire.generated import ais_remote_pb2 as pb
from storage_node.limits.tasks import retrieve, settled
from storage_node.remote.arriving.arrivals import Arrival, Arrivals, Key, Read, Topic
from storage_node.remote.drivers.driver import RemoteObject

TakeResponse: TypeAlias = Callable[[pb.FetchResponse], Awaitable[None]]
CHUNK_BYTES = 1 << 20
ALIVE_S = 1.0
"""Interval of messages to the other node that say whether the fetch makes progress."""


class Relay:
    """Receiving side: keeps what arrives for the readers of this node."""

    def __init__(self, arrivals: Arrivals, key: Key, name: str) -> None:
        self._arrivals = arrivals
        self._key, self._name = key, name
        self._arrival: Arrival | None = None
        self.version = ""
        """Version of the current copy, if the other node has told it."""

    async def take(self, response: pb.FetchResponse) -> None:
        """Take a message of the node that fetches. The first ones may come again, from another node."""
        self._arrivals.note(self._key)
        self.version = response.version
        if response.HasField("object"):
            self._end()
            found = response.object
            self._arrival = await self._arrivals.begin(
                self._key, RemoteObject(self._name, found.size_bytes, found.etag)
            )
        elif response.data and self._arrival is not None:
            await self._arrival.write(response.data)

    def _end(self) -> None:
        self._arrivals.end(self._key, self._arrival)
        self._arrival = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


async def relayed(
    arrivals: Arrivals, key: Key, fetch: Coroutine[Any, Any, None], read: Read, *, with_bytes: bool
) -> AsyncGenerator[pb.FetchResponse, None]:
    """Sending side: yield messages while this node fetches an object, with its bytes if they are wanted. At the end,
    raises what the fetch raises."""
    topic, flight = arrivals.join(key) if with_bytes else None, asyncio.ensure_future(fetch)
    sending: Arrival | None = None
    fd, sent_bytes, told_s = -1, 0, arrivals.moved_s(key)
    try:
        while True:
            if topic is not None and (newest := topic.arrival) not in (None, sending) and not newest.has_ended:
                if fd >= 0:
                    os.close(fd)
                sending, fd, sent_bytes = newest, os.dup(newest.fd), 0
                yield pb.FetchResponse(
                    object=pb.FetchedObject(size_bytes=newest.info.size_bytes, etag=newest.info.etag)
                )
            if sending is not None and sent_bytes < sending.arrived_bytes:
                count = min(CHUNK_BYTES, sending.arrived_bytes - sent_bytes)
                data = await settled(asyncio.ensure_future(read(os.pread, fd, count, sent_bytes)))
                sent_bytes += len(data)
                yield pb.FetchResponse(data=data)
            elif flight.done():
                await flight
                return
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ALIVE_S):
                        await (topic or Topic()).moved(flight)
                if told_s != (told_s := arrivals.moved_s(key)):
                    yield pb.FetchResponse()
    finally:
        if fd >= 0:
            os.close(fd)
        if topic is not None:
            arrivals.leave(key)
        flight.add_done_callback(retrieve)
        flight.cancel()
