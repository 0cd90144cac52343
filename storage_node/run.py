"""A node as a process of its own: serve until told to stop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence

from storage_node.config import ServerConfig
from storage_node.server import NodeServer


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
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    node = NodeServer(drives, config).start()
    try:
        announce(node)
        stopping.wait()
    finally:
        node.stop(grace_s)
