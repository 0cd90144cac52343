"""Frame stream of a batch of the embedded store."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from ais_loader.wire.frame import Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb

if TYPE_CHECKING:
    from storage_node.store.read.batch import StoreBatch
    from storage_node.store.store import Store

# More threads than cores do not read faster, and more than a few only take from the trainer.
READ_PARTS = min(4, len(os.sched_getaffinity(0)))


class EmbeddedStream:
    """Frames read when they are asked for, in the caller's thread."""

    retries, paused_s, hedged = 0, 0.0, 0

    def __init__(self, store: Store, request: pb.BatchRequest, helpers: Executor | None) -> None:
        self._store = store
        self._helpers = helpers
        self._request = request
        self._batch: StoreBatch | None = None
        self._frames = self._read_frames()

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        return next(self._frames)

    def read_all(self) -> list[bytes] | None:
        return self._looked_up().read_all(self._helpers, READ_PARTS)

    def _looked_up(self) -> StoreBatch:
        from storage_node.store.read.batch import StoreBatch

        if self._batch is None:
            self._batch = StoreBatch(self._store, self._request)
        return self._batch

    def _read_frames(self) -> Generator[Frame, None, None]:
        batch = self._looked_up()
        try:
            for span in batch.spans():
                frame = batch.read(span)
                yield frame
                if self._request.fail_fast and frame.status.any():
                    return
        finally:
            batch.close()

    def close(self) -> None:
        # A generator that is running in another thread refuses to close; it then ends with its consumer.
        with contextlib.suppress(ValueError):
            self._frames.close()
