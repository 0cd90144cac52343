"""Nameless files in memory, also on interpreters that were built for a C library before glibc 2.27, as some of conda
and uv are: their `os` has no `memfd_create`, although the C library that they run with has it.
"""

from __future__ import annotations

import ctypes
import os

_CLOEXEC = 1  # as in linux/memfd.h


def memory_file(name: str) -> int:
    """Create a file in memory. Returns its descriptor. `name`: for people who look into /proc. Raises OSError."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, _CLOEXEC)
    fd: int = ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), _CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd
