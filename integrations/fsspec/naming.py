"""Paths of the file system, and unsupported operations on them."""

from __future__ import annotations

import io


def split(path: str) -> tuple[str, str]:
    """Return bucket and name. Either may be empty."""
    bucket, _, name = path.partition("/")
    return bucket, name


def no_writing(path: str, mode: str) -> Exception:
    return io.UnsupportedOperation(f"{path}: mode {mode!r}: objects are read, or written whole: 'rb', 'wb' or 'xb'")
