"""Arrivals: which objects are arriving on this node, who waits for them, and when the last byte of each came."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from storage_node.limits.tasks import deliver
from storage_node.remote.arriving.arrival import Arrival, Read, spool_with_room
from storage_node.remote.drivers.remote_object import RemoteObject
from storage_node.store.read.frame_plan import MAX_WHOLE_BYTES
from storage_node.store.store import Store

Key: TypeAlias = tuple[bytes, str]
"""A bucket's uuid, and a name."""
STREAM_BYTES = MAX_WHOLE_BYTES
"""Larger objects are read while they arrive. Smaller ones are sent in one frame anyway."""


class Topic:
    """An object that readers wait for."""

    def __init__(self) -> None:
        self.readers = 0
        self.arrival: Arrival | None = None
        """The last one that has begun."""
        self._waiting: list[Callable[[Any], None]] = []

    def tell(self) -> None:
        """Wake up all readers."""
        for wake in self._waiting:
            wake(None)

    async def moved(self, flight: asyncio.Future[Any]) -> None:
        """Wait until bytes have arrived or another arrival has begun, or until the flight ends."""
        moved = asyncio.get_running_loop().create_future()
        wake = partial(deliver, moved)
        self._waiting.append(wake)
        flight.add_done_callback(wake)
        try:
            await moved
        finally:
            flight.remove_done_callback(wake)
            self._waiting.remove(wake)


class Arrivals:
    """Belongs to one event loop."""

    def __init__(self, store: Store, read: Read) -> None:
        self._store = store
        self._read = read
        self._topics: dict[Key, Topic] = {}
        self._moved_s: dict[Key, float] = {}
        """When a fetch that is in progress last made progress, by the loop's clock."""

    def join(self, key: Key) -> Topic:
        """Wait for the bytes of an object, from before its fetch begins; `leave` ends this."""
        topic = self._topics.setdefault(key, Topic())
        topic.readers += 1
        return topic

    def leave(self, key: Key) -> None:
        topic = self._topics[key]
        topic.readers -= 1
        self._forget(key, topic)

    def _forget(self, key: Key, topic: Topic) -> None:
        if not topic.readers and (topic.arrival is None or topic.arrival.has_ended):
            self._topics.pop(key, None)

    async def begin(self, key: Key, info: RemoteObject) -> Arrival | None:
        """Begin to keep the bytes of an object for readers; None if nobody waits for them, or there is no room."""
        topic = self._topics.get(key)
        if topic is None or not topic.readers or info.size_bytes <= STREAM_BYTES:
            return None
        spooled = await self._read(spool_with_room, self._store, info.name, info.size_bytes)
        if spooled is None:
            return None
        topic = self._topics.setdefault(key, topic)  # its readers may have left meanwhile
        topic.arrival = Arrival(info, spooled, self._read, topic.tell)
        topic.tell()
        return topic.arrival

    def end(self, key: Key, arrival: Arrival | None) -> None:
        """End an arrival, and forget when the fetch made progress."""
        self._moved_s.pop(key, None)
        if arrival is not None:
            arrival.end()
            if (topic := self._topics.get(key)) is not None:
                self._forget(key, topic)

    def note(self, key: Key) -> None:
        """Note that a fetch has made progress."""
        self._moved_s[key] = asyncio.get_running_loop().time()

    def moved_s(self, key: Key) -> float:
        """Return when the fetch last made progress, by the loop's clock; 0 if it has not."""
        return self._moved_s.get(key, 0.0)
