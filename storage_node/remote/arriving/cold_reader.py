"""Cold reader: the bytes of objects that are not stored, for readers that need not wait until they are."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Protocol

from ais_loader.errors import DriveFull, ObjectReplaced
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.limits.tasks import retrieve
from storage_node.remote.arriving.arrival import Read
from storage_node.remote.arriving.arrivals import Arrivals
from storage_node.remote.arriving.arriving_part import ArrivingPart, NotStored
from storage_node.remote.drivers.remote_object import RemoteObject
from storage_node.remote.location.backends import Backends

FULL_LOGGED_S = 600.0
"""Interval of log messages about a full drive."""
log = logging.getLogger(__name__)


class Fetch(Protocol):
    """Has an object stored. Raises LoaderError."""

    async def __call__(self, bucket: RemoteBucket, name: str, *, with_bytes: bool) -> None: ...


class ColdReader:
    """
    Args:
    """

    def __init__(self, arrivals: Arrivals, backends: Backends, fetch: Fetch, read: Read) -> None:
        self._arrivals = arrivals
        self._backends, self._fetch, self._read = backends, fetch, read
        self._full_logged_s = -math.inf

    async def stream(
        self, bucket: RemoteBucket, name: str, *, etag: str = "", start: int = 0, length: int = -1
    ) -> ArrivingPart | None:
        """Have an object stored, but return bytes of the object as soon as some have arrived, or if the drive is full.

        Returns None when the object is stored. `etag`: the version that the reader wants; "" for the current one. If
        another one arrives, it is stored. `start`, `length`: the bytes that the reader wants.

        Raises RangeError, ObjectReplaced, and what fetching and storing an object raise.
        """
        key, label = (bucket.uuid, name), f"{bucket.name}/{name}"
        topic, handed_over = self._arrivals.join(key), False
        flight = asyncio.ensure_future(self._fetch(bucket, name, with_bytes=True))
        read_range = self._backends.of(bucket).read_range
        try:
            while not flight.done() and (topic.arrival is None or topic.arrival.has_ended):
                await topic.moved(flight)
            if not flight.done() and topic.arrival is not None and etag in ("", topic.arrival.info.etag):
                info, leave = topic.arrival.info, lambda: self._arrivals.leave(key)
                part = ArrivingPart(label, info, topic, flight, read_range, self._read, leave, start, length)
                handed_over = True
                return part
            try:
                await flight
            except DriveFull as full:
                if bucket.remote.is_write_back and not isinstance(full, NotStored):
                    raise  # an owner may have a newer write than the remote storage
                info = full.info if isinstance(full, NotStored) else await self._backends.of(bucket).head(name)
                self.note_full(full)
            else:
                return None
        finally:
            if not handed_over:
                flight.add_done_callback(retrieve)
                flight.cancel()
                self._arrivals.leave(key)
        if etag and etag != info.etag:
            raise replaced(bucket, name, etag)
        return self.unstored(bucket, info, start, length)

    def unstored(self, bucket: RemoteBucket, info: RemoteObject, start: int, length: int) -> ArrivingPart:
        """Return bytes that are read from the remote storage only. Raises RangeError."""
        read_range, label = self._backends.of(bucket).read_range, f"{bucket.name}/{info.name}"
        return ArrivingPart(label, info, None, None, read_range, self._read, lambda: None, start, length)

    def note_full(self, full: DriveFull) -> None:
        """Log that objects are not stored, once for a while."""
        now_s = time.monotonic()
        if now_s - self._full_logged_s > FULL_LOGGED_S:
            self._full_logged_s = now_s
            log.warning("fetched objects are sent to their readers without being stored: %s", full)


def replaced(bucket: RemoteBucket, name: str, etag: str) -> ObjectReplaced:
    """Return the error for a version that is gone from the remote storage."""
    return ObjectReplaced(f"{bucket.name}/{name}: the remote object does not have the ETag {etag} any more")
