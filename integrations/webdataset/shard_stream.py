"""Shard stream: an archive as a plain binary stream, started by a thread of its own, complete or with an error.

The stream is open when the store has confirmed that the archive is complete. Its bytes are those of that version, all
of them or an error. The thread reads until its window is full, which is what the next shard of an iteration needs. From
then on, the consumer reads by itself: next to a thread that runs tarfile's Python code, another thread repeatedly waits
5 ms for the interpreter, and is slower than none.

Threads: A stream belongs to one consumer. Its producer refers only to the buffer between them, so that a stream that is
dropped, as WebDataset does, is closed.
"""

from __future__ import annotations

import atexit
import io
import os
import threading
from collections import deque
from collections.abc import Callable
from weakref import WeakSet, finalize

from ais_loader import Client, ObjectInfo, ObjectReader, errors

from .whole_shards import require_whole

_CHECK_S = 1.0
"""How often a waiting consumer checks that its producer, whose own waits have deadlines, is still alive."""
_END_S = 10.0
"""How long the process waits for a producer to notice that it is ending."""


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
        self._buffer = buffer = _Buffer(window_bytes // 2)
        self._rest = memoryview(b"")
        self._position = 0
        self._thread = threading.Thread(
            target=_produce,
            args=(buffer, client, bucket, name, window_bytes - window_bytes // 2, timeout_s, require_end),
            name=f"ais-loader shard {name}",
            daemon=True,
        )
        self._finalizer = finalize(self, _close_buffer, buffer, self._pid)
        self._finalizer.atexit = False
        _running.add(self._thread)
        _buffers.add(buffer)
        self._thread.start()

    def wait_open(self) -> ObjectInfo:
        """Wait until the shard is open, and return the version that is read. If it is an archive, it has an index.

        Raises ObjectNotFound, BucketNotFound, ArchiveDamaged, NodeUnavailable, SilenceTimeout.
        """
        self._require_own()
        return self._buffer.opened(self._thread)

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
                block = self._buffer.take(self._thread)
                if block is None:
                    break
                self._rest = block
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
            self._finalizer()
            self._rest = memoryview(b"")
            super().close()

    def __repr__(self) -> str:
        return f"<ShardStream {self.name} at {self._position:,}>"


class _Buffer:
    """The buffer between a producer and its consumer: at most `limit_bytes` and one chunk."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._changed = threading.Condition()
        self._chunks: deque[memoryview] = deque()  # guarded by _changed, like all that follows
        self._held_bytes = 0
        self._info: ObjectInfo | None = None
        self._error: BaseException | None = None
        self._reader: ObjectReader | None = None
        self._ended = self._closed = False

    def open(self, info: ObjectInfo) -> None:
        with self._changed:
            self._info = info
            self._changed.notify_all()

    def put(self, chunk: memoryview) -> bool:
        """Add a chunk. Returns False if no more is wanted: the buffer is full, or closed."""
        with self._changed:
            if not self._closed:
                self._chunks.append(chunk)
                self._held_bytes += len(chunk)
                self._changed.notify_all()
            return not self._closed and self._held_bytes < self._limit_bytes

    def hand_over(self, reader: ObjectReader) -> None:
        """Let the consumer read the rest from `reader`, which is closed with the buffer."""
        with self._changed:
            self._reader = reader
            self._changed.notify_all()
            if self._closed:
                reader.close()

    def end(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._chunks.clear()
            self._changed.notify_all()
            if self._reader is not None:
                self._reader.close()

    def opened(self, producer: threading.Thread) -> ObjectInfo:
        with self._changed:
            self._wait(lambda: self._info is not None or self._ended, producer)
            if self._info is None:
                raise self._error_now()
            return self._info

    def take(self, producer: threading.Thread) -> memoryview | None:
        """Return the next chunk, or None at the end."""
        with self._changed:
            self._wait(lambda: bool(self._chunks) or self._ended or self._reader is not None, producer)
            if self._chunks:
                chunk = self._chunks.popleft()
                self._held_bytes -= len(chunk)
                self._changed.notify_all()
                return chunk
            if self._error is not None:
                raise self._error_now()
            if self._reader is not None:
                return next(self._reader.chunks(), None)
            return None

    def _wait(self, ready: Callable[[], bool], producer: threading.Thread) -> None:
        while not self._changed.wait_for(ready, _CHECK_S):
            if not producer.is_alive() and not ready():
                raise errors.LoaderError(
                    "the thread that reads this shard has ended without an error; open the shard again"
                )

    def _error_now(self) -> BaseException:
        """Return a new error for each raise, because WebDataset modifies the arguments of what it catches."""
        error = self._error
        if isinstance(error, errors.LoaderError):
            repeated = type(error)(*error.args)
            repeated.__cause__ = error
            return repeated
        return error or errors.LoaderError("the shard ended before it was opened")


def _produce(
    buffer: _Buffer, client: Client, bucket: str, name: str, ahead_bytes: int, timeout_s: float, require_end: bool
) -> None:
    try:
        reader = client.bucket(bucket).reader(name, timeout_s=timeout_s, read_ahead_bytes=ahead_bytes)
        require_whole(client, reader.info, timeout_s=timeout_s, require_end=require_end)
        buffer.open(reader.info)
        for chunk in reader.chunks():
            if not buffer.put(chunk):
                buffer.hand_over(reader)
                return
    except BaseException as error:  # noqa: BLE001 - raised in the reading thread
        buffer.end(error)
    else:
        buffer.end(None)


def _close_buffer(buffer: _Buffer, pid: int) -> None:
    if pid == os.getpid():  # in a child, a thread that does not exist may hold the lock
        buffer.close()


_running: WeakSet[threading.Thread] = WeakSet()
_buffers: WeakSet[_Buffer] = WeakSet()


def _end_all() -> None:
    """End all threads before the interpreter exits. Later, a thread in a read could not be stopped."""
    for buffer in list(_buffers):
        buffer.close()
    for thread in list(_running):
        thread.join(_END_S)


def _forget_all() -> None:
    _running.clear()
    _buffers.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_forget_all)
