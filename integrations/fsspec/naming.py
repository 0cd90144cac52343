"""Paths of the file system, and the errors that its callers expect."""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from contextlib import contextmanager

from ais_loader import errors


def split(path: str) -> tuple[str, str]:
    """Bucket and name; either may be empty."""
    bucket, _, name = path.partition("/")
    return bucket, name


@contextmanager
def as_files(path: str) -> Iterator[None]:
    """In here, errors that files have too are those of files."""
    try:
        yield
    except (errors.NotFound, errors.StoreNotFound) as error:
        raise FileNotFoundError(f"{path}: {error}") from error
    except (errors.VersionConflict, errors.BucketExists) as error:
        raise FileExistsError(f"{path}: {error}") from error
    except (errors.StoreLocked, errors.StoreReadOnly, errors.SnapshotReadOnly) as error:
        raise PermissionError(f"{path} cannot be written: {error}") from error
    except errors.BucketNotEmpty as error:
        raise OSError(errno.ENOTEMPTY, str(error), path) from error


def no_writing(path: str, mode: str) -> Exception:
    return io.UnsupportedOperation(f"{path}: mode {mode!r}: objects are read, or written whole: 'rb', 'wb' or 'xb'")
