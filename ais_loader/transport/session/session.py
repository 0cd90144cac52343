"""Client half of a GetBatch session: many batches on one stream, each with an inbox of its own.

The problem. The threads of a process request many batches from one node, and a call for each batch would cost more than
a small batch (docs/decisions/0001-batches-on-one-session.md). Therefore all batches share one stream. One thread per
session reads it and puts each response into the inbox of its batch. A consumer waits at its inbox, with a deadline of
its own. Credit, which each batch grants, bounds what is in flight, so that no inbox can fill memory.

The invariant. A batch that is not cancelled gets events until its END, a reject or `Broken`, and exactly one of these
is its last event. No consumer waits for a session that has died: `begin` registers the inbox and `_end` marks the
session as broken under the same lock. Either `begin` sees the mark and delivers `Broken` itself, or `_end` sees the
inbox.

What happens when the node dies halfway through a batch:

1. The stream breaks. The reading thread gets an error, translates it and puts `Broken` into all inboxes.
2. An inbox is a queue: frames that were received before the break are delivered before `Broken`.
3. The consumer (`batch_stream`, `cluster.merged_stream`) knows what has arrived. It requests the rest on a
   new session, or from another node: the entries that are missing, and of a large entry the bytes after
   the last one received, in the version that it began with.
4. A new batch on the dead session gets `Broken` at once. `Connection.session` replaces a session that is
   not `alive`.

A node that hangs keeps its connection, so nothing happens here; the consumer's deadline ends the wait. A message that
cannot be decoded ends the whole session, because it may have belonged to any batch. A batch that its consumer cancels
loses its inbox first; frames that still arrive for it are dropped. Errors of sending are ignored: the reading thread
gets them as well.

This module does not depend on gRPC: it is given a function that opens a stream of bytes.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from ais_loader.errors import LoaderError
from ais_loader.wire.frame import FrameError, Response, decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb


class Call(Protocol):
    """An open bidirectional stream of serialized messages."""

    def send(self, message: bytes) -> None:
        """Send a message, from any thread, without blocking. A failure shows when the stream is read."""

    def __iter__(self) -> Iterator[bytes | memoryview]: ...
    def cancel(self) -> object:
        """End the stream, from any thread: a thread that iterates over it is woken."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Last event of a batch whose session has died."""

    error: LoaderError


Event: TypeAlias = Response | Broken
Inbox: TypeAlias = "queue.SimpleQueue[Event]"


class Receiver(Protocol):
    """Destination of the events of one batch. The session's reading thread calls `put`, which must not block."""

    def put(self, event: Event, /) -> None: ...


class Session:
    """An open session. Thread-safe. Must not be used in a forked child."""

    def __init__(self, open_call: Callable[[], Call], translate: Callable[[Exception], LoaderError], name: str) -> None:
        self._translate = translate
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._inboxes: dict[int, Receiver] = {}  # guarded by _lock for changes
        self._broken: Broken | None = None  # guarded by _lock
        self._call = open_call()
        self._reader = threading.Thread(target=self._read, name=f"ais-loader session {name}", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        return self._broken is None

    def begin(self, request: pb.BatchRequest, inbox: Receiver) -> int:
        """Send a batch request; its answer arrives in the inbox. Returns the batch's id."""
        batch_id = next(self._ids)
        with self._lock:
            if self._broken is not None:
                inbox.put(self._broken)
                return batch_id
            self._inboxes[batch_id] = inbox
        self._send(pb.SessionRequest(batch_id=batch_id, request=request))
        return batch_id

    def grant(self, batch_id: int, payload_bytes: int) -> None:
        self._send(pb.SessionRequest(batch_id=batch_id, credit=pb.Credit(payload_bytes=payload_bytes)))

    def cancel(self, batch_id: int) -> None:
        """Abandon a batch; harmless when it has ended."""
        if self._inboxes.pop(batch_id, None) is not None:
            self._send(pb.SessionRequest(batch_id=batch_id, cancel=pb.Cancel()))

    def _send(self, request: pb.SessionRequest) -> None:
        self._call.send(request.SerializeToString())

    def _read(self) -> None:
        error: LoaderError
        try:
            for message in self._call:
                response = decode_response(message)
                inbox = self._inboxes.get(response.batch_id)
                if inbox is not None:  # otherwise the batch was cancelled in the meantime
                    if response.frame is None or response.end is not None:
                        self._inboxes.pop(response.batch_id, None)
                    inbox.put(response)
                del message, response  # keep no reference to a message while waiting for the next one
            error = self._translate(EOFError("the node ended the session"))
        except FrameError as malformed:
            error = LoaderError(f"the node sent what is not a frame: {malformed}")
            self._call.cancel()
        except Exception as failure:  # noqa: BLE001 - a thread's boundary: all batches get the error
            error = self._translate(failure)
        self._end(Broken(error))

    def _end(self, broken: Broken) -> None:
        with self._lock:
            self._broken = broken
            inboxes = list(self._inboxes.values())
            self._inboxes.clear()
        for inbox in inboxes:
            inbox.put(broken)

    def close(self) -> None:
        """End the session; batches in flight get an error. Returns when the reading thread has ended."""
        self._call.cancel()
        if threading.current_thread() is not self._reader:
            self._reader.join(timeout=5.0)
