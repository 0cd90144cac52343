"""Own folder: a folder that was found rather than made, and may have been prepared by another user of this machine.

A folder below /tmp may belong to somebody else, and a link in it would choose which file is written, and which is
believed. Whoever finds a folder opens it here: it has to belong to this user, others can no longer write to it, and its
files are regular files of this user, opened without following links.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Self

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_FILE_MODE = 0o600


class OwnFolder:
    """An open folder of this user. Raises OSError; PermissionError if another user can choose what is in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(self.fd)
            _require_own(found, path)
            if found.st_mode & _OTHERS_WRITE:
                os.fchmod(self.fd, stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
        except BaseException:
            os.close(self.fd)
            raise

    def open(self, name: str, flags: int) -> int:
        """Return a descriptor of a file. Not for O_TRUNC, which would come before the check."""
        path = self.path / name
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, _FILE_MODE, dir_fd=self.fd)
        except OSError as error:
            raise type(error)(error.errno, error.strerror, str(path)) from None
        try:
            found = os.fstat(fd)
            _require_own(found, path)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise PermissionError(0, "it is a link, or no regular file", str(path))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def read(self, name: str) -> bytes:
        with open(self.open(name, os.O_RDONLY), "rb") as file:
            return file.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _require_own(found: os.stat_result, path: Path) -> None:
    """Require that a file belongs to this user. Raises PermissionError."""
    if found.st_uid != (user := os.geteuid()):
        raise PermissionError(0, f"it belongs to user {found.st_uid}, and this process is user {user}", str(path))
