"""Spooled: bytes of one object in an unnamed file on a drive, until all of them have arrived and are stored."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ais_loader.errors import DriveFailed
from storage_node.store.archives.source import FdSource, chunks_of
from storage_node.store.checksum import crc32c
from storage_node.store.files.object_files import drive_error
from storage_node.store.store import Store


class Spooled:
    """Bytes of one object in an unnamed file, which disappears with this process. Belongs to one thread at a time.

    Raises DriveFull, DriveFailed.
    """

    def __init__(self, folder: Path, label: str) -> None:
        self.label = label
        self.size_bytes = 0
        self.checksum = 0
        self.folder = folder
        with self._reporting():
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - `close` closes it

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        self.checksum, self.size_bytes = crc32c(view, self.checksum), self.size_bytes + len(view)
        with self._reporting():
            while view:
                view = view[os.write(self._file.fileno(), view) :]

    @property
    def source(self) -> FdSource:
        return FdSource(self._file.fileno(), self.size_bytes)

    def chunks(self) -> Iterator[bytes]:
        with self._reporting():
            yield from chunks_of(self.source)

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise drive_error(error, self.folder, "keeping an archive until it is stored") from error

    def close(self) -> None:
        self._file.close()


def spool_for(store: Store, label: str) -> Spooled:
    """Create a spool file on the drive with the most free space. Raises DriveFull, DriveFailed."""
    states = [state for state in store.pool.states() if state.problem is None]
    if not states:
        raise DriveFailed("no drive of the store can be used")
    return Spooled(Path(max(states, key=lambda state: state.free_bytes).path), label)
