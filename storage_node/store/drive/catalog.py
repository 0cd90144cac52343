"""Catalog of one drive: RocksDB, and the care that it needs around processes.

A writer opens it read-write and holds RocksDB's own lock. Readers in other processes open it as *secondary*: they take
no lock, write nothing into the drive, and see what the writer did when they catch up.

A RocksDB handle must not be closed, collected or used in a process that inherited it through fork: its background
threads are not there, and it would wait for them for ever. Handles and iterators that a child inherits are therefore
leaked at fork, and a catalog that finds itself in another process refuses with Closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from ais_loader.errors import Closed, DriveFailed, DriveFull, LoaderError, StoreFormatError, StoreLocked
from ais_loader.extras import needs
from storage_node.store.commit_mark import commit_mark
from storage_node.store.drive.locking import lock_holder
from storage_node.store.files.error_counters import Faults
from storage_node.store.files.object_files import drive_error

with needs("rocksdict", "a store on this machine"):
    from rocksdict import AccessType, DbClosedError, Options, Rdict, RdictIter, ReadOptions, WriteBatch, WriteOptions

__all__ = ["Catalog", "WriteBatch", "held_by_this_process"]

_READER_OPENS = 10
BINDING_FILE = "rocksdict-config.json"
REBUILD_HINT = "`ais-loader doctor --rebuild` makes it anew from the files"

_open_catalogs: weakref.WeakSet[Catalog] = weakref.WeakSet()
_live_iterators: dict[int, RdictIter] = {}


class _Refused:
    """Takes the place of a handle that must not be reached any more: closed, or inherited through fork."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise Closed(self._why)


