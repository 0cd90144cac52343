"""Put calls, which carry objects to a node and may continue as long as bytes move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ais_loader import errors
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.watchdog import Watchdog
from ais_loader.wire.generated import ais_objects_pb2 as pb

CALL_TIMEOUT_S = 60.0
"""Timeout of any call to a node."""


class PutAnswers:
    """The acknowledgements of one PutMany call."""

    def __init__(self, call: Any, translate: Callable[[Exception], errors.LoaderError]) -> None:
        self._call = call
        self._translate = translate
        self._watchdog = Watchdog(CALL_TIMEOUT_S).guard(call.cancel)
        self._watchdog.rest()

    def __next__(self) -> pb.PutManyResponse:
        self._watchdog.seen()
        try:
            answer: pb.PutManyResponse = next(self._call)
        except grpc.RpcError as error:
            if self._watchdog.fired:
                raise errors.SilenceTimeout(f"nothing was acknowledged for {CALL_TIMEOUT_S:g} s") from error
            raise self._translate(error) from error
        self._watchdog.rest()
        return answer

    def close(self) -> None:
        self._watchdog.stop()
        self._call.cancel()


def put_large(here: Connection, messages: Iterator[pb.PutRequest]) -> pb.ObjectInfo:
    """Put one large object. The call may continue as long as its bytes move."""
    watchdog = Watchdog(CALL_TIMEOUT_S)

    def watched() -> Iterator[pb.PutRequest]:
        for message in messages:
            watchdog.seen()
            yield message

    call = here.objects.Put.future(watched())
    with watchdog.guard(call.cancel):
        try:
            stored: pb.ObjectInfo = call.result()
        except grpc.FutureCancelledError as error:
            if watchdog.fired:
                raise errors.SilenceTimeout(
                    f"{here.endpoint}: a PUT made no progress for {CALL_TIMEOUT_S:g} s"
                ) from error
            raise here.cancelled() from error
    return stored
