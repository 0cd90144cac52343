"""Inputs and outputs of transforms, and the interface of a stage, which turns one into the other.

An input is complete and verified before a transform sees it. An output is complete, counted and checksummed before any
other code sees it. Both are either in memory or in a file of their own, never both, so memory is bounded.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ais_loader.errors import DriveFull, LoaderError
from storage_node.store.checksum import crc32c
from storage_node.store.permissions import FOLDER_MODE

MAX_IN_MEMORY_BYTES = 4 << 20
"""Larger inputs and outputs are files."""
_READ_BYTES = 1 << 20


def escaped(text: str) -> str:
    """Replace invalid characters and terminal control characters with escapes, for messages. Line breaks and tabs
    stay."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


@dataclass(frozen=True, slots=True)
class Origin:
    """The stored bytes that a transform is applied to. With the transforms and their arguments, they are the key of the
    result."""

    bucket: str
    name: str
    version: str
    """Version of the object."""
    member: str = ""
    start: int = 0
    length: int = -1

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}" + (f"/{self.member}" if self.member else "")


@dataclass(slots=True)
class Content:
    """Bytes in memory, or of a file: `fd` from `offset` on. The last holder closes it, or drops it: a read whose caller
    was cancelled meanwhile has no holder."""

    size_bytes: int
    checksum: int
    """CRC-32C of all bytes."""
    data: memoryview | None = None
    fd: int = -1
    """Descriptor that is open for reading; -1 for bytes in memory."""
    offset: int = 0
    path: str = ""
    """Path of the file if it contains exactly these bytes: it may be passed instead of the bytes."""

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> Content:
        view = memoryview(data).toreadonly()
        return cls(len(view), crc32c(view), view)

    def read(self, offset: int, length: int) -> memoryview:
        """Read `length` bytes, fewer at the end. May wait for a drive. Raises OSError."""
        if self.data is not None:
            return self.data[offset : offset + length]
        wanted = max(0, min(length, self.size_bytes - offset))
        parts = []
        while wanted:
            part = os.pread(self.fd, wanted, self.offset + offset)
            if not part:
                raise OSError(f"{self.path or 'a spooled file'}: ends {wanted:,} bytes early")
            parts.append(part)
            offset, wanted = offset + len(part), wanted - len(part)
        return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))

    def chunks(self, chunk_bytes: int = _READ_BYTES) -> Iterator[memoryview]:
        """Yield all bytes in order. May wait for a drive. Raises OSError."""
        for offset in range(0, self.size_bytes, chunk_bytes):
            yield self.read(offset, chunk_bytes)

    def append(self, data: memoryview) -> None:
        """Append to the file. The caller updates the checksum. May wait for a drive. Raises OSError."""
        while data:
            data = data[os.write(self.fd, data) :]

    def close(self) -> None:
        """Close the file. May be called again."""
        self.data, fd, self.fd = None, self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    __del__ = close


@dataclass(frozen=True, slots=True)
class ResultDestination:
    """The object that a result becomes, and the HTTP endpoint of the node that will own it."""

    url: str
    bucket: str
    name: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    """See `transform_http.PutClaims`."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result as its owner has stored it, with size and checksum computed by the owner."""

    version: str
    size_bytes: int
    checksum: int
    """CRC-32C."""


class TransformStage(Protocol):
    """One version of a transform on this node: its workers, or its connections. Belongs to the node's event loop."""

    async def run(self, origin: Origin, content: Content, args: str) -> Content:
        """Pass one input through. The input remains the caller's; the output becomes the caller's.

        If it is cancelled, it releases the input before it returns.

        Raises TransformFailed, TransformTimeout, TransformGone.
        """

    async def close(self) -> None:
        """Wait for the runs in progress, then end the workers. Never raises."""


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
        except (OSError, AttributeError):  # the file system does not support O_TMPFILE, or the interpreter
            fd, path = tempfile.mkstemp(dir=self.folder)
            os.unlink(path)
        os.fchmod(fd, 0o644)  # a worker that is another user opens it by a /proc path; it has no name for others
        return fd

    @contextlib.contextmanager
    def filling(self, what: str, size_bytes: int) -> Iterator[Content]:
        """Yield a new file, to which this many bytes are appended. Raises DriveFull if they cannot be."""
        try:
            yield Content(size_bytes, 0, fd=self.new_file())
        except LoaderError:  # some are OSErrors as well
            raise
        except OSError as error:
            raise DriveFull(f"{what} of {size_bytes:,} bytes cannot be spooled: {error.strerror or error}") from error

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


def take_content(fd: int, size_bytes: int) -> Content:
    """Return the contents of a file with a checksum. They share a large file with `fd`, and are a copy of a small one,
    which can be used again. Waits for the drive. Raises OSError."""
    content = Content(size_bytes, 0, fd=os.dup(fd))
    if size_bytes <= MAX_IN_MEMORY_BYTES:
        return Content.of(content.read(0, size_bytes))
    for part in content.chunks():
        content.checksum = crc32c(part, content.checksum)
    return content
