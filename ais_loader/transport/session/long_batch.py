"""Dedicated stream of a long batch, driven by the thread that consumes its frames, without a thread in between.

Payload that the node sends ahead is held in gRPC's buffers, so the HTTP/2 window must have room for all of it.
Otherwise frames would wait in the node's frame memory, which all of its clients share, for as long as a consumer
pauses.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from ais_loader import errors
from ais_loader.transport.session.session import Broken, Event
from ais_loader.transport.session.stream_pool import PooledStream, StreamPool
from ais_loader.wire.channel_options import CHANNEL_OPTIONS
from ais_loader.wire.frame import FrameError, decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb

FIRST_WINDOW_BYTES = 8 << 20
"""Payload that a node may send ahead at first. It suffices if an answer takes less than `_FAR_S`; more would have left
the CPU caches before it is read."""
MAX_WINDOW_BYTES = 16 << 20
_FAR_NODE_S = 0.005
"""A longer wait for a frame means that more payload must be in flight."""
_LARGER_BYTES = 8 << 20
"""Larger than any message."""
_HEAP_BYTES = 16 << 20
"""glibc then keeps twice this: a message, its pieces in gRPC, and the unread rest of the previous one."""
OWN_CHANNEL_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.http2.lookahead_bytes", MAX_WINDOW_BYTES + (8 << 20)),  # a frame may overdraw the credit
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.max_frame_size", _LARGER_BYTES),  # otherwise 16 KiB without the probe: 0.07 s more CPU time per GB
)


def keep_freed_memory() -> None:
    """Make glibc keep the memory of one message for the next. It does so once a larger buffer has been freed
    (mallopt(3), M_MMAP_THRESHOLD). Otherwise each message's memory is returned to the kernel and faulted in again: 0.1
    to 0.2 s for each GB."""
    bytes(_HEAP_BYTES)


class LongBatch:
    """The `Answers` of one batch, on a stream of the pool.

    Args:
        window_bytes: most that the node may send ahead of the consumer.
        broken: translates the error that broke the stream.

    Raises ValueError, which is gRPC's error for a channel that another thread has just closed.
    """

    def __init__(
        self,
        pool: StreamPool,
        request: pb.BatchRequest,
        window_bytes: int,
        broken: Callable[[Exception], errors.LoaderError],
    ) -> None:
        self._pool = pool
        self._translate = broken
        self._limit_bytes = min(window_bytes, MAX_WINDOW_BYTES)
        self._window_bytes = request.initial_credit_bytes = min(self._limit_bytes, FIRST_WINDOW_BYTES)
        self._unreturned_bytes = 0
        self._lock = threading.Lock()
        self._cancelled = False  # guarded by _lock, like the next
        self._over: Broken | None = None
        """Event to return once nothing more comes. The stream belongs to other batches from then on."""
        self._pooled = pool.take()
        self._batch_id = next(self._pooled.batch_ids)
        with self._pooled.lock:
            try:
                self._pooled.stream.write(
                    pb.SessionRequest(batch_id=self._batch_id, request=request).SerializeToString()
                )
            except EOFError as error:
                self._break(error)

    def next(self, timeout_s: float) -> Event:
        pooled = self._pooled
        if self._over is not None:
            return self._over
        with pooled.lock:
            if self._over is not None:  # `cancel` has been called
                return self._over
            began_s = time.monotonic()
            pooled.deadline = began_s + timeout_s
            try:
                response = decode_response(self._receive(pooled))
                if response.batch_id != self._batch_id:
                    raise FrameError(f"an answer to request {response.batch_id} where {self._batch_id} was asked")
            except (EOFError, FrameError) as error:
                broken = self._break(error)
                if pooled.overdue and not self._cancelled:
                    raise queue.Empty from error
                return broken
            except BaseException as error:  # such as KeyboardInterrupt, for which gRPC has ended the stream
                self._break(EOFError(str(error)))
                raise
            pooled.deadline = float("inf")
            if response.frame is None or response.end is not None:
                self._finish(Broken(errors.Closed("this batch has ended")), keep=True)
            elif time.monotonic() - began_s > _FAR_NODE_S:
                more = min(self._window_bytes, self._limit_bytes - self._window_bytes)
                self._window_bytes += more
                self._unreturned_bytes += more
            return response

    def _receive(self, pooled: PooledStream) -> bytes | memoryview:
        if self._unreturned_bytes < self._window_bytes // 4:
            return pooled.stream.receive()
        credit = pb.Credit(payload_bytes=self._unreturned_bytes)
        self._unreturned_bytes = 0
        return pooled.stream.exchange(pb.SessionRequest(batch_id=self._batch_id, credit=credit).SerializeToString())

    def grant(self, payload_bytes: int) -> None:
        """Return credit in steps of a quarter of the window, together with the request for the next frame."""
        self._unreturned_bytes += payload_bytes

    def cancel(self) -> None:
        with self._lock:
            if self._over is not None:
                return
            self._cancelled = True
            self._pooled.stream.cancel()
        if self._pooled.lock.acquire(blocking=False):  # otherwise the thread that waits in `next` ends it
            try:
                if self._over is None:
                    self._break(EOFError("closed"))
            finally:
                self._pooled.lock.release()

    def _break(self, error: Exception) -> Broken:
        if self._cancelled:
            failure: errors.LoaderError = errors.Closed("this batch has been closed")
        elif isinstance(error, FrameError):
            failure = errors.LoaderError(f"the node sent what is not a frame: {error}")
        else:
            failure = self._translate(error)
        broken = Broken(failure)
        self._finish(broken, keep=False)
        return broken

    def _finish(self, broken: Broken, *, keep: bool) -> None:
        with self._lock:
            self._over = broken
            self._pool.release(self._pooled, keep=keep and not self._cancelled)
