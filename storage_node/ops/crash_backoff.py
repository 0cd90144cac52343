"""Crash-loop backoff: a process that repeatedly ends soon after its start waits longer before each attempt.

Ray restarts a node's process at once, whatever ended it. A drive whose catalog crashes every process that opens it
would keep a CPU busy forever, without notice to anyone. The count is kept in `node.json`, because no process survives
that could remember it.
"""

from __future__ import annotations

import time
from dataclasses import replace

from ais_loader.wire.backoff import Backoff
from storage_node.ops.node_file import NodeFile

SHORT_LIFE_S = 30.0
FREE_TRIES = 3
"""Number of short lives that operators and tests may cause without a penalty."""
BACKOFF = Backoff(2.0, 300.0, jitter=0)


def rest_s(short_lives: int) -> float:
    """Return the delay before the next attempt."""
    over = short_lives - FREE_TRIES
    return 0.0 if over < 0 else BACKOFF.pause_s(over)


def count_short_life(file: NodeFile, pid_is_new: bool) -> NodeFile:
    """Interpret the file of the previous process, when a new one first reads it."""
    if not pid_is_new or not file.born_s:
        return file
    return replace(file, born_s=0.0, short_lives=file.short_lives + 1)


def problem(short_lives: int, until_s: float, log: str) -> str:
    """Describe the delay. `until_s`: in seconds since 1970."""
    when = time.strftime("%H:%M:%S UTC", time.gmtime(until_s))
    return (
        f"its process has ended {short_lives} times within {SHORT_LIFE_S:g} s of its start; it is tried again at "
        f"{when}, or by `cluster up`; see {log}"
    )
