"""A drive that can be filled to the last byte, and emptied again.

A file system of its own in memory where mounting is allowed (root), so that every ENOSPC is the kernel's; elsewhere the
same refusals, injected where the store meets the kernel: the free space it asks for, and its catalog's writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import DriveFull
from storage_node.store import store_record as records
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.files import staged_file

SIZE_BYTES = 96 << 20  # RocksDB reserves 18 MiB for each log that it begins


class SmallDrive:
    """`root` is the folder for the store."""

    kind = "mounted"

    def __init__(self, root: Path, ballast: Path) -> None:
        self.root = root
        self._ballast = ballast

    def leave(self, free_bytes: int) -> None:
        """Take all space but this much."""
        with self._ballast.open("ab") as file:
            while (spare := self._free() - free_bytes) > 0:
                try:
                    file.write(bytes(min(spare, 1 << 20)))
                    file.flush()
                except OSError as error:
                    assert error.errno == errno.ENOSPC
                    with contextlib.suppress(OSError):
                        file.close()
                    return

    def _free(self) -> int:
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def release(self) -> None:
        self._ballast.unlink()


class InjectedDrive(SmallDrive):
    """Counts the bytes of object files instead of asking the file system; within 64 KiB of the end nothing goes."""

    kind = "injected"

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, root)
        self._taken = 0
        write = Catalog.write

        def require_space(fd: int, need_bytes: int, used_bytes: int = 0) -> None:
            if self._free() < need_bytes + SIZE_BYTES // 8:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def write_if_room(catalog: Catalog, batch: WriteBatch, *, sync: bool, is_commit: bool = True) -> None:
            if self._free() < 64 << 10:
                raise DriveFull(f"{self.root}: no space left while committing to the catalog")
            write(catalog, batch, sync=sync, is_commit=is_commit)

        def write_record_if_room(folder: Path, record: records.StoreRecord) -> None:
            if self._free() < 64 << 10:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write_record(folder, record)

        write_record = records.write
        monkeypatch.setattr(records, "write", write_record_if_room)
        monkeypatch.setattr(staged_file, "require_space", require_space)
        monkeypatch.setattr(Catalog, "write", write_if_room)

    def leave(self, free_bytes: int) -> None:
        self._taken += self._free() - free_bytes

    def _free(self) -> int:
        used = sum(
            path.stat().st_size for path in self.root.rglob("*") if path.is_file() and "catalog" not in path.parts
        )
        return SIZE_BYTES - self._taken - used

    def release(self) -> None:
        self._taken = 0


@contextlib.contextmanager
def small_drive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDrive]:
    libc = ctypes.CDLL(None, use_errno=True)
    mount_point = folder / "small"
    mount_point.mkdir()
    options = f"size={SIZE_BYTES}".encode()
    if libc.mount(b"tmpfs", os.fsencode(mount_point), b"tmpfs", 0, options) != 0:
        yield InjectedDrive(mount_point / "drive", monkeypatch)
        return
    try:
        yield SmallDrive(mount_point / "drive", mount_point / "ballast")
    finally:
        detach = 2  # MNT_DETACH: a failing test may still hold files
        assert libc.umount2(os.fsencode(mount_point), detach) == 0
