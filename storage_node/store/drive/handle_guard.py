"""Handle guard of a drive: refuses use after close, after a fork, and writes where it is open for reading."""

from __future__ import annotations

import os
from pathlib import Path

from ais_loader.errors import Closed, DriveFailed, StoreReadOnly


class DriveUse:
    """Refers to nothing, so that a drive goes with the last one who uses it."""

    def __init__(self, root: Path, *, writable: bool) -> None:
        self.root = root
        self.writable = writable
        self.pid = os.getpid()
        self.closed = False
        self.given_up: str | None = None

    def require_writable(self) -> None:
        if not self.writable:
            raise StoreReadOnly(f'{self.root} is open for reading only; connect with mode="a" to write')
        self.require_open()

    def require_open(self) -> None:
        if self.given_up is not None:
            raise DriveFailed(self.given_up)
        if self.closed:
            raise Closed(f"{self.root}: the store has been closed")
        if self.pid != os.getpid():
            raise Closed(f"{self.root}: the store was opened before a fork; open it again in the child")
