"""Crash-loop backoff: a process that ends soon after it began, time and again, waits longer and longer to try again.

Ray starts a node's process again at once, whatever it died of: a drive whose catalog crashes whoever opens it would
keep a processor busy for ever, and nobody would be told. What is counted stands in `node.json`, as no process is left
that could remember it.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ais_loader.wire.backoff import Backoff
from storage_node.ops.node_file import NodeFile

SHORT_LIFE_S = 30.0
FREE_TRIES = 3
"""So many short lives are what operators, and tests, do to nodes."""
BACKOFF = Backoff(2.0, 300.0, jitter=0)


def rest_s(short_lives: int) -> float:
    """How long to wait before the next try."""
    over = short_lives - FREE_TRIES
    return 0.0 if over < 0 else BACKOFF.pause_s(over)


def told(said: NodeFile, pid_is_new: bool) -> NodeFile:
    """What the file of the former life means to this one, when it looks at it first."""
    if not pid_is_new or not said.born_s:
        return said
    return replace(said, born_s=0.0, short_lives=said.short_lives + 1)


def problem(short_lives: int, until_s: float, log: str) -> str:
    """`until_s`: since 1970."""
    when = time.strftime("%H:%M:%S UTC", time.gmtime(until_s))
    return (
        f"its process has ended {short_lives} times within {SHORT_LIFE_S:g} s of its start; it is tried again at "
        f"{when}, or by `cluster up`; see {log}"
    )
