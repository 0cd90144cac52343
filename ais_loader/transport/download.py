"""One large object as a stream of chunks: goes on from its last byte, in the same version, when the stream breaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from ais_loader import errors
from ais_loader.transport.patience import Patience
from protos import ais_objects_pb2 as pb


class Call(Protocol):
    """A running server-streaming call."""

    def __iter__(self) -> Iterator[pb.GetResponse]: ...
    def cancel(self) -> object: ...


def download(
    request: pb.GetRequest,
    open_call: Callable[[pb.GetRequest], Call],
    translate: Callable[[Exception], errors.LoaderError],
    *,
    timeout_s: float,
    retry_s: float,
) -> Iterator[bytes]:
    """The bytes that `request` asks for, in chunks. Raises LoaderError; a silence of `timeout_s` is SilenceTimeout."""
    patience = Patience(retry_s)
    start, received = request.start, 0
    left: int | None = None
    while True:
        watchdog: _Watchdog | None = None
        try:
            call = open_call(request)
            watchdog = _Watchdog(call, timeout_s)
            for message in call:
                watchdog.seen_at = time.monotonic()
                if message.WhichOneof("part") == "header":
                    left = message.header.length if left is None else left
                    request.version = message.header.info.version
                    continue
                assert left is not None
                received, left = received + len(message.data), left - len(message.data)
                patience.progress()
                yield message.data
            if left == 0:
                return
            patience.pause(errors.NodeUnavailable(f"{request.name!r}: the stream ended {left or 0:,} bytes early"))
        except Exception as failure:  # noqa: BLE001 - gRPC's errors, translated; others pass through `translate` as they are
            if watchdog is not None and watchdog.fired:
                raise errors.SilenceTimeout(f"nothing arrived for {timeout_s:g} s") from failure
            patience.pause(translate(failure))
        finally:
            if watchdog is not None:
                watchdog.stop()
        if left is not None:
            request.start, request.length = start + received, left


class _Watchdog:
    """Cancels a stream that stays silent: gRPC's own deadline is for a call as a whole."""

    def __init__(self, call: Call, timeout_s: float) -> None:
        self.seen_at = time.monotonic()
        self.fired = False
        self._call = call
        self._timeout_s = timeout_s
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="ais-loader watchdog", daemon=True).start()

    def _watch(self) -> None:
        while True:
            left_s = self.seen_at + self._timeout_s - time.monotonic()
            if left_s <= 0:
                self.fired = True
                self._call.cancel()
                return
            if self._stopped.wait(left_s):
                return

    def stop(self) -> None:
        self._stopped.set()
        self._call.cancel()
