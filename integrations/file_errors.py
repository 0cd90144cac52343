"""File errors: replaces our errors by those that callers of files expect for the same cause."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ais_loader import errors


@contextmanager
def as_files(path: str) -> Iterator[None]:
    """In this block, raise file errors in place of our own, where there is an equivalent."""
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
