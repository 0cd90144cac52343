"""Main function of a node's process: serve until a signal arrives."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence

from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h


def keep_freed_memory() -> None:
    """Make malloc reuse the memory of frames instead of returning it to the kernel, which would cost page faults.

    For a process that is a node and nothing else. No effect without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 128 << 20)
        mallopt(_M_ARENA_MAX, 2)


def run_node(
    drives: Sequence[str | os.PathLike[str]],
    config: ServerConfig,
    announce: Callable[[NodeServer], None],
    *,
    grace_s: float = 5.0,
) -> None:
    """Start a node, call `announce` when it accepts connections, and serve until SIGTERM or SIGINT.

    Must run on the main thread. Raises what NodeServer.start raises.
    """
    os.umask(0o077)  # logs, and the files of catalogs
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    keep_freed_memory()
    node = NodeServer(drives, config, makes_secret=True).start()
    try:
        announce(node)
        _wait_for_signals(stopping)
    finally:
        node.stop(grace_s)


def _wait_for_signals(until: threading.Event) -> None:
    """Wait until a signal handler has set the event.

    The kernel may deliver a signal to any thread, especially in a process that continues after a SIGSTOP. Python runs
    the handler on this thread, but waiting on the event would not wake this thread for it.
    """
    woken, waking = socket.socketpair()
    with woken, waking:
        waking.setblocking(False)
        before = signal.set_wakeup_fd(waking.fileno())
        try:
            while not until.is_set():
                woken.recv(64)
        finally:
            signal.set_wakeup_fd(before)
