"""The catalog of one drive: RocksDB, and the care that it needs around processes.

A writer opens it read-write and holds RocksDB's own lock. Readers in other processes open it as *secondary*: they take
no lock, keep their own log in a folder of their own, and see what the writer did when they catch up.

A RocksDB handle must not be closed, collected or used in a process that inherited it through fork: its background
threads are not there and it would wait for them for ever. Handles that a child inherits are therefore leaked at fork.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

from rocksdict import AccessType, Options, Rdict, ReadOptions, WriteBatch, WriteOptions

from storage_node.store.errors import DriveFailed, DriveFull, FormatError, StoreError, StoreLocked

__all__ = ["Catalog", "WriteBatch"]

_open_catalogs: weakref.WeakSet[Catalog] = weakref.WeakSet()


def leak(handle: object) -> None:
    """Never collect this object, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def _leak_inherited() -> None:
    for catalog in _open_catalogs:
        leak(catalog._db)


os.register_at_fork(after_in_child=_leak_inherited)


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(16 << 20)
    options.set_max_write_buffer_number(2)
    options.set_keep_log_file_num(2)
    options.set_max_total_wal_size(64 << 20)
    return options


class Catalog:
    """Ordered bytes to bytes. Thread-safe; belongs to the process that opened it."""

    def __init__(self, path: Path, *, writable: bool) -> None:
        self._path = path
        self._scratch: str | None = None
        self._open_pid = os.getpid()
        self.writable = writable
        if not writable and not (path / "CURRENT").exists():
            raise FormatError(f"{path}: there is no catalog; `ais-loader doctor --rebuild` makes it anew from the files")
        try:
            self._db = self._open()
        except Exception as error:
            raise self._open_error(error) from error
        self._synced = WriteOptions()
        self._synced.sync = True
        _open_catalogs.add(self)

    def _open(self) -> Rdict:
        if self.writable:
            return Rdict(str(self._path), _options(), access_type=AccessType.read_write())
        self._scratch = tempfile.mkdtemp(prefix="ais-loader-reader-")
        return Rdict(str(self._path), _options(), access_type=AccessType.secondary(self._scratch))

    def _open_error(self, error: Exception) -> StoreError:
        self._drop_scratch()
        text = str(error)
        if "lock" in text.lower():
            holder = "this process" if "current process" in text else _lock_holder(self._path / "LOCK")
            return StoreLocked(
                f"{self._path.parent} is open for writing by {holder}; one writer at a time, "
                'any number of readers: connect(..., mode="r")'
            )
        return catalog_error(error, self._path, "opening the catalog")

    # -- reading

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(key)
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of `keys`."""
        values: list[bytes | None] = self._db.get(list(keys))
        return values

    def scan(self, prefix: bytes, start_after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs whose key begins with `prefix`, in key order; a snapshot of this moment."""
        read = ReadOptions()
        upper = _successor(prefix)
        if upper is not None:
            read.set_iterate_upper_bound(upper)
        start = prefix if start_after is None or start_after < prefix else start_after + b"\0"
        for key, value in self._db.items(from_key=start, read_opt=read):
            if not key.startswith(prefix):
                return
            yield key, value

    def catch_up(self) -> None:
        """See what the writer has committed; for readers only, and cheap when there is nothing new."""
        if not self.writable:
            try:
                self._db.try_catch_up_with_primary()
            except Exception:  # noqa: BLE001 - the writer dropped a log that was not read yet: begin again from its tables
                old, scratch = self._db, self._scratch
                self._db = self._open()
                old.close()
                if scratch is not None:
                    shutil.rmtree(scratch, ignore_errors=True)

    def sequence_number(self) -> int:
        """Grows with every commit that this handle has seen."""
        return int(self._db.latest_sequence_number())

    def estimated_keys(self) -> int:
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    # -- writing

    def write(self, batch: WriteBatch, *, sync: bool) -> None:
        """Apply atomically; with `sync` it survives a power cut on return. Raises DriveFull or DriveFailed."""
        try:
            if sync:
                self._db.write(batch, self._synced)
            else:
                self._db.write(batch)
        except Exception as error:
            raise catalog_error(error, self._path, "committing to the catalog") from error

    def flush(self) -> None:
        self._db.flush()

    def close(self) -> None:
        if os.getpid() != self._open_pid:
            return  # inherited through fork, and leaked there
        self._db.close()
        self._drop_scratch()

    def _drop_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


def catalog_error(error: Exception, path: Path, doing: str) -> StoreError:
    """rocksdict raises plain Exception with RocksDB's status as text."""
    text = str(error)
    if "No space left" in text or "NoSpace" in text:
        return DriveFull(f"{path.parent}: no space left while {doing}; free space on the drive, then open the store again")
    if text.startswith("Corruption"):
        return FormatError(
            f"{path}: damaged catalog ({text}); `ais-loader doctor --rebuild` makes it anew from the files"
        )
    return DriveFailed(f"{path.parent}: {doing}: {text}")


def _successor(prefix: bytes) -> bytes | None:
    """The smallest key above every key with this prefix; None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def _lock_holder(lock: Path) -> str:
    # Only asked when another process holds it: closing a descriptor of a file drops this process's own locks on it.
    try:
        with lock.open("rb+") as file:
            query = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, query)[: struct.calcsize("hhqqi")])
    except OSError:
        return "another process"
    return f"process {pid}" if kind != fcntl.F_UNLCK and pid else "another process"
