"""Same-host transport, behind `node:///folder` URLs: reads stored objects from the folder, and asks its node for the
rest.

The node publishes its commits (`storage_node.store.drive.published_commits`), so that a reader in this process is as
current as the node. It answers only reads that it can answer completely. Whatever it does not find or cannot read, the
node is asked for, and so it is for remote buckets, transforms and writes, and for everything while the node does not
let processes read beside it: it logs or counts reads, limits tenants, needs tokens, or is a part of a cluster.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ais_loader import errors
from ais_loader.extras import MissingExtra
from ais_loader.tracebacks import short_tracebacks
from ais_loader.transport.base import OpenedObject
from ais_loader.transport.cluster.discovery import LateStream
from ais_loader.transport.cluster.failover import Members
from ais_loader.transport.cluster.transport import RemoteTransport
from ais_loader.transport.fork_safety import GATE
from ais_loader.values.options import ClusterOptions, token_of
from ais_loader.values.source import Buffer
from ais_loader.values.urls import store_folders
from ais_loader.wire.answer_check import AnswerCheck
from ais_loader.wire.frame import MAX_PAYLOAD_BYTES, Frame, FrameStream
from ais_loader.wire.generated import ais_batch_pb2 as pb

if TYPE_CHECKING:
    from ais_loader.transport.embedded import EmbeddedTransport

ASKED_FIRST = 2
"""Number of reads for which a client asks the node before it opens the folder, which takes 0.15 s: many processes read
no more."""
OPEN_AGAIN_S = 1.0
"""Pause before the folder is opened again after it could not be read."""


@short_tracebacks
class SameHostTransport(RemoteTransport):
    """A `Transport` to the node of a folder of this host. Pickles as its address."""

    def __init__(self, url: str, options: ClusterOptions) -> None:
        super().__init__(url, options)
        self._paths = store_folders(url)
        self._asks = options.lane != "auto" or bool(options.tenant) or token_of(options) is not None
        """Whether the node is asked for everything."""
        self._reader: EmbeddedTransport | None = None
        self._asked = 0
        """Number of reads for which the node was asked first."""
        self._opens_at_s = 0.0
        """When the reader may be opened, on the monotonic clock."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SameHostTransport, (self.url, self.options)

    def _reader_of(self, buckets: Iterable[str]) -> EmbeddedTransport | None:
        """Return the reader, current, if it may answer for these buckets; None if the node is to be asked."""
        reader = self._reader
        if self._asks or (reader is None and time.monotonic() < self._opens_at_s):
            return None
        if reader is None and self._asked < ASKED_FIRST:
            self._asked += 1
            return None
        try:
            if reader is None:
                with GATE.call():  # a forked child would wait forever for another thread's import, or for RocksDB
                    from ais_loader.transport.embedded import EmbeddedTransport

                    self._reader = reader = EmbeddedTransport(self._paths, mode="r")
            return reader if reader.is_current(buckets) else None
        except MissingExtra:
            self._asks = True
        except (errors.LoaderError, OSError):
            # Not closed: other threads may be reading. It is released with the last of them.
            self._reader, self._opens_at_s = None, time.monotonic() + OPEN_AGAIN_S
        return None

    def _get_small(self, members: Members, bucket: str, name: str, timeout_s: float) -> Buffer | None:
        if (opened := self._opened_here(bucket, name, MAX_PAYLOAD_BYTES)) is not None:
            if opened.content is None:
                return None if opened.info.size_bytes else b""  # a large object is read as a batch
            if data := opened.content():
                return data
        return super()._get_small(members, bucket, name, timeout_s)

    def open_object(self, bucket: str, name: str, *, whole_up_to: int, timeout_s: float) -> OpenedObject:
        opened = self._opened_here(bucket, name, whole_up_to)
        return opened or super().open_object(bucket, name, whole_up_to=whole_up_to, timeout_s=timeout_s)

    def open_cached(self, bucket: str, name: str, most_bytes: int) -> OpenedObject | None:
        reader = None if self._asks else self._reader
        return None if reader is None else reader.open_cached(bucket, name, most_bytes)

    def _opened_here(self, bucket: str, name: str, whole_up_to: int) -> OpenedObject | None:
        if (reader := self._reader_of([bucket])) is None:
            return None
        try:
            opened = reader.open_object(bucket, name, whole_up_to=whole_up_to, timeout_s=0.0)
        except (errors.LoaderError, OSError):
            return None
        return opened._replace(read=None)  # batches continue at the node where the reader cannot

    def open_batch(
        self, request: pb.BatchRequest, *, timeout_s: float, assembly: str = "auto", colocation: str = "none"
    ) -> FrameStream:
        def ask(asked: pb.BatchRequest) -> FrameStream:
            return RemoteTransport.open_batch(
                self, asked, timeout_s=timeout_s, assembly=assembly, colocation=colocation
            )

        if request.transform or (reader := self._reader_of(request.bucket)) is None:
            return ask(request)
        return StoredStream(reader.open_batch(request, timeout_s=timeout_s), request, ask)

    def open_long_batch(self, request: pb.BatchRequest, *, timeout_s: float, window_bytes: int) -> FrameStream | None:
        if self._reader_of(request.bucket) is not None:
            return None
        return super().open_long_batch(request, timeout_s=timeout_s, window_bytes=window_bytes)

    def close(self) -> None:
        self._asks = True
        if self._reader is not None:
            self._reader.close()
        super().close()


class StoredStream(LateStream):
    """A `FrameStream` of the reader, and of the node from the first frame on that the reader cannot read completely.

    An entry of which pieces were delivered ends as the reader ends it: the node would have read the same file.
    """

    def __init__(
        self, here: FrameStream, request: pb.BatchRequest, ask: Callable[[pb.BatchRequest], FrameStream]
    ) -> None:
        super().__init__(partial(ask, request))
        self._here, self._request, self._ask = here, request, ask
        self._arrived = 0
        """Number of entries that have been delivered completely."""
        self._is_partial = False

    def __next__(self) -> Frame:
        if self._stream is None:
            try:
                frame = next(self._here)
            except (errors.LoaderError, OSError):
                if self._is_partial or self._closed:
                    raise
            else:
                if self._is_partial or not np.count_nonzero(frame.status):
                    self._is_partial = not frame.completes_entry
                    self._arrived += not self._is_partial and len(frame.index)
                    return frame
            self._here.close()
            rest = AnswerCheck(len(self._request.name)).rest_of(self._request, self._arrived)
            self._open = partial(self._ask, rest)
        return super().__next__()

    def read_all(self) -> list[bytes] | None:
        with contextlib.suppress(errors.LoaderError, OSError):
            return self._here.read_all()
        return None

    def read_whole(self) -> Frame | None:
        with contextlib.suppress(errors.LoaderError, OSError):
            return self._here.read_whole()
        return None

    def close(self) -> None:
        super().close()
        self._here.close()
