"""Spool: unnamed files on a drive, for inputs and outputs that are too large for memory.

A file of the spool is unlinked from the beginning (O_TMPFILE). It disappears when its last descriptor is closed, also
after a kill, so there is nothing to clean up. Working folders of workers are named after the process that created them;
folders of processes that have ended are removed by the next process.

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
    """Spool on one drive. Thread-safe. `folder` is created at the first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._outside: Path | None = None
        """Parent of the folders of workers that run as another user."""
        self._cleared = False

    def new_file(self) -> int:
        """Return a descriptor of a new file, open for reading and writing. Raises OSError."""
        self._begin()
        try:
            fd = os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:  # the file system does not support O_TMPFILE
            fd, path = tempfile.mkstemp(dir=self.folder)
            os.unlink(path)
        os.fchmod(fd, 0o644)  # a worker that is another user opens it by a /proc path; it has no name for others
        return fd

    def new_folder(self, owner: tuple[int, int] | None = None) -> Path:
        """Create an empty folder, owned by another user if its uid and gid are given. The caller removes it. Raises
        OSError."""
        self._begin()
        if owner is None:
            return Path(tempfile.mkdtemp(prefix=f"worker-{os.getpid()}-", dir=self.folder))
        if self._outside is None:
            _clear(Path(tempfile.gettempdir()).glob(f"{_OUTSIDE}*-*"))
            self._outside = Path(tempfile.mkdtemp(prefix=f"{_OUTSIDE}{os.getpid()}-"))
            self._outside.chmod(0o711)
        folder = Path(tempfile.mkdtemp(prefix="worker-", dir=self._outside))
        os.chown(folder, *owner)
        return folder

    def close(self) -> None:
        """Remove the folders outside the drive."""
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
    """Remove the folders of processes that have ended."""
    for left in folders:
        pid = left.name.split("-")[-2]
        with contextlib.suppress(FileNotFoundError):  # another node may have just removed it
            if left.lstat().st_uid == os.geteuid() and not Path("/proc", pid).exists():
                shutil.rmtree(left, ignore_errors=True)


def take_content(fd: int, size_bytes: int) -> tuple[Content, bool]:
    """Return the contents of a file with a checksum, and whether the result owns the file. A small file is copied to
    memory, and can be used again. Waits for the drive. Raises OSError."""
    if size_bytes <= MAX_IN_MEMORY_BYTES:
        data = os.pread(fd, size_bytes, 0)  # short only at the end of the file: it is smaller than one call may read
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
