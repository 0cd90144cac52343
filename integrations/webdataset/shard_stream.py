"""Shard stream: an archive as a plain binary stream, started by a thread of its own, complete or with an error.

The stream is open when the store has confirmed that the archive is complete. Its bytes are those of that version, all
of them or an error. The thread reads until its part of the window is full, which is what the next shard of an iteration
needs. From then on, the consumer reads by itself: next to a thread that runs tarfile's Python code, another thread
repeatedly waits 5 ms for the interpreter, and is slower than none.

Threads: A stream belongs to one consumer. Its producer refers only to the queue between them, so that a stream that is
dropped, as WebDataset does, is closed.

tarfile, on which WebDataset is built, treats a tar that is truncated at or inside a header as one that ends there: an
iteration over it is short, without an error. Two properties of a shard in the store reveal more. The first is its index
of members: the store builds it by reading the entire archive, and refuses one that ends inside a header or a member.
The second is its last block: a tar ends with blocks of zeros, which are missing if it was truncated between members.

Source: POSIX.1-2017, pax, "ustar Interchange Format": two blocks of zeros end an archive.
"""

from __future__ import annotations

import atexit
import io
import os
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

from ais_loader import Client, Entry, ObjectInfo, ObjectReader, errors
from ais_loader.values.urls import ARCHIVE_EXTENSIONS

_CHECK_S = 1.0
"""How often a waiting consumer checks that its producer, whose own waits have deadlines, is still alive."""
_END_S = 10.0
"""How long the process waits for a producer to notice that it is ending."""

_running: WeakKeyDictionary[threading.Thread, threading.Event] = WeakKeyDictionary()
"""Producers, and what ends each early."""


