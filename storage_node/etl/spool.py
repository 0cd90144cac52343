"""Spool: files without names, on a drive, for what is too large to be held in memory.

A file of the spool is unlinked from its beginning (O_TMPFILE): it is gone with whoever has it open last, also after a
kill, and there is nothing to be cleared away. Folders, which workers run in, are named by the process that made them;
those of processes that are no more are removed by the next.

A drive is closed to other users. The folders of workers that are another user are therefore below the system's folder
for temporary files (TMPDIR).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Content
from storage_node.store.checksum import crc32c
from storage_node.store.permissions import FOLDER_MODE

_READ_BYTES = 1 << 20
_OUTSIDE = "ais-loader-workers-"


class Spool:
    """Thread-safe. `folder` is made when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._outside: Path | None = None
        """Of the folders of workers that are another user."""
        self._cleared = False

    def new_file(self) -> int:
        """A descriptor, open for reading and writing. Raises OSError."""
        self._begin()
        try:
            fd = os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:  # a file system that knows no such files
            fd, path = tempfile.mkstemp(dir=self.folder)
            os.unlink(path)
        os.fchmod(fd, 0o644)  # a worker that is another user opens by path what it is given; it has no name for others
        return fd

    def new_folder(self, owner: tuple[int, int] | None = None) -> Path:
        """An empty one, of another user where its uid and gid are given; whoever asks removes it. Raises OSError."""
        self._begin()
        if owner is None:
            return Path(tempfile.mkdtemp(prefix=f"worker-{os.getpid()}-", dir=self.folder))
        if self._outside is None:
            _clear(Path(tempfile.gettempdir()).glob(f"{_OUTSIDE}*-*"))
            self._outside = Path(tempfile.mkdtemp(prefix=f"{_OUTSIDE}{os.getpid()}-"))
            self._outside.chmod(0o711)
        made = Path(tempfile.mkdtemp(prefix="worker-", dir=self._outside))
        os.chown(made, *owner)
        return made

    def close(self) -> None:
        """Remove what is outside of the drive."""
        if self._outside is not None:
            shutil.rmtree(self._outside, ignore_errors=True)
            self._outside = None

    def _begin(self) -> None:
        if self._cleared:
            return
        self.folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)
        _clear(self.folder.glob("worker-*-*"))
        self._cleared = True


def _clear(folders: Iterable[Path]) -> None:
    """Remove those of processes that are no more."""
    for left in folders:
        pid = left.name.split("-")[-2]
        with contextlib.suppress(FileNotFoundError):  # another node has just removed it
            if left.lstat().st_uid == os.geteuid() and not Path("/proc", pid).exists():
                shutil.rmtree(left, ignore_errors=True)


def taken(fd: int, size_bytes: int) -> tuple[Content, bool]:
    """What a file holds from its beginning, summed; and whether the file went with it: what is small is copied, and its
    file can be used again. Waits for the drive. Raises OSError."""
    if size_bytes <= MAX_IN_MEMORY_BYTES:
        data = os.pread(
            fd, size_bytes, 0
        )  # all of it, or it ends early: it is a file, and smaller than a call may read
        if len(data) < size_bytes:
            raise OSError(f"{len(data):,} bytes of {size_bytes:,}")
        return Content.of(data), False
    checksum, at = 0, 0
    while at < size_bytes:
        part = os.pread(fd, min(_READ_BYTES, size_bytes - at), at)
        if not part:
            raise OSError(f"{at:,} bytes of {size_bytes:,}")
        checksum, at = crc32c(part, checksum), at + len(part)
    return Content(size_bytes, checksum, fd=fd), True
