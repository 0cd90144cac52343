"""Answer source of one batch: a session that batches share, or a stream of its own."""

from __future__ import annotations

import queue
from typing import Protocol

from ais_loader.errors import Closed
from ais_loader.transport.session.session import Broken, Event, Inbox, Session
from ais_loader.wire.generated import ais_batch_pb2 as pb

WINDOW_BYTES = 8 << 20
"""Payload that a node may send ahead of the consumer, for each batch on a shared session."""


class Answers(Protocol):
    """Of one batch that has been asked for. Belongs to one thread, but for `cancel`."""

    def next(self, timeout_s: float) -> Event:
        """Waits. Raises queue.Empty when nothing comes for `timeout_s`; after END, a reject or Broken nothing does."""

    def grant(self, payload_bytes: int) -> None:
        """The consumer is done with so many bytes: the node may send as many more."""

    def cancel(self) -> None:
        """Abandon the batch; whoever waits in `next` is told. Never blocks, may be called again."""


class SharedAnswers:
    """Through a session with a thread of its own, which sorts what comes for several batches."""

    def __init__(self, session: Session, request: pb.BatchRequest) -> None:
        request.initial_credit_bytes = WINDOW_BYTES
        self._session = session
        self._inbox: Inbox = queue.SimpleQueue()
        self._unreturned_bytes = 0
        self._batch_id = session.begin(request, self._inbox)

    def next(self, timeout_s: float) -> Event:
        return self._inbox.get(timeout=timeout_s)

    def grant(self, payload_bytes: int) -> None:
        """A quarter of the window at a time."""
        self._unreturned_bytes += payload_bytes
        if self._unreturned_bytes >= WINDOW_BYTES // 4:
            self._session.grant(self._batch_id, self._unreturned_bytes)
            self._unreturned_bytes = 0

    def cancel(self) -> None:
        self._session.cancel(self._batch_id)
        self._inbox.put(Broken(Closed("this batch has been closed")))  # another thread may be waiting
