"""Failpoints: places in the write protocol where a test can crash this process as by `kill -9`.

`AIS_LOADER_FAILPOINT=name` or `name:count` (at the count-th time that it is reached). They cost nothing if the variable
is not set.
"""

from __future__ import annotations

import os
import signal

POINTS = (
    "put.staged",
    "put.intended",
    "put.renamed",  # once for each file of a group
    "put.published",
    "put.committed",
    "promote.staged",  # once for every group
    "promote.lasting",
    "delete.committed",
    "deny.committed",
    "deny.purged",
    "upload.noted",
    "upload.sent",
    "upload.done",
    "upload.settled",
    "reap.unlinked",
    "create.identity",  # once for every drive
    "record.staged",
    "record.one_drive",
    "bucket.recorded",
    "quota.scanned",
    "quota.counted",
    "retain.marked",
    "snapshot.cut",
    "snapshot.held",
    "snapshot.cut_by_all",
    "snapshot.settled",
    "snapshot.recorded",
    "snapshot.counted",
    "snapshot.released",
    "snapshot.trimmed",
    "drive.identity",
    "drive.recorded",
    "drive.settled",
    "move.staged",
    "move.committed",
    "move.dropped",
    "rebuild.built",
    "rebuild.aside",
    "code.fragments",
    "code.manifest",
    "code.swapped",
    "code.done",
)

_armed, _left = "", 0


def arm(setting: str) -> None:
    """Crash at "name", or the count-th time at "name:count"; "" disarms. Raises ValueError for an unknown name."""
    global _armed, _left
    name, _, count = setting.partition(":")
    if name and name not in POINTS:
        raise ValueError(f"fail point {name!r} is not one of {', '.join(POINTS)}")
    _armed, _left = name, int(count or 1)


def failpoint(name: str) -> None:
    """Crash here if this point is armed."""
    global _left
    if _armed == name:
        _left -= 1
        if _left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("AIS_LOADER_FAILPOINT", ""))
