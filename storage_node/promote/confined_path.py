"""Confined path resolution: neither symbolic links, "..", nor concurrent renames can lead out of a folder.

With openat2(2), Linux 5.6, the kernel refuses any path that leaves the folder, and follows links that stay inside.
Without it, no link is followed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from functools import cache

from ais_loader.errors import SourceRefused, SourceUnreadable

_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_BENEATH = 0x02, 0x08
_TRIES = 16
"""The kernel returns EAGAIN if something was renamed while it resolved a ".."."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Non-blocking: a file that is replaced by a pipe must not block the node."""


def root_of(path: bytes, roots: Sequence[str]) -> tuple[bytes, bytes]:
    """Return the configured root that contains a path, and the path relative to it; b"." for the root itself.

    Raises SourceRefused for a path that is not absolute, contains "..", or lies in no root.
    """
    text = os.fsdecode(path)
    if not roots:
        raise SourceRefused(
            f"{text}: this node promotes nothing, since it has no folders to promote from; "
            "`ais-loader serve --promote-root DIR`, or the setting promote_roots, names them"
        )
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if not path.startswith(b"/") or b".." in parts or b"\0" in path:
        raise SourceRefused(f"{text}: need an absolute path on the node's machine, without '..'")
    for root in sorted(map(os.fsencode, roots), key=len, reverse=True):
        above = [part for part in root.split(b"/") if part not in (b"", b".")]
        if parts[: len(above)] == above:
            return root, b"/".join(parts[len(above) :]) or b"."
    raise SourceRefused(f"{text}: is in none of the folders that this node promotes from: {', '.join(roots)}")


def open_beneath(folder_fd: int, path: bytes, flags: int) -> int:
    """Open `path` inside a folder. Raises SourceRefused if it leads out of the folder, SourceUnreadable."""
    try:
        return _openat2(folder_fd, path, flags) if has_openat2() else _walk(folder_fd, path, flags)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise SourceRefused("a symbolic link leads out of the folder that may be promoted") from error
        if error.errno == errno.ELOOP:
            raise SourceRefused("a symbolic link that cannot be followed") from error
        raise SourceUnreadable(f"cannot be opened: {error.strerror or error}") from error


@cache
def has_openat2() -> bool:
    try:
        os.close(_openat2(-100, b".", FOLDER))  # AT_FDCWD
    except OSError:
        return False
    return True


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _openat2(folder_fd: int, path: bytes, flags: int) -> int:
    how = struct.pack("QQQ", flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_TRIES):
        fd = int(_libc().syscall(_OPENAT2, folder_fd, ctypes.c_char_p(path), ctypes.c_char_p(how), len(how)))
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EAGAIN:
            break
    raise OSError(number, os.strerror(number))


def _walk(folder_fd: int, path: bytes, flags: int) -> int:
    """Open a path component by component, without following links."""
    current = os.dup(folder_fd)
    try:
        *folders, last = path.split(b"/")
        for name in folders:
            if name == b"..":
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            below = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = below
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=current)
    finally:
        os.close(current)
