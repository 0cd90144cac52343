"""Promote call to one node: its results, and its longest silence."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import Any

import grpc

from ais_loader import errors
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.grpc.put_stream import object_info
from ais_loader.transport.grpc.watchdog import Watchdog
from ais_loader.transport.validation import require_bucket, require_text
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.wire.generated import ais_promote_pb2 as wire


def promote_request(spec: PromoteSpec) -> wire.PromoteRequest:
    """Raises InvalidRequest, BucketNotFound."""
    require_bucket(spec.bucket)
    if not os.path.isabs(spec.path):
        raise errors.InvalidRequest(f"{spec.path!r}: need an absolute path, on the node's machine")
    for text in (spec.prefix, *spec.include, *spec.exclude):
        require_text(text, errors.InvalidRequest, "prefix or pattern")
    return wire.PromoteRequest(
        bucket=spec.bucket,
        path=os.fsencode(spec.path),
        prefix=spec.prefix,
        recursive=spec.recursive,
        move=spec.move,
        overwrite=spec.overwrite,
        include=spec.include,
        exclude=spec.exclude,
    )


def run_promotion(here: Connection, request: wire.PromoteRequest) -> Generator[PromoteResult, None, int]:
    """Yield the result of each file as it becomes known. Returns the number of files that the node has seen.

    Raises the node's error about the whole promotion, NodeUnavailable, SilenceTimeout; files before that are promoted.
    """
    with here.in_use():
        call = here.promote.Run(request)
    watchdog = Watchdog(CALL_TIMEOUT_S)
    with watchdog.guard(call.cancel):
        try:
            for response in _received(call, watchdog, here):
                yield from map(_result, response.result)
                if response.done:
                    return int(response.files_seen)
        finally:
            call.cancel()
    raise errors.NodeUnavailable(f"{here.endpoint}: it ended the promotion; promote again")


def _received(call: Any, watchdog: Watchdog, here: Connection) -> Iterator[wire.PromoteResponse]:
    while True:
        watchdog.seen()
        try:
            response = next(call, None)
        except grpc.RpcError as error:
            if watchdog.fired:
                raise errors.SilenceTimeout(f"{here.endpoint}: it was silent for {CALL_TIMEOUT_S:g} s") from error
            raise here.translate(error) from error
        if response is None:
            return
        watchdog.rest()
        yield response


def _result(message: wire.PromoteResult) -> PromoteResult:
    if message.HasField("error"):
        error = errors.from_node(message.error.kind, message.error.message)
        return PromoteResult(message.path, message.name, "failed", error=error)
    status = "skipped" if message.skipped else "promoted"
    return PromoteResult(message.path, message.name, status, object_info(message.info))  # type: ignore[arg-type]