class ShardStream(io.BufferedIOBase):
    """A forward-only stream. `name` is the object's URL.

    Reading raises the errors of a batch: ObjectNotFound if the version that was opened is gone, NodeUnavailable,
    SilenceTimeout, CorruptObject. Every further read raises the error again.
    """

    def __init__(
        self, client: Client, bucket: str, name: str, *, window_bytes: int, timeout_s: float, require_end: bool = True
    ) -> None:
        """Start to read in the background. `wait_open` raises the errors.

        Args:
            window_bytes: The most data to request before it is read, give or take a frame of 4 MiB.
            timeout_s: The longest time to wait for the store's next data.
            require_end: See `require_whole`.
        """
        self.name = f"ais://{bucket}/{name}"
        self.mode = "rb"
        self._pid = os.getpid()
        self._begun: SimpleQueue[Any] = SimpleQueue()
        """The reader, chunks that were read from it, then None when it is the consumer's; or an error at any point."""
        self._reader: ObjectReader | None = None
        self._reads_itself = False
        self._error: BaseException | None = None
        self._rest = memoryview(b"")
        self._position = 0
        self._unwanted = threading.Event()
        ahead_bytes = window_bytes // 2
        self._thread = threading.Thread(
            target=_produce,
            args=(self._begun, self._unwanted, ahead_bytes, require_end, client, bucket, name),
            kwargs={"timeout_s": timeout_s, "read_ahead_bytes": window_bytes - ahead_bytes},
            name=f"ais-loader shard {name}",
            daemon=True,
        )
        _running[self._thread] = self._unwanted
        self._thread.start()

    def wait_open(self) -> ObjectInfo:
        """Wait until the shard is open, and return the version that is read. If it is an archive, it has an index.

        Raises ObjectNotFound, BucketNotFound, ArchiveDamaged, NodeUnavailable, SilenceTimeout.
        """
        return self._opened().info

    def _opened(self) -> ObjectReader:
        self._require_own()
        if self._reader is None:
            self._reader = self._next()
        return self._reader

    def _next(self) -> Any:
        """Return what the producer leaves next. Raises its error."""
        while self._error is None:
            try:
                found = self._begun.get(timeout=_CHECK_S)
            except Empty:
                if self._thread.is_alive() or not self._begun.empty():
                    continue
                found = errors.LoaderError(
                    "the thread that reads this shard has ended without an error; open the shard again"
                )
            if not isinstance(found, BaseException):
                return found
            self._error = found
        if isinstance(self._error, errors.LoaderError):
            # A new error for each raise, because WebDataset modifies the arguments of what it catches.
            raise type(self._error)(*self._error.args) from self._error
        raise self._error

    def _chunk(self) -> memoryview | None:
        """Return the next chunk, or None at the end."""
        reader = self._opened()
        if not self._reads_itself:
            chunk: memoryview | None = self._next()
            if chunk is not None:
                return chunk
            self._reads_itself = True
        if self._error is None:
            try:
                return next(reader.chunks(), None)
            except BaseException as error:  # noqa: BLE001 - raised below, and again: a part of this read may be lost
                self._error = error
        self._next()
        return None

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes, and fewer only at the end of the object."""
        rest = self._rest
        if size is not None and 0 <= size <= len(rest):  # true for most reads
            self._rest = rest[size:]
            self._position += size
            return bytes(rest[:size])
        self._require_own()
        parts: list[memoryview] = []
        left = -1 if size is None or size < 0 else size
        while left:
            if not len(self._rest):
                chunk = self._chunk()
                if chunk is None:
                    break
                self._rest = chunk
            part = self._rest if left < 0 else self._rest[:left]
            self._rest = self._rest[len(part) :]
            left -= len(part) if left > 0 else 0
            parts.append(part)
        data = b"".join(parts)
        self._position += len(data)
        return data

    def read1(self, size: int = -1, /) -> bytes:
        """Like `read`, but without a size, return what is already available."""
        return self.read(size if size >= 0 else max(1, len(self._rest)))

    def _require_own(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._pid != os.getpid():
            raise errors.InvalidRequest(
                f"{self.name} was opened in process {self._pid}, which forked; open it in this one"
            )

    def close(self) -> None:
        if not self.closed:
            self._unwanted.set()
            self._begun, self._rest = SimpleQueue(), memoryview(b"")
            if self._reader is not None and self._reads_itself:  # otherwise the thread closes it
                self._reader.close()
            super().close()

    def __repr__(self) -> str:
        return f"<ShardStream {self.name} at {self._position:,}>"


def _produce(
    begun: SimpleQueue[Any],
    unwanted: threading.Event,
    ahead_bytes: int,
    require_end: bool,
    client: Client,
    bucket: str,
    name: str,
    **options: Any,
) -> None:
    """Open a shard, and read its beginning. Ends with the error, or with the hand-over of the reader."""
    try:
        reader = client.bucket(bucket).reader(name, **options)
        require_whole(client, reader.info, timeout_s=options["timeout_s"], require_end=require_end)
        begun.put(reader)
        for chunk in reader.chunks():
            begun.put(chunk)
            if unwanted.is_set() or reader.tell() >= ahead_bytes:
                break
        if unwanted.is_set():
            reader.close()
        begun.put(None)
    except BaseException as error:  # noqa: BLE001 - raised in the reading thread
        begun.put(error)


def _end_all() -> None:
    """End all threads before the interpreter exits. Later, a thread in a read could not be stopped."""
    for unwanted in list(_running.values()):
        unwanted.set()
    for thread in list(_running):
        thread.join(_END_S)


atexit.register(_end_all)
os.register_at_fork(after_in_child=_running.clear)


_BLOCK_BYTES = 512


def require_whole(client: Client, info: ObjectInfo, *, timeout_s: float, require_end: bool = True) -> None:
    """Check an object that is an archive by its name, and that the store can index if it is valid. Others pass.

    Args:
        require_end: Whether a plain tar must have an end of archive. Some writers leave it out.

    Raises ArchiveDamaged, NotAnArchive, and the errors of reading.
    """
    if not info.name.lower().endswith(ARCHIVE_EXTENSIONS):
        return
    with suppress(errors.ArchiveUnsupported, errors.ArchiveTooLarge, errors.LibraryMissing):
        try:
            next(client.bucket(info.bucket).members(info.name, page_size=1), None)
        except (errors.ArchiveDamaged, errors.NotAnArchive) as error:
            raise type(error)(f"{_url(info)} is not a complete archive, store it again: {error}") from error
    if require_end and info.name.lower().endswith(".tar"):
        _require_end(client, info, timeout_s)


def _require_end(client: Client, info: ObjectInfo, timeout_s: float) -> None:
    start = max(0, info.size_bytes - _BLOCK_BYTES)
    last = Entry(info.bucket, info.name, start=start, length=info.size_bytes - start, version=info.version)
    with client.get_batch([last], timeout_s=timeout_s) as batch:
        [item] = batch
        if any(item.data):
            raise errors.ArchiveDamaged(
                f"{_url(info)} is not a complete archive, store it again: it has no end-of-archive mark, so it "
                "was cut off between two members, or written by a tool that leaves the mark out (then pass "
                "require_end=False)"
            )


def _url(info: ObjectInfo) -> str:
    return f"ais://{info.bucket}/{info.name}"
