"""Compose call over gRPC: a node creates an object from parts of others."""

from __future__ import annotations

from collections.abc import Callable

from ais_loader import errors
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.grpc.put_stream import object_info
from ais_loader.transport.grpc.watchdog import Watchdog
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.generated import ais_compose_pb2 as pb


def composed(here: Connection, request: pb.ComposeRequest, moved: Callable[[int], None] | None) -> ObjectInfo:
    """Make one call, which may continue as long as bytes move. Raises SilenceTimeout, and gRPC's errors."""
    watchdog = Watchdog(CALL_TIMEOUT_S)
    call = here.compose.Compose(request)
    with watchdog.guard(call.cancel):
        try:
            for answer in call:
                watchdog.seen()
                if moved is not None:
                    moved(answer.moved_bytes)
                if answer.HasField("info"):
                    return object_info(answer.info)
        except Exception as error:
            if watchdog.fired:
                raise errors.SilenceTimeout(
                    f"{here.endpoint}: there was no progress for {CALL_TIMEOUT_S:g} s"
                ) from error
            raise
        finally:
            call.cancel()
    raise errors.NodeUnavailable(f"{here.endpoint}: the answer ended before it said what was stored")