def leak(handle: object) -> None:
    """Never collect this object, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


def _leak_inherited() -> None:
    for catalog in list(_open_catalogs):
        leak(catalog._db)
        catalog._db = _Refused("this store was opened before a fork, by the parent process; open it again in the child")
        catalog._catch_up_lock = threading.Lock()
    for iterator in list(_live_iterators.values()):
        leak(iterator)


os.register_at_fork(after_in_child=_leak_inherited)


def held_by_this_process(path: Path) -> bool:
    """Whether this very process has the catalog open for writing, under whatever path."""
    return any(
        catalog.writable and catalog.is_open and catalog.path.exists() and path.exists() and catalog.path.samefile(path)
        for catalog in list(_open_catalogs)
    )


def _options(log_folder: str | None = None) -> Options:
    options = Options(raw_mode=True)
    if log_folder is not None:
        options.set_db_log_dir(log_folder)
    options.create_if_missing(True)
    options.set_write_buffer_size(16 << 20)
    options.set_max_write_buffer_number(2)
    options.set_keep_log_file_num(2)
    options.set_max_total_wal_size(64 << 20)
    return options


class Catalog:
    """Ordered bytes to bytes. Thread-safe; belongs to the process that opened it."""

    def __init__(self, path: Path, *, writable: bool, faults: Faults | None = None) -> None:
        self.path = path
        self.writable = writable
        self._faults = faults or Faults()
        self._given_up: str | None = None
        self._catch_up_lock = threading.Lock()
        self._folder_inode = 0  # guarded by _catch_up_lock
        if not writable and not (path / "CURRENT").exists():
            raise StoreFormatError(f"{path}: there is no catalog; {REBUILD_HINT}")
        try:
            self._db: Rdict = self._open()
        except Exception as error:
            raise self._open_error(error) from error
        self.mark = commit_mark(path)
        self._synced = WriteOptions()
        self._synced.sync = True
        _open_catalogs.add(self)

    def _open(self) -> Rdict:
        if self.writable:
            _divert_binding_file(self.path)
            return Rdict(str(self.path), _options(), access_type=AccessType.read_write())
        self._folder_inode = os.stat(self.path).st_ino
        # A reader's folder holds nothing but RocksDB's own diary. Unlinked at once, it cannot outlive a killed reader.
        scratch = tempfile.mkdtemp(prefix="ais-loader-reader-")
        try:
            return self._open_secondary(scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _open_secondary(self, scratch: str) -> Rdict:
        attempt = 1
        while True:
            try:
                # A secondary that misses a table goes back to a state without it, and says nothing. Opening for
                # reading only, which cannot follow a writer, misses nothing.
                strict = Rdict(str(self.path), _options(scratch), access_type=AccessType.read_only(False))
                secondary = Rdict(str(self.path), _options(scratch), access_type=AccessType.secondary(scratch))
                strict.close()
                return secondary
            except Exception:
                # Beside a writer a table may go between its being listed and its being opened.
                if attempt == _READER_OPENS:
                    raise
                threading.Event().wait(0.005 * attempt)
                attempt += 1

    def _open_error(self, error: Exception) -> LoaderError:
        text = str(error)
        if "lock hold by current process" in text or "While lock file" in text:
            holder = "this process" if held_by_this_process(self.path) else None
            if holder is None and "lock hold by current process" in text:
                holder = "this process, or the one that it was forked from"
            return StoreLocked(
                f"{self.path.parent} is open for writing by {holder or lock_holder(self.path / 'LOCK')}; one writer at "
                'a time, any number of readers: connect(..., mode="r")'
            )
        return self._error(error, "opening the catalog")

    def _error(self, error: Exception, doing: str) -> LoaderError:
        if self._given_up is not None and isinstance(error, DbClosedError | Closed):
            return DriveFailed(self._given_up)
        found = catalog_error(error, self.path, doing)
        if found is not error and isinstance(found, DriveFailed | StoreFormatError):
            self._faults.note_catalog(f"{doing}: {error}")
        return found

    @property
    def is_open(self) -> bool:
        return not isinstance(self._db, _Refused)

    # -- reading

    def get(self, key: bytes) -> bytes | None:
        """Raises StoreFormatError for a damaged catalog, DriveFailed, Closed; so do all reads."""
        try:
            value: bytes | None = self._db.get(key)
            return value
        except Exception as error:
            raise self._error(error, "reading the catalog") from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of `keys`."""
        try:
            values: list[bytes | None] = self._db.get(list(keys))
            return values
        except Exception as error:
            raise self._error(error, "reading the catalog") from error

    def scan(self, prefix: bytes, start_after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Pairs whose key begins with `prefix`, in key order; a snapshot of the moment of the first one."""
        read = ReadOptions()
        upper = _successor(prefix)
        if upper is not None:
            read.set_iterate_upper_bound(upper)
        at: RdictIter | None = None
        try:
            at = self._db.iter(read)
            _live_iterators[id(at)] = at
            at.seek(prefix if start_after is None or start_after < prefix else start_after + b"\0")
            while at.valid():
                yield at.key(), at.value()
                at.next()
            at.status()  # an iterator that met damage is just as invalid as one that has reached the end
        except Exception as error:
            raise self._error(error, "listing the catalog") from error
        finally:
            if at is not None:
                _live_iterators.pop(id(at), None)

    def catch_up(self) -> bool:
        """See what the writer has committed; for readers only, and cheap when there is nothing new.

        Returns whether anything read before may have changed. Raises DriveFailed, StoreFormatError, Closed.
        """
        if self.writable:
            return False
        with self._catch_up_lock:
            try:
                if os.stat(self.path).st_ino == self._folder_inode:
                    before, logs = self._db.latest_sequence_number(), self._first_log()
                    self._db.try_catch_up_with_primary()
                    # When the writer has flushed, a secondary goes on answering from what it had read of the log: an
                    # old value hides the flushed one. A new handle has read nothing yet.
                    if self._first_log() == logs:
                        return bool(self._db.latest_sequence_number() != before)
            except (LoaderError, DbClosedError) as error:
                raise self._error(error, "following the writer") from error
            except Exception:  # noqa: BLE001 - the writer dropped a log that was not read yet: begin again
                pass
            try:
                # The old handle ends with the last thread that is still reading from it.
                self._db = self._open()
            except Exception as error:
                raise self._error(error, "following the writer") from error
            return True

    def _first_log(self) -> object:
        """The oldest log that is still needed; a flush makes it a later one."""
        return self._db.property_int_value("rocksdb.min-log-number-to-keep")

    def estimated_keys(self) -> int:
        try:
            return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)
        except Exception as error:
            raise self._error(error, "reading the catalog") from error

    # -- writing

    def write(self, batch: WriteBatch, *, sync: bool) -> None:
        """Apply atomically; with `sync` it survives a power cut on return. Raises DriveFull, DriveFailed, Closed.

        After an error the batch is not visible, but it may have reached the log: a process that dies before the next
        successful write can find it applied when the catalog is opened again.
        """
        try:
            if sync:
                self._db.write(batch, self._synced)
            else:
                self._db.write(batch)
        except Exception as error:
            raise self._error(error, "committing to the catalog") from error
        self.mark.committed()

    def flush(self) -> None:
        """Bring everything into checksummed tables. Raises what `write` raises."""
        try:
            self._db.flush()
        except Exception as error:
            raise self._error(error, "flushing the catalog") from error

    def give_up(self, why: str) -> None:
        """Close; whoever comes later, or is reading meanwhile, meets DriveFailed with this reason."""
        self._given_up = why
        self.close()

    def close(self) -> None:
        """Flush and let go of the lock; harmless in a process that inherited the catalog, and when called twice.

        What cannot be flushed (the drive is full, or gone) is in the log, and read from there at the next opening.
        """
        if self.is_open:
            db, self._db = self._db, _Refused("the store has been closed")
            with contextlib.suppress(Exception):  # then the handle lets go when it is dropped, here
                db.close()


def _divert_binding_file(path: Path) -> None:
    """Let rocksdict write its settings nowhere: it does so at every opening, a reader's on a read-only mount too.

    Nothing is lost: the only setting, raw mode, is given at every opening.
    """
    link = path / BINDING_FILE
    if not link.is_symlink():
        path.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.devnull)


def catalog_error(error: Exception, path: Path, doing: str) -> LoaderError:
    """rocksdict raises plain Exception with RocksDB's status as text."""
    if isinstance(error, LoaderError):
        return error
    if isinstance(error, OSError):
        return drive_error(error, path.parent, doing)
    text = str(error)
    if isinstance(error, DbClosedError):
        return Closed(f"{path.parent}: the store has been closed ({doing})")
    if "No space left" in text or "NoSpace" in text:
        return DriveFull(
            f"{path.parent}: no space left while {doing}; free space on the drive, and writing goes on within seconds"
        )
    if text.startswith("Corruption") or ("No such file" in text and path.is_dir()):
        return StoreFormatError(f"{path}: damaged catalog ({text}); {REBUILD_HINT}")
    return DriveFailed(f"{path.parent}: {doing}: {text}")


def _successor(prefix: bytes) -> bytes | None:
    """The smallest key above every key with this prefix; None when there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None
