"""Commit marks: they tell a reader in the writer's own process that there is something new, at once.

A reader beside a writer in another process looks for changes once a second. One in the same process compares a mark
before each look-up, which costs nothing, so it never shows what this process has replaced or deleted already.
"""

from __future__ import annotations

import os
from pathlib import Path

_marks: dict[tuple[int, int], CommitMark] = {}


class CommitMark:
    """What was committed last in one folder, by any writer of this process."""

    def __init__(self) -> None:
        self.latest = object()
        """Another object after each commit; who keeps it can tell whether there has been one since."""

    def committed(self) -> None:
        self.latest = object()


def commit_mark(folder: Path) -> CommitMark:
    """The mark of a folder, under whatever path. Raises OSError where there is none."""
    found = os.stat(folder)
    return _marks.setdefault((found.st_dev, found.st_ino), CommitMark())
