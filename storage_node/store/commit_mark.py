"""Commit marks: notify readers in the writer's own process of new commits at once.

A reader beside a writer in another process checks for changes once a second. A reader in the same process compares a
mark before each look-up, which costs almost nothing, so that it never returns what this process has already replaced or
deleted.
"""

from __future__ import annotations

import os
from pathlib import Path

_marks: dict[tuple[int, int], CommitMark] = {}


class CommitMark:
    """Mark of the last commit in one folder, by any writer of this process."""

    def __init__(self) -> None:
        self.latest = object()
        """A new object after each commit. Comparing it with an earlier one shows whether there was a commit."""

    def committed(self) -> None:
        self.latest = object()


def commit_mark(folder: Path) -> CommitMark:
    """Return the mark of a folder, under any path. Raises OSError if there is none."""
    found = os.stat(folder)
    return _marks.setdefault((found.st_dev, found.st_ino), CommitMark())
