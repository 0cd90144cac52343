"""Arrivals: which objects are arriving on this node, who waits for them, and when the last byte of each came.

The file is the buffer between the remote storage and the readers, who come and go, and read at their own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from ais_loader.errors import LoaderError
from storage_node.limits.tasks import deliver, settled
from storage_node.remote.drivers.driver import RemoteObject
from storage_node.store.chunked_put import Spooled, spool_for
from storage_node.store.files import staged_file
from storage_node.store.files.object_files import drive_error
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


Read: TypeAlias = Callable[..., Awaitable[Any]]
"""Runs a function that may wait for a drive, off the event loop."""


def spool_with_room(store: Store, label: str, size_bytes: int) -> Spooled | None:
    """Create a file for an object that is stored beside it; None if that would fill the drive."""
    try:
        spooled = spool_for(store, label)
    except LoaderError:
        return None
    try:
        staged_file.require_space(spooled.source.fd, 2 * size_bytes)
    except OSError:
        spooled.close()
        return None
    return spooled


class Arrival:
    """
    Args:
        tell: Called when bytes have arrived, and at the end.
    """

    def __init__(self, info: RemoteObject, spooled: Spooled, read: Read, tell: Callable[[], None]) -> None:
        self.info = info
        self.arrived_bytes = 0
        self.is_broken = False
        """Whether the file cannot grow: its drive is full or has failed."""
        self.has_ended = False
        """Whether no more bytes arrive."""
        self._spooled = spooled
        self._read = read
        self._tell = tell

    @property
    def fd(self) -> int:
        """Descriptor of the file, until the end."""
        return self._spooled.source.fd

    @property
    def is_complete(self) -> bool:
        return self.arrived_bytes == self.info.size_bytes

    async def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Does nothing if the file cannot grow."""
        if self.is_broken or self.has_ended:
            return
        try:
            await settled(asyncio.ensure_future(self._read(self._append, data)))
        except LoaderError:
            self.is_broken = True
        else:
            self.arrived_bytes += len(data)
        self._tell()

    def _append(self, data: bytes | memoryview) -> None:
        try:
            staged_file.require_space(self.fd, len(data), self.arrived_bytes)
        except OSError as error:
            raise drive_error(error, self._spooled.folder, "keeping an object until it is read") from error
        self._spooled.write(data)

    def chunks(self) -> Iterator[bytes]:
        """Iterate over the bytes that have arrived. Raises DriveFailed."""
        return self._spooled.chunks()

    def end(self) -> None:
        """Close the file. Readers have descriptors of their own."""
        if not self.has_ended:
            self.has_ended = True
            self._spooled.close()
            self._tell()
