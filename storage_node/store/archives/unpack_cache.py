"""Unpack cache: decompressed copies of shards without random access, in temporary files within a budget.

The first reader creates a copy, while other readers wait for it. The least recently used copies are evicted when space
is needed. Nobody waits for copies that are being read: a batch may hold all of them itself.

Files are unlinked right after they are created, so a process that dies leaves no used space. A crash between the two
steps may leave an empty file, which the next start removes.

The budget counts the decompressed size of each copy, from before it is created until the last reader of an evicted copy
has released it.

Threads: everything may be called from any thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge, Closed, CopiesBusy
from storage_node.store.archives.source import FdSource
from storage_node.store.files import staged_file
from storage_node.store.files.object_files import drive_error
from storage_node.store.permissions import FOLDER_MODE

_SUFFIX = ".unpacking"


class _Copy:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.fd = -1
        self.readers = 1
        self.evicted = False
        self.released = False
        self.ready = False
        self.error: Exception | None = None


class UnpackCache:
    def __init__(
        self, folder: Path, budget_bytes: int, give_back: Callable[[int], None] = lambda size_bytes: None
    ) -> None:
        """`folder` is created if necessary, and belongs to these copies. `give_back` is called, without a lock, if
        there is no room for a copy of this size: it releases copies that are kept for later. Raises OSError."""
        folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        for left in folder.glob(f"*{_SUFFIX}"):
            left.unlink(missing_ok=True)
        self._folder, self._budget, self._give_back = folder, budget_bytes, give_back
        self._copies: OrderedDict[Hashable, _Copy] = OrderedDict()  # least recently used first
        self._used = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        with self._changed:
            return self._used

    @contextlib.contextmanager
    def get(
        self, key: Hashable, size_bytes: int, unpack: Callable[[], Iterable[bytes]], *, timeout_s: float
    ) -> Iterator[FdSource]:
        """Return the copy of the shard `key` (its identity and version), which decompresses to exactly `size_bytes`.

        If there is no copy yet, one thread calls `unpack`. The source may be read until the context is left, even if
        the copy is evicted meanwhile.

        Raises:
            ArchiveTooLarge: it is larger than the whole budget.
            CopiesBusy: copies that are being read use the budget, or another thread was creating the copy for
                `timeout_s`.
            ArchiveDamaged: `unpack` gave more or less than `size_bytes`. Errors of `unpack` are raised in all waiting
                threads.
            DriveFull, DriveFailed, StoreReadOnly: it could not be written, or would take what a drive keeps free.
            OSError: the folder cannot be created, or the shard not be read.
            Closed: after `close`.
        """
        copy, is_maker = self._enter(key, size_bytes, time.monotonic() + timeout_s)
        try:
            if is_maker:
                self._make(key, copy, unpack)
            yield FdSource(copy.fd, copy.size_bytes)
        finally:
            with self._changed:
                copy.readers -= 1
                self._release(copy)

    def drop(self, key: Hashable) -> None:
        """Evict the copy of a shard that has changed. Its readers are not affected."""
        with self._changed:
            self._evict(key)

    def close(self) -> None:
        """Evict all copies. Each is closed with its last reader."""
        with self._changed:
            self._closed = True
            for key in list(self._copies):
                self._evict(key)
            self._changed.notify_all()

    def _enter(self, key: Hashable, size_bytes: int, deadline: float) -> tuple[_Copy, bool]:
        if size_bytes > self._budget:
            raise ArchiveTooLarge(
                f"a decompressed copy needs {size_bytes} bytes, the budget for all of them is {self._budget}; "
                "store the shard in independent frames, uncompressed, or raise the budget"
            )
        if (entered := self._entered(key, size_bytes, deadline)) is not None:
            return entered
        self._give_back(size_bytes)
        if (entered := self._entered(key, size_bytes, deadline)) is not None:
            return entered
        raise CopiesBusy(
            f"no room for a decompressed copy of {size_bytes} bytes: others hold {self._used} of {self._budget} bytes; "
            "try again, or raise the budget"
        )

    def _entered(self, key: Hashable, size_bytes: int, deadline: float) -> tuple[_Copy, bool] | None:
        """Return a copy, and whether the caller has to make it; None if there is no room for it."""
        with self._changed:
            if self._closed:
                raise Closed("the store is closed, and its decompressed copies with it")
            copy = self._copies.get(key)
            if copy is not None:
                copy.readers += 1
                self._copies.move_to_end(key)
                try:
                    self._await(copy, deadline)
                except BaseException:
                    copy.readers -= 1
                    self._release(copy)
                    raise
                return copy, False
            if not self._room_for(size_bytes):
                return None
            copy = self._copies[key] = _Copy(size_bytes)
            self._used += size_bytes
            return copy, True

    def _await(self, copy: _Copy, deadline: float) -> None:
        while not copy.ready:
            if copy.error is not None:
                # Each waiter raises an error of its own: the traceback of one object raised in several threads keeps
                # growing.
                raise type(copy.error)(*copy.error.args)
            left = deadline - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                raise CopiesBusy("another request is still making the decompressed copy; try again")

    def _make(self, key: Hashable, copy: _Copy, unpack: Callable[[], Iterable[bytes]]) -> None:
        fd = -1
        try:
            fd = self._nameless_file()
            written = 0
            for piece in unpack():
                written += len(piece)
                if written > copy.size_bytes:
                    break
                self._write(fd, piece)
                if self._closed:
                    raise Closed("the store was closed while a shard was decompressed")
            if written != copy.size_bytes:
                raise ArchiveDamaged(f"a shard unpacks to {written} bytes or more, its index says {copy.size_bytes}")
        except BaseException as error:
            if fd >= 0:
                os.close(fd)
            with self._changed:
                copy.error = error if isinstance(error, Exception) else CopiesBusy("the copy was given up; try again")
                if self._copies.get(key) is copy:
                    self._evict(key)
                self._changed.notify_all()
            raise
        with self._changed:
            copy.fd, copy.ready = fd, True
            self._changed.notify_all()

    def _nameless_file(self) -> int:
        path = self._folder / f"{os.getpid()}.{os.urandom(8).hex()}{_SUFFIX}"
        try:
            fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            path.unlink(missing_ok=True)  # another process that starts in this folder may have removed it
        except OSError as error:
            raise drive_error(error, self._folder, "making a decompressed copy") from error
        return fd

    def _write(self, fd: int, piece: bytes) -> None:
        view = memoryview(piece)
        try:
            while view:
                staged_file.require_space(fd, len(view))
                view = view[os.write(fd, view) :]
        except OSError as error:
            raise drive_error(error, self._folder, "writing a decompressed copy") from error

    def _room_for(self, size_bytes: int) -> bool:
        idle = [key for key, copy in self._copies.items() if not copy.readers]
        if self._used - sum(self._copies[key].size_bytes for key in idle) + size_bytes > self._budget:
            return False
        for key in idle:
            if self._used + size_bytes <= self._budget:
                break
            self._evict(key)
        return True

    def _evict(self, key: Hashable) -> None:
        copy = self._copies.pop(key, None)
        if copy is not None:
            copy.evicted = True
            self._release(copy)

    def _release(self, copy: _Copy) -> None:
        """Close an evicted copy without readers and return its space to the budget, once. The lock is held."""
        if copy.evicted and not copy.readers and not copy.released:
            copy.released = True
            if copy.fd >= 0:
                os.close(copy.fd)
                copy.fd = -1
            self._used -= copy.size_bytes
        self._changed.notify_all()
