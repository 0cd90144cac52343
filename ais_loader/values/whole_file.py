"""Local file that appears complete or not at all: written under another name beside it, and renamed at the end."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from typing import IO

from ais_loader.wire.closing import closing_fd

_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextlib.contextmanager
def whole_file(path: str, *, replace: bool, durable: bool = False) -> Iterator[IO[bytes]]:
    """Create a file that gets its name when the block succeeds; otherwise nothing of it remains.

    With `durable`, it is synced before it gets its name, and the folder after: a power cut leaves the file that was
    there before, or the new one, complete.

    Raises FileExistsError at the end if the file exists and is not to be replaced; OSError.
    """
    part = os.path.join(os.path.dirname(path), f".ais-loader-{secrets.token_hex(6)}.part")
    try:
        with _created(part, path) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        _publish(part, path, replace=replace)
        if durable:
            folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with closing_fd(folder):
                os.fsync(folder)
    except OSError as error:
        if error.filename is None and error.errno in _WRITING:
            error.filename = path  # a failed write does not name its file
        raise
    finally:
        with contextlib.suppress(OSError):  # a read-only file system fails even if nothing is there
            os.unlink(part)


def _created(part: str, path: str) -> IO[bytes]:
    try:
        # Not tempfile, whose files only their owner can read: these get the permissions of the umask.
        return open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), "wb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error  # the caller did not ask for a file named `part`


def _publish(part: str, path: str, *, replace: bool) -> None:
    if not replace:
        try:
            os.link(part, path)  # unlike rename, never replaces a file that appeared meanwhile
            return
        except FileExistsError:
            raise
        except OSError:
            if os.path.lexists(path):
                raise FileExistsError(path) from None
            # A file system without hard links.
    os.replace(part, path)
