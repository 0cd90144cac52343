"""Waiting for a node's answer: for a long time if the node is the only one, and while it is alive if there are others.

A node that hangs, or whose machine is gone, keeps its connections. It differs from a busy node only in that it answers
no other call either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ais_loader import errors
from ais_loader.transport.grpc.connection import Connection
from ais_loader.transport.grpc.put_calls import CALL_TIMEOUT_S
from ais_loader.transport.grpc.watchdog import Watchdog


def answered(here: Connection, method: Any, request: Any, *, has_others: bool) -> Any:
    """Return the answer of one unary call. Raises NodeUnavailable if others can be asked, and gRPC's errors."""
    if not has_others:
        return method(request, timeout=CALL_TIMEOUT_S)
    call = method.future(request)
    with watched(here, call, has_others=True):
        return call.result()


@contextlib.contextmanager
def watched(here: Connection, call: Any, *, has_others: bool) -> Iterator[Watchdog]:
    """Watch a call, and cancel it at the end, or when its node is silent for too long. Raises SilenceTimeout then. If
    others can be asked, raises NodeUnavailable, as soon as the node is found to be gone."""
    watchdog = Watchdog(CALL_TIMEOUT_S, here.is_alive if has_others else None)
    with watchdog.guard(call.cancel):
        try:
            yield watchdog
        except Exception as error:
            if not watchdog.fired:
                raise
            said = f"{here.endpoint}: it said nothing for {watchdog.silent_s:.0f} s"
            raise (errors.NodeUnavailable(said) if has_others else errors.SilenceTimeout(said)) from error
        finally:
            call.cancel()
