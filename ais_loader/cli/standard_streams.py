"""Stand-ins for standard streams that the caller has closed, as by `<&-` or `>&-`, which say so.

A descriptor below 3 that is free goes to the next file that is opened, which may be one of the store's own: what a
library then writes to standard error would be written into that file.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, NoReturn


class _Closed(io.RawIOBase):
    """What was to be read has not been read, and what was to be shown has not been shown: neither passes silently."""

    def __init__(self, name: str) -> None:
        self._name = name

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> NoReturn:
        raise OSError(errno.EBADF, f"standard {self._name} is closed")

    def write(self, data: Any) -> NoReturn:
        raise OSError(errno.EBADF, f"standard {self._name} is closed")


def hold_standard_streams() -> None:
    """Call it before anything is opened: descriptors 0, 1 and 2 are open afterwards.

    Reading a standard input that was closed, and writing to such a standard output, raises OSError (EBADF). What goes
    to such a standard error is lost.
    """
    for number in range(3):
        if not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # gets the lowest one that is free, which is this
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed("input")), encoding="utf-8")
    if sys.stdout is None:
        # Nothing stays in a buffer, to fail a second time when the process ends.
        sys.stdout = io.TextIOWrapper(_Closed("output"), encoding="utf-8", write_through=True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
