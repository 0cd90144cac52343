"""Idle watchdog: ends a call without progress, because gRPC's own deadline applies to the call as a whole.

A node that hangs, or whose machine is gone, keeps its connections. It differs from a busy node only in that it answers
no other call either. The only node is therefore waited for, and one of several only while it is alive.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from ais_loader import errors
from ais_loader.transport.grpc.connection import Connection

CALL_TIMEOUT_S = 60.0
"""Timeout of any call to a node."""
CHECK_S = 2.0
"""Interval of the checks whether a silent node is alive."""


class Watchdog:
    """Cancels a call after `timeout_s` without activity, until it is stopped. A context manager.

    Args:
        is_alive: called every `CHECK_S` of silence, in the watchdog's thread. If it returns False, the call is
            cancelled.
    """

    def __init__(self, timeout_s: float, is_alive: Callable[[], bool] | None = None) -> None:
        self.timeout_s = timeout_s
        self.fired = False
        self.silent_s = 0.0
        """Duration of the silence when it fired."""
        self._is_alive = is_alive
        self._seen_at = time.monotonic()
        self._stopped = threading.Event()

    def guard(self, cancel: Callable[[], object]) -> Watchdog:
        """Start watching. `cancel` is called from another thread."""
        threading.Thread(target=self._watch, args=(cancel,), name="ais-loader watchdog", daemon=True).start()
        return self

    def note_progress(self) -> None:
        self._seen_at = time.monotonic()

    def rest(self) -> None:
        """Suspend the limit until `seen` is called again."""
        self._seen_at = math.inf

    def _watch(self, cancel: Callable[[], object]) -> None:
        step_s = self.timeout_s if self._is_alive is None else min(CHECK_S, self.timeout_s)
        while (left_s := self._seen_at + self.timeout_s - time.monotonic()) > 0:
            if self._stopped.wait(min(left_s, step_s)):
                return
            if self._is_gone(step_s):
                break
        self.silent_s = time.monotonic() - self._seen_at
        self.fired = True
        cancel()

    def _is_gone(self, step_s: float) -> bool:
        def silent() -> bool:
            return time.monotonic() - self._seen_at >= step_s and not self._stopped.is_set()

        return self._is_alive is not None and silent() and not self._is_alive() and silent()

    def stop(self) -> None:
        self._stopped.set()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def answered(conn: Connection, method: Any, request: Any, *, has_others: bool) -> Any:
    """Return the answer of one unary call. Raises NodeUnavailable if others can be asked, and gRPC's errors."""
    if not has_others:
        return method(request, timeout=CALL_TIMEOUT_S)
    call = method.future(request)
    with watched(conn, call, has_others=True):
        return call.result()


@contextlib.contextmanager
def watched(conn: Connection, call: Any, *, has_others: bool) -> Iterator[Watchdog]:
    """Watch a call, and cancel it at the end, or when its node is silent for too long. Raises SilenceTimeout then. If
    others can be asked, raises NodeUnavailable, as soon as the node is found to be gone."""
    watchdog = Watchdog(CALL_TIMEOUT_S, conn.is_alive if has_others else None)
    with watchdog.guard(call.cancel):
        try:
            yield watchdog
        except Exception as error:
            if not watchdog.fired:
                raise
            message = f"{conn.endpoint}: it said nothing for {watchdog.silent_s:.0f} s"
            raise (errors.NodeUnavailable(message) if has_others else errors.SilenceTimeout(message)) from error
        finally:
            call.cancel()


def streamed(conn: Connection, call: Any, timeout_s: float) -> Iterator[Any]:
    """Yield the answers of a call. The consumer's time does not count as the node's silence. Raises SilenceTimeout, and
    the node's errors."""
    watchdog = Watchdog(timeout_s)
    with watchdog.guard(call.cancel):
        try:
            while True:
                watchdog.note_progress()
                try:
                    answer = next(call, None)
                except grpc.RpcError as error:
                    if watchdog.fired:
                        raise errors.SilenceTimeout(f"{conn.endpoint}: it was silent for {timeout_s:g} s") from error
                    raise conn.translate(error) from error
                if answer is None:
                    return
                watchdog.rest()
                yield answer
        finally:
            call.cancel()
