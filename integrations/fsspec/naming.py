"""Paths of the file system, and the errors that its callers expect."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from ais_loader import errors


def split(path: str) -> tuple[str, str]:
    """Bucket and name; either may be empty."""
    bucket, _, name = path.partition("/")
    return bucket, name


@contextmanager
def missing(path: str) -> Iterator[None]:
    """In here, what is not there is a FileNotFoundError, and what was to be made and is there a FileExistsError."""
    try:
        yield
    except errors.NotFound as error:
        raise FileNotFoundError(f"{path}: {error}") from error
    except errors.VersionConflict as error:
        raise FileExistsError(f"{path}: {error}") from error


def no_writing(path: str, mode: str) -> Exception:
    return io.UnsupportedOperation(f"{path}: mode {mode!r}: objects are read, or written whole: 'rb', 'wb' or 'xb'")
