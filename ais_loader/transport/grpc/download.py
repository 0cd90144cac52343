"""Resumable download of one large object: continues at its last byte, in the same version, when the stream breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from ais_loader import errors
from ais_loader.transport.grpc.watchdog import Watchdog
from ais_loader.transport.retry import RetryBudget
from ais_loader.wire.generated import ais_objects_pb2 as pb


class Call(Protocol):
    """A running server-streaming call."""

    def __iter__(self) -> Iterator[pb.GetResponse]: ...
    def cancel(self) -> object: ...


def download(
    request: pb.GetRequest,
    open_call: Callable[[pb.GetRequest], Call],
    translate: Callable[[Exception, int], errors.LoaderError],
    *,
    timeout_s: float,
    retry_s: float,
) -> Iterator[bytes]:
    """Yield the requested bytes in chunks. Raises LoaderError; SilenceTimeout after `timeout_s` of silence.

    Args:
        translate: converts what a call raised into a LoaderError; its second argument is the number of bytes received.
    """
    patience = RetryBudget(retry_s)
    first = pb.GetRequest()
    first.CopyFrom(request)
    received = 0
    left: int | None = None
    while True:
        call: Call | None = None
        watchdog = Watchdog(timeout_s)
        try:
            call = open_call(request)
            watchdog.guard(call.cancel)
            for message in call:
                watchdog.note_progress()
                if message.WhichOneof("part") == "header":
                    left = message.header.length if left is None else left
                    request.version = message.header.info.version
                    continue
                if left is None:
                    raise errors.LoaderError(f"{request.name!r}: the node sent bytes before it said what they are")
                received, left = received + len(message.data), left - len(message.data)
                if left < 0:
                    raise errors.LoaderError(f"{request.name!r}: the node sent {-left:,} bytes more than it announced")
                patience.progress()
                watchdog.rest()  # the consumer's time does not count as the node's silence
                yield message.data
                watchdog.note_progress()
            if left == 0:
                return
            short = f"{request.name!r}: the stream ended {left or 0:,} bytes early"
            failure: errors.LoaderError = errors.NodeUnavailable(short)
        except Exception as error:  # gRPC's errors are translated; others pass through `translate` unchanged
            if watchdog.fired:
                raise errors.SilenceTimeout(f"{request.name!r}: nothing arrived for {timeout_s:g} s") from error
            failure = translate(error, received)
        finally:
            watchdog.stop()
            if call is not None:
                call.cancel()
        is_missing = isinstance(failure, errors.ObjectNotFound) and not isinstance(failure, errors.ObjectDeleted)
        if is_missing and request.version != first.version:  # the version that was begun has been replaced
            if received:
                raise errors.NodeUnavailable(
                    f"{request.name!r}: a node was lost after {received:,} bytes of a version that is gone "
                    f"since: {failure}"
                )
            request.CopyFrom(first)  # the new version may have another length
            left = None
            failure = errors.NodeUnavailable(str(failure))
        patience.pause(failure)
        if left is not None:
            request.start, request.length = first.start + received, left
