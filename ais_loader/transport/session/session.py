"""Client half of a GetBatch session: many batches on one stream, each with an inbox of its own.

One thread per session reads the stream and sorts what it gets; whoever waits for a batch waits at its inbox, with a
deadline. What may be in flight is bounded by the credit that each batch grants, so no inbox can fill memory. A session
that breaks tells all its batches, which ask a new one for what they have not got yet.

No gRPC here: a session is made from a function that opens the stream, and bytes.
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
        """From any thread; never waits. Whether it arrives, what comes back tells."""

    def __iter__(self) -> Iterator[bytes | memoryview]: ...
    def cancel(self) -> object:
        """End it, from any thread: whoever iterates is woken."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The session has died; nothing more comes on it."""

    error: LoaderError


Event: TypeAlias = Response | Broken
Inbox: TypeAlias = "queue.SimpleQueue[Event]"


class Receiver(Protocol):
    """Where the events of one batch go; called by the session's reading thread, and must not wait."""

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
        """Send a batch; its answer arrives in the inbox. Returns the batch's id."""
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
                if inbox is not None:  # else it was cancelled meanwhile
                    if response.frame is None or response.end is not None:
                        self._inboxes.pop(response.batch_id, None)
                    inbox.put(response)
                del message, response  # nothing of it is kept while the next one is waited for
            error = self._translate(EOFError("the node ended the session"))
        except FrameError as malformed:
            error = LoaderError(f"the node sent what is not a frame: {malformed}")
            self._call.cancel()
        except Exception as failure:  # noqa: BLE001 - a thread's boundary: every batch of the session is told
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
