"""Points in the write protocol where a test can make this process die as by `kill -9`.

`AIS_LOADER_FAILPOINT=name` or `name:count` (the count-th time that it is reached). Free when the variable is not set.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "put.staged",
    "put.intended",
    "put.published",
    "put.committed",
    "delete.committed",
    "reap.unlinked",
    "record.staged",
    "record.one_drive",
)

_armed, _, _count = os.environ.get("AIS_LOADER_FAILPOINT", "").partition(":")
_left = int(_count or 1)
if _armed and _armed not in POINTS:
    raise ValueError(f"AIS_LOADER_FAILPOINT={_armed!r} is not one of {', '.join(POINTS)}")


def failpoint(name: str) -> None:
    """Die here if this point is armed."""
    global _left
    if _armed == name:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
