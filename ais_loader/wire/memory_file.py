"""Nameless files in memory, also on interpreters that were built for a C library before glibc 2.27, as some of conda
and uv are: they lack `os.memfd_create` and its constants, although the C library that they run with has it.
"""

from __future__ import annotations

import fcntl
import os

_CLOEXEC, _ALLOW_SEALING = 1, 2  # as in linux/memfd.h
_ADD_SEALS, _SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW = 1033, 1, 2, 4  # as in linux/fcntl.h


def memory_file(name: str, *, sealed_bytes: int = 0) -> int:
    """Create a file in memory, with `sealed_bytes` of a size that no process can change. Returns its descriptor.
    `name`: for people who look into /proc. Raises OSError."""
    flags = _CLOEXEC | (_ALLOW_SEALING if sealed_bytes else 0)
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, flags)
    else:
        import ctypes  # which a worker of a transform has no time for

        fd = ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), flags)
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if sealed_bytes:
        try:
            os.ftruncate(fd, sealed_bytes)
            fcntl.fcntl(fd, _ADD_SEALS, _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL)
        except BaseException:
            os.close(fd)
            raise
    return fd
