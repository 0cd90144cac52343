"""Arriving part: bytes of an object that is being fetched, or that a full drive could not take, as a reader needs them.

The reader gets the bytes of one version only. They come from the file of the arrival; where there is none, or none that
goes on, they are requested from the remote storage, a window at a time, under the same entity tag. A window is in
memory, so that no drive has to take it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Protocol, TypeVar

from ais_loader.errors import DriveFull, ObjectNotFound, ObjectReplaced, RangeError
from ais_loader.wire.closing import closing_fd
from ais_loader.wire.memory_file import memory_file
from ais_loader.wire.reserved import ETAG_VERSION
from storage_node.limits.tasks import retrieve, settled
from storage_node.remote.arriving.arrivals import Arrival, Read, Topic
from storage_node.remote.drivers.driver import RemoteChanged, RemoteObject
from storage_node.store.read.frame_plan import check_range

WINDOW_BYTES = 8 << 20
"""Bytes that are requested at once, and held in memory for one reader."""
CHUNK_BYTES = 1 << 20
RESTARTS = 10
"""How often a reader begins again because the object was replaced before any byte of it was delivered."""
R = TypeVar("R")


class NotStored(DriveFull):
    """A fetched object that the drive has no room for. `info` describes it."""

    def __init__(self, message: str, info: RemoteObject) -> None:
        super().__init__(message)
        self.info = info


class ReadRange(Protocol):
    """Reads bytes of the version with this tag. Raises RemoteChanged."""

    def __call__(self, name: str, start: int, length: int, etag: str) -> Awaitable[memoryview]: ...


class ArrivingPart:
    """Bytes `start` to `start + size_bytes` of one version of an object. Everything but `fd` belongs to the event loop.

    Args:
        flight: The fetch that the reader waits for; None if the object is not being fetched.
        leave: Called at the end, on the loop.
    """

    def __init__(
        self,
        label: str,
        info: RemoteObject,
        topic: Topic | None,
        flight: asyncio.Future[None] | None,
        read_range: ReadRange,
        read: Read,
        leave: Callable[[], None],
        start: int = 0,
        length: int = -1,
    ) -> None:
        """Raises RangeError."""
        if fault := check_range(start, length, info.size_bytes):
            raise RangeError(f"{label}: {fault}")
        self.info = info
        self.start = start
        self.size_bytes = info.size_bytes - start if length < 0 else length
        self._label = label
        self._topic = topic
        self._flight = flight
        self._read_range, self._read = read_range, read
        self._leave = leave
        self._loop = asyncio.get_running_loop()
        self._arrival: Arrival | None = topic.arrival if topic is not None else None
        self._window: range | None = None
        """Bytes of the object that are in memory; None while they are read from the arrival."""
        self._is_due = False
        if self._arrival is not None:
            self.fd = os.dup(self._arrival.fd)
            assert flight is not None
            flight.add_done_callback(self._note_stored)
        else:
            self.fd = memory_file("ais-loader-window")
            self._window = range(0)

    @property
    def version(self) -> str:
        return ETAG_VERSION + self.info.etag

    def _note_stored(self, flight: asyncio.Future[None]) -> None:
        """Free the file of an object that is stored before it was read."""
        if not self._is_due and not flight.cancelled() and flight.exception() is None:
            self.close()

    def claim(self) -> bool:
        """Begin to read. Returns False if the object has been stored, so that it is to be read from there."""
        self._is_due = True
        return self.fd >= 0

    @property
    def is_outdated(self) -> bool:
        """Whether the rest of this version will not arrive, because the object was replaced."""
        arrival, topic, flight = self._arrival, self._topic, self._flight
        if self._window is not None or arrival is None or topic is None or flight is None or arrival.is_complete:
            return False
        if flight.done() and not flight.cancelled():  # something else may have been stored
            error = flight.exception()
            return error is None or isinstance(error, RemoteChanged)
        return topic.arrival is not None and topic.arrival.info.etag != self.info.etag

    def has(self, offset: int, end: int) -> bool:
        """Whether these bytes of the part can be read from `fd`, at their place in the object, without `ready`."""
        offset, end = self.start + offset, self.start + end
        if self._window is not None:
            return offset >= end or (self._window.start <= offset and end <= self._window.stop)
        assert self._arrival is not None
        if self._arrival.arrived_bytes < end:
            return False
        # The last byte of a whole object follows when it is stored.
        return end < self.info.size_bytes or self.start > 0 or self._flight is None or self._flight.done()

    async def ready(self, offset: int, end: int) -> None:
        """Wait until these bytes of the part can be read from `fd`, at their place in the object.

        Raises RemoteChanged if the object was replaced or deleted, and what the fetch raises.
        """
        while not self.has(offset, end):
            if self._window is not None:
                return await self._fetch(self.start + offset, self.start + end)
            await self._go_on(self.start + end)

    async def _go_on(self, end: int) -> None:
        """Wait for the arrival, or choose what to read instead."""
        arrival, topic, flight = self._arrival, self._topic, self._flight
        assert arrival is not None and topic is not None and flight is not None
        if arrival.arrived_bytes < end:
            if flight.done():
                if not isinstance(error := flight.exception(), DriveFull) and error is not None:
                    raise error
                return self._leave_arrival()
            if arrival.is_broken:
                return self._leave_arrival()
            if arrival.has_ended and topic.arrival is not None and topic.arrival is not arrival:
                return self._switch(topic.arrival)
        await topic.moved(flight)

    def _switch(self, arrival: Arrival) -> None:
        """Continue with the bytes of another fetch, since the first one has failed."""
        if arrival.info.etag != self.info.etag:
            raise self._changed()
        if arrival.has_ended:
            return self._leave_arrival()
        self._arrival = arrival
        os.dup2(arrival.fd, self.fd, inheritable=False)

    def _leave_arrival(self) -> None:
        self._window = range(0)
        memory = memory_file("ais-loader-window")
        os.dup2(memory, self.fd, inheritable=False)
        os.close(memory)

    async def _fetch(self, offset: int, end: int) -> None:
        end = max(end, min(offset + WINDOW_BYTES, self.start + self.size_bytes))
        try:
            data = await self._read_range(self.info.name, offset, end - offset, self.info.etag)
        except (ObjectNotFound, RangeError):
            raise self._changed() from None
        # A descriptor of its own: the reader may close this part meanwhile.
        await settled(asyncio.ensure_future(self._read(_keep, os.dup(self.fd), data, offset)))
        self._window = range(offset, end)

    def _changed(self) -> RemoteChanged:
        return RemoteChanged(f"{self._label}: the remote object does not have the ETag {self.info.etag} any more")

    def release(self) -> None:
        """Free the memory of bytes that have been read."""
        if self._window:
            os.ftruncate(self.fd, 0)
            self._window = range(0)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield all bytes. Raises ObjectReplaced, and what `ready` raises."""
        for offset in range(0, self.size_bytes, CHUNK_BYTES):
            end = min(offset + CHUNK_BYTES, self.size_bytes)
            try:
                await self.ready(offset, end)
            except RemoteChanged as error:
                raise ObjectReplaced(str(error)) from error
            yield await settled(asyncio.ensure_future(self._read(os.pread, self.fd, end - offset, self.start + offset)))

    def close(self) -> None:
        """Stop waiting. The fetch goes on for others. May be called from any thread."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._end)

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:  # a wait for it was cancelled before it was handed over
            self.close()

    def _end(self) -> None:
        if self._flight is not None:
            self._flight.add_done_callback(retrieve)
            self._flight.cancel()
        self._leave()


async def begun(part: ArrivingPart, again: Callable[[], Awaitable[R]]) -> ArrivingPart | R:
    """Wait for the first bytes of a part, and return it. If the object was replaced or stored before, return what
    `again` returns.

    Closes the part if it is not returned. Raises what `ready` and `again` raise.
    """
    found: ArrivingPart | R = part
    for left in reversed(range(RESTARTS)):
        if not isinstance(found, ArrivingPart):
            break
        try:
            if found.claim():
                await found.ready(0, min(found.size_bytes, CHUNK_BYTES))
                if not found.is_outdated:
                    break
        except RemoteChanged:
            if not left:
                found.close()
                raise
        except BaseException:
            found.close()
            raise
        found.close()
        found = await again()
    return found


def _keep(fd: int, data: memoryview, offset: int) -> None:
    """Replace the content of a file, at the same offset as in the object, and close the descriptor."""
    with closing_fd(fd):
        os.ftruncate(fd, 0)
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written
