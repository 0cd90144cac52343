"""Arrival: the bytes of one version of a remote object, in an unnamed file that grows while they arrive.

The file is the buffer between the remote storage and the readers, who come and go, and read at their own pace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from ais_loader.errors import LoaderError
from storage_node.limits.tasks import settled
from storage_node.remote.drivers.remote_object import RemoteObject
from storage_node.store.files import staged_file
from storage_node.store.files.object_files import drive_error
from storage_node.store.spooled import Spooled, spool_for
from storage_node.store.store import Store

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
