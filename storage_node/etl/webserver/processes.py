"""Worker processes of a transform's server: forks that share its port. A process that dies is replaced."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from ais_loader.wire.backoff import Backoff

_AGAIN = Backoff(0.1, 10.0, jitter=0)
_LONG_LIFE_S = 30.0
_GRACE_S = 10.0


def serve(count: int, work: Callable[[], None]) -> None:
    """Run `work` in `count` processes until SIGTERM or SIGINT, which is forwarded to them. Must run in the main thread.

    The caller must not have started threads yet, because forked processes do not have them.
    """
    running: dict[int, float] = {}
    stopping = False

    def on_signal(number: int, frame: object) -> None:
        nonlocal stopping
        stopping = True
        for pid in running:
            os.kill(pid, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    failures = 0
    while not stopping:
        while len(running) < count and not stopping:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            pid = os.fork() or _child(work)
            running[pid] = time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        pid, _ = os.wait()
        lived_s = time.monotonic() - running.pop(pid)
        failures = 0 if lived_s > _LONG_LIFE_S else failures + 1
        if not stopping:
            time.sleep(_AGAIN.pause_s(failures))
    _end(running)


def _child(work: Callable[[], None]) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def _end(running: dict[int, float]) -> None:
    deadline = time.monotonic() + _GRACE_S
    while running and time.monotonic() < deadline:
        pid, _ = os.waitpid(-1, os.WNOHANG)
        if pid:
            running.pop(pid)
        else:
            time.sleep(0.02)
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
