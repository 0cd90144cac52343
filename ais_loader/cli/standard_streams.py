"""Replacements for standard streams that the caller has closed, as by `<&-` or `>&-`. They report errors.

A free descriptor below 3 goes to the next opened file, which may belong to the store: what a library then writes to
standard error would be written into that file.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, NoReturn


class _Closed(io.RawIOBase):
    """A closed stream: input that could not be read, and output that could not be shown, must not go unnoticed."""

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
    """Open the descriptors 0, 1 and 2 that are closed. Call it before anything else is opened.

    Reading a closed standard input, and writing to a closed standard output, raises OSError (EBADF). Output to a closed
    standard error is lost.
    """
    for number in range(3):
        if not _is_open(number):
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is this one
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(_Closed("input")), encoding="utf-8")
    if sys.stdout is None:
        # Unbuffered, so that no rest fails a second time when the process ends.
        sys.stdout = io.TextIOWrapper(_Closed("output"), encoding="utf-8", write_through=True)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
