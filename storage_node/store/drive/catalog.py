"""Catalog of one drive: RocksDB, with the precautions that it needs around processes.

A writer opens it read-write and holds RocksDB's own lock. Readers in other processes open it as *secondary*: they take
no lock, write nothing to the drive, and see the writer's commits when they catch up.

If RocksDB has stopped in a writer because file descriptors ran out, the writer reopens it as soon as there are some.

A RocksDB handle must not be closed, collected or used in a process that inherited it through fork: its background
threads do not exist there, and it would wait for them forever. Handles and iterators that a child inherits are
therefore leaked at fork, and a catalog in another process than the one that opened it raises Closed. Opening and
closing one holds a lock of the whole process, and so do a flush and a compaction, so a fork waits for them, and until
RocksDB's threads sleep (fork_safety.py). The module is long because each call needs these precautions.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from ais_loader.errors import Closed, DriveFailed, DriveFull, LoaderError, StoreFormatError, StoreLocked
from ais_loader.extras import needs
from ais_loader.fork_barrier import GATE
from storage_node.store.drive.clean_shutdown import Mark, MarkWriter, read_mark
from storage_node.store.drive.locking import hold, lock_holder
from storage_node.store.drive.log_guard import LogGuard, copy_for_salvage
from storage_node.store.drive.published_commits import PublishedCommits
from storage_node.store.drive.rocksdb_options import catalog_options, leak
from storage_node.store.files.error_counters import OUT_OF_DESCRIPTORS, ErrorCounters
from storage_node.store.files.object_files import drive_error
from storage_node.store.files.staged_file import is_full
from storage_node.store.permissions import FOLDER_MODE
from storage_node.store.store_record import commit_mark

with needs("rocksdict", "a store on this machine"):
    from rocksdict import (
        AccessType,
        DbClosedError,
        DBRecoveryMode,
        Options,
        Rdict,
        RdictIter,
        ReadOptions,
        WriteBatch,
        WriteOptions,
    )

T = TypeVar("T")
__all__ = ["Catalog", "WriteBatch", "held_by_this_process"]

_READER_OPENS = 10
_REOPEN_S = 5.0
"""Maximum time for calls in progress on the old handle to end, and for descriptors to become available."""
_REOPEN_DESCRIPTORS = 32
"""Approximate number of descriptors that RocksDB needs besides those of its tables and logs."""
_COMPACTIONS = ("rocksdb.compaction-pending", "rocksdb.num-running-compactions")
_COMPACTIONS_S = 10.0
"""Time that closing a drive waits for them. The drive is marked as closed before, so nothing is lost by a kill."""
BINDING_FILE = "rocksdict-config.json"
REBUILD_HINT = "`ais-loader doctor --rebuild` makes it anew from the files"

_open_catalogs: weakref.WeakSet[Catalog] = weakref.WeakSet()
_live_iterators: dict[int, RdictIter] = {}


class _ClosedHandle:
    """Replaces a handle that must not be used any more: closed, or inherited through fork."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise Closed(self._why)


class _Reopening:
    """Replaces a handle while the catalog is reopened. Callers wait for the new one."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def __getattr__(self, name: str) -> object:
        return getattr(self._catalog._come_back(), name)


def _leak_inherited() -> None:
    for catalog in list(_open_catalogs):
        leak(catalog._db)
        catalog._db = _ClosedHandle(
            "this store was opened before a fork, by the parent process; open it again in the child"
        )
        catalog._catch_up_lock = threading.Lock()
        catalog._reopening = threading.RLock()
    for iterator in list(_live_iterators.values()):
        leak(iterator)


os.register_at_fork(after_in_child=_leak_inherited)


def held_by_this_process(path: Path) -> bool:
    """Whether this process has the catalog open for writing, under any path."""
    return any(
        catalog.writable and catalog.is_open and catalog.path.exists() and path.exists() and catalog.path.samefile(path)
        for catalog in list(_open_catalogs)
    )


class Catalog:
    """Ordered map from bytes to bytes. Thread-safe; belongs to the process that opened it."""

    def __init__(
        self, path: Path, *, writable: bool, faults: ErrorCounters | None = None, salvage: bool = False
    ) -> None:
        """`salvage`: read whatever is readable of a copy of a damaged catalog, as it is now. For reading only.

        Raises StoreFormatError for a catalog that is damaged or has lost commits, StoreLocked, DriveFull, DriveFailed.
        """
        self.path = path
        self.writable = writable
        self._salvage = salvage
        self._faults = faults or ErrorCounters()
        self._given_up: str | None = None
        self.no_room_s: float | None = None
        """Time on the monotonic clock of the last write that failed for lack of space; None after a successful write.
        """
        self._catch_up_lock = threading.Lock()
        self._folder_inode = 0  # guarded by _catch_up_lock, as is the guard
        self._guard = LogGuard(path)
        self._salvaged: tempfile.TemporaryDirectory[str] | None = None
        self._reopening = threading.RLock()
        self._openings = 0  # guarded by _reopening, as is _iterators
        self._iterators = 0
        self._is_stopped = False
        try:
            # Read first: beside a writer, the catalog is never behind a mark that was read before it.
            mark = None if salvage else read_mark(path)
            self._caught_up_to = _state(path, mark)
            """Readers only: state of a closed catalog when it was read. Guarded by _catch_up_lock, as is the next."""
            self._is_doubtful = False
            """Readers only: whether a catch-up failed in the middle. What was read before may have changed since, which
            the next one would not notice, so that it takes a new handle."""
            if (mark is not None or not writable) and not (path / "CURRENT").exists():
                raise StoreFormatError(f"{path}: there is no catalog; {REBUILD_HINT}")
            with GATE.call():
                self._db: Rdict = self._open(mark)
        except Exception as error:
            raise self._open_error(error) from error
        self.is_open_here = mark is not None and mark.is_open_here
        """Readers only: whether the last writer was one of this host when they caught up, and has not closed it."""
        self.machine_went_down = mark is not None and mark.machine_went_down
        """Whether the machine went down while the previous writer had the drive open."""
        self._high_water: MarkWriter | None = None
        self.published: PublishedCommits | None = None
        """Writers only: the commits, for readers in other processes."""
        if writable:
            try:
                self._high_water = MarkWriter(path, mark)
                self.published = PublishedCommits(path)
            except OSError as error:
                _close_rocksdb(self._db)
                raise self._open_error(error) from error
        self.mark = commit_mark(path)
        self._synced = WriteOptions()
        self._synced.sync = True
        _open_catalogs.add(self)

    def _open(self, mark: Mark | None) -> Rdict:
        """Open RocksDB. Raises StoreFormatError if the log has lost commits that it had when the mark was written."""
        if self._salvage:
            return self._open_salvage()
        if self.writable:
            _divert_binding_file(self.path)
            # Closing LOCK would release the lock of a catalog that this process has open.
            self._guard.require_sound(None if held_by_this_process(self.path) else lambda: hold(self.path / "LOCK"))
            db = _open_rocksdb(self.path, catalog_options(), AccessType.read_write())
            if is_behind(db, mark):
                raise self._lost(db, mark)
            return db
        self._folder_inode = os.stat(self.path).st_ino
        # A reader's folder contains only RocksDB's own log messages. It is unlinked at once, so that a killed reader
        # leaves nothing.
        scratch = tempfile.mkdtemp(prefix="ais-loader-reader-")
        try:
            return self._open_secondary(scratch, mark)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _lost(self, db: Rdict, mark: Mark | None) -> StoreFormatError:
        assert mark is not None
        found = db.latest_sequence_number()
        db.close()
        lost = f"its log ends at number {found:,}, and {mark.required:,} had been written"
        self._faults.note_catalog(f"opening the catalog: {lost}")
        return StoreFormatError(f"{self.path}: the catalog has lost commits ({lost}); {REBUILD_HINT}")

    def _open_salvage(self) -> Rdict:
        self._salvaged = folder = tempfile.TemporaryDirectory(prefix="ais-loader-salvage-")
        try:
            copy_for_salvage(self.path, Path(folder.name))
            options = catalog_options(folder.name)
            options.set_wal_recovery_mode(DBRecoveryMode.skip_any_corrupted_record())
            return _open_rocksdb(Path(folder.name), options, AccessType.read_only(False))
        except BaseException as error:
            folder.cleanup()
            if isinstance(error, OSError) and is_full(error):
                raise drive_error(error, Path(folder.name), "copying a catalog to read it") from error
            raise

    def _open_secondary(self, scratch: str, mark: Mark | None) -> Rdict:
        attempt = 1
        while True:
            try:
                # A secondary that misses a table silently goes back to a state without it. Opening read-only, which
                # cannot follow a writer, fails instead.
                self._guard.require_sound()
                strict = _open_rocksdb(self.path, catalog_options(scratch), AccessType.read_only(False))
                secondary = _open_rocksdb(self.path, catalog_options(scratch), AccessType.secondary(scratch))
                strict.close()
                if not is_behind(secondary, mark):
                    return secondary
                if attempt == _READER_OPENS:
                    raise self._lost(secondary, mark)
                secondary.close()
            except Exception:
                if attempt == _READER_OPENS:
                    raise
            # Beside a writer, a table or a log may be deleted after it was listed and before it is opened.
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
    def is_left(self) -> bool:
        """Readers only: whether no writer had the catalog open when they caught up."""
        return self._caught_up_to is not None

    @property
    def is_open(self) -> bool:
        return not isinstance(self._db, _ClosedHandle)

    # -- reading

    def get(self, key: bytes) -> bytes | None:
        """Return a value. Raises StoreFormatError for a damaged catalog, DriveFailed, Closed, as all reads do."""
        value: bytes | None = self._tried(lambda: self._db.get(key), "reading the catalog")
        return value

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return values in the order of `keys`."""
        wanted = list(keys)
        values: list[bytes | None] = self._tried(lambda: self._db.get(wanted), "reading the catalog")
        return values

    def scan(
        self, prefix: bytes, start_after: bytes | None = None, up_to: bytes | None = None, *, backwards: bool = False
    ) -> Generator[tuple[bytes, bytes], None, None]:
        """Iterate over pairs whose key begins with `prefix`, in key order or `backwards`, up to the key `up_to`; a
        snapshot taken at the first one."""
        first, read = _bounds(prefix, start_after, up_to)
        at: RdictIter | None = None
        with self._reopening:
            self._iterators += 1
        try:
            at = self._db.iter(read)
            _live_iterators[id(at)] = at
            at.seek_to_last() if backwards else at.seek(first)
            while at.valid() and (key := at.key()) >= first:
                yield key, at.value()
                at.prev() if backwards else at.next()
            at.status()  # raises after damage: valid() is false then as well
        except Exception as error:
            raise self._error(error, "listing the catalog") from error
        finally:
            _live_iterators.pop(id(at), None)
            at = None
            with self._reopening:
                self._iterators -= 1

    def part(self, prefix: bytes, after: bytes | None, up_to: bytes | None, most: int) -> list[tuple[bytes, bytes]]:
        """Return what `scan` begins with, in less time: `most` pairs, or fewer at its end."""
        first, read = _bounds(prefix, after, up_to)  # a child forked meanwhile lacks this thread, so leaks its iterator
        found: list[tuple[bytes, bytes]] = self._tried(
            lambda: list(itertools.islice(self._db.items(from_key=first, read_opt=read), most)), "listing the catalog"
        )
        if len(found) < most:  # items also end, without an error, where the catalog is damaged
            found += itertools.islice(self.scan(prefix, found[-1][0] if found else after, up_to), most - len(found))
        return found

    def catch_up(self) -> bool:
        """Read what the writer has committed. For readers only, and cheap if there is nothing new.

        Returns whether anything read earlier may have changed. Raises DriveFailed, StoreFormatError, Closed.
        """
        if self.writable:
            return False
        with self._catch_up_lock:
            was_doubtful, self._is_doubtful = self._is_doubtful, True
            try:
                mark = read_mark(self.path)
                self.is_open_here = mark is not None and mark.is_open_here
                before, self._caught_up_to = self._caught_up_to, _state(self.path, mark)
                if self._caught_up_to is not None and before == self._caught_up_to and not was_doubtful:
                    self._is_doubtful = False
                    return False
                if not was_doubtful and os.stat(self.path).st_ino == self._folder_inode:
                    number, logs = self._db.latest_sequence_number(), self._first_log()
                    self._guard.require_sound()
                    self._db.try_catch_up_with_primary()
                    # After the writer has flushed, a secondary keeps answering from what it had read of the log, so
                    # that an old value hides the flushed one. A secondary that cannot follow any more may silently stay
                    # where it is. A new handle has neither problem.
                    if self._first_log() == logs and not is_behind(self._db, mark):
                        self._is_doubtful = False
                        return bool(self._db.latest_sequence_number() != number)
            except (LoaderError, DbClosedError) as error:
                self._caught_up_to = None
                raise self._error(error, "following the writer") from error
            except Exception:  # noqa: BLE001 - the writer dropped an unread log: reopen
                pass
            self._caught_up_to = None
            try:
                # The old handle ends with the last thread that still reads from it.
                with GATE.call():
                    self._db = self._open(read_mark(self.path))
            except Exception as error:
                raise self._error(error, "following the writer") from error
            self._is_doubtful = False
            return True

    def _first_log(self) -> object:
        """Return the oldest log that is still needed. A flush makes it a later one."""
        return self._db.property_int_value("rocksdb.min-log-number-to-keep")

    def sequence(self) -> int:
        """Return the number of the last write that this process sees. Raises as reads do."""
        return self._tried(lambda: int(self._db.latest_sequence_number()), "reading the catalog")

    def estimated_keys(self) -> int:
        return self._tried(
            lambda: int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0), "reading the catalog"
        )

    # -- writing

    def write(self, batch: WriteBatch, *, sync: bool, is_commit: bool = True) -> None:
        """Apply a batch atomically and, with `sync`, durably. Raises DriveFull, DriveFailed, Closed.

        After an error the batch is not visible, but it may have reached the log: if the process dies before the next
        successful write, the batch may be applied when the catalog is opened again. With `is_commit=False` the batch
        does not count for the high-water mark, so its loss goes unnoticed: used for intents, and for the removal of
        dead files.
        """
        if self._is_stopped:
            self._open_anew()
        counted = self.published if is_commit else None
        if counted is not None:
            counted.begin()
        try:
            self._apply(batch, sync=sync, is_commit=is_commit)
        finally:
            if counted is not None:
                counted.end()

    def _apply(self, batch: WriteBatch, *, sync: bool, is_commit: bool) -> None:
        synced = 0
        try:
            if sync:
                # Other threads may write before or after this without syncing. Everything up to here is synced with it.
                synced = self._db.latest_sequence_number() + batch.len()
                self._db.write(batch, self._synced)
            else:
                self._db.write(batch)
        except Exception as error:
            self._stop(error)
            found = self._error(error, "committing to the catalog")
            if isinstance(found, DriveFull):
                self.no_room_s = time.monotonic()
            raise found from error
        self.no_room_s = None
        if is_commit:
            self.mark.committed()
            self._advance(synced)

    def _advance(self, synced: int) -> None:
        if self._high_water is not None:
            try:  # noqa: SIM105 - every commit comes here
                self._high_water.advance(self._db.latest_sequence_number(), synced)
            except Exception:  # noqa: BLE001 - the commit stands whatever happens here
                pass

    def flush(self) -> None:
        """Write everything to checksummed tables. Raises what `write` raises."""
        if self._is_stopped:
            self._open_anew()
        try:
            before = self._db.latest_sequence_number()
            with GATE.call():
                self._db.flush()
        except Exception as error:
            self._stop(error)
            raise self._error(error, "flushing the catalog") from error
        self._advance(before)

    def _tried(self, step: Callable[[], T], doing: str) -> T:
        """Run a step, and once more if the handle was replaced meanwhile. Raises LoaderError."""
        opening = self._openings
        try:
            return step()
        except Exception as error:
            with self._reopening:
                if self._openings == opening or not self.is_open:
                    raise self._error(error, doing) from error
        try:
            return step()
        except Exception as error:
            raise self._error(error, doing) from error

    def _stop(self, error: Exception) -> None:
        """Note whether RocksDB has stopped. If it finds no descriptor for a log or a table, it rejects all writes until
        it is reopened, even if there are descriptors again."""
        self._is_stopped = self._is_stopped or any(text in str(error) for text in OUT_OF_DESCRIPTORS)

    def _open_anew(self) -> None:
        """Reopen RocksDB if it has stopped and can be opened now. Its log contains all accepted writes, and no rejected
        ones."""
        with self._reopening:
            # An iterator keeps the handle alive, and with it RocksDB's lock: then the next call tries again.
            if not self._is_stopped or not self.is_open or self._iterators or not self._has_descriptors():
                return
            if not isinstance(self._db, _Reopening):
                former, self._db = self._db, _Reopening(self)
                _close_rocksdb(former)  # it cannot flush; it is released when the last call on it ends
                del former
            with contextlib.suppress(Exception):  # the next user of the handle gets the error
                self._come_back()

    def _come_back(self) -> Rdict:
        """Return the new handle, waiting for it. Raises what opening raises; the next caller tries again."""
        with self._reopening:
            until_s = time.monotonic() + _REOPEN_S
            while isinstance(self._db, _Reopening):
                try:
                    with GATE.call():
                        self._db = self._open(read_mark(self.path))
                    self._openings += 1
                    self._is_stopped = False
                except Exception as error:
                    waits = ("lock hold by current process", *OUT_OF_DESCRIPTORS)
                    if time.monotonic() > until_s or not any(text in str(error) for text in waits):
                        raise
                    threading.Event().wait(0.01)
            return self._db

    def _has_descriptors(self) -> bool:
        """Whether there are enough free descriptors for opening."""
        fds: list[int] = []
        try:
            for _ in range(_REOPEN_DESCRIPTORS + len(os.listdir(self.path))):
                fds.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return False
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def begin_session(self) -> None:
        """Mark the drive as open, durably. Raises OSError, LoaderError."""
        assert self._high_water is not None
        self._high_water.begin(self._db.latest_sequence_number())

    def end_session(self) -> None:
        """Flush everything to tables, and mark the drive as closed. `close` follows. Raises OSError, LoaderError."""
        assert self._high_water is not None
        self.flush()
        self._high_water.end(self._db.latest_sequence_number())
        self._finish_compactions()

    def _finish_compactions(self) -> None:
        """Wait for compactions that are due, for a limited time. Readers never compact: without this, they would search
        each of the tables that a writer left in level 0, for every look-up."""
        until_s = time.monotonic() + _COMPACTIONS_S
        while any(self._db.property_int_value(name) for name in _COMPACTIONS) and time.monotonic() < until_s:
            threading.Event().wait(0.02)

    def compact(self, first: bytes | None = None, last: bytes | None = None) -> None:
        """Rewrite all tables as one sorted sequence, or those with keys between these. Takes time in proportion to the
        catalog. Raises what `flush` raises."""
        self.flush()
        with GATE.call():
            self._tried(lambda: self._db.compact_range(first, last), "compacting the catalog")

    def give_up(self, why: str) -> None:
        """Close. Current readers and later callers get DriveFailed with this reason."""
        self._given_up = why
        if self.published is not None:
            self.published.refuse()
            self.published.set_table(0)
        self.close()

    def close(self) -> None:
        """Flush and release the lock. Harmless in a process that inherited the catalog, and if called twice.

        What cannot be flushed (the drive is full, or gone) is in the log, which the next opening reads.
        """
        if self.is_open:
            with self._reopening:
                db, self._db = self._db, _ClosedHandle("the store has been closed")
            if not isinstance(db, _Reopening):
                _close_rocksdb(db)
            if self._high_water is not None:
                self._high_water.close()
            if self._salvaged is not None:
                self._salvaged.cleanup()


def _open_rocksdb(path: Path, options: Options, access: AccessType) -> Rdict:
    return Rdict(str(path), options, column_families={"default": options}, access_type=access)


def _close_rocksdb(db: Rdict) -> None:
    """Close a handle. If this fails, it is released when it is dropped."""
    with GATE.call(), contextlib.suppress(Exception):
        db.close()


def _state(path: Path, mark: Mark | None) -> object:
    """Return what differs as soon as a writer has opened a closed catalog: RocksDB replaces `CURRENT` then. None for
    one that is not closed."""
    if mark is None or not mark.is_closed:
        return None
    found = os.stat(path / "CURRENT")
    return mark, found.st_dev, found.st_ino, found.st_mtime_ns


def is_behind(db: Rdict, mark: Mark | None) -> bool:
    """Whether commits are missing that the catalog had when this mark was written."""
    return mark is not None and bool(db.latest_sequence_number() < mark.required)


def _divert_binding_file(path: Path) -> None:
    """Divert rocksdict's settings file to /dev/null: it is written at every opening, even by a reader on a read-only
    mount.

    Nothing is lost: the only setting, raw mode, is given at every opening.
    """
    link = path / BINDING_FILE
    if not link.is_symlink():
        path.mkdir(FOLDER_MODE, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(os.devnull)


def catalog_error(error: Exception, path: Path, doing: str) -> LoaderError:
    """Convert an error of RocksDB, which rocksdict raises as plain Exception with the status as text."""
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


def _bounds(prefix: bytes, after: bytes | None, up_to: bytes | None) -> tuple[bytes, ReadOptions]:
    """Return where a scan begins, and options that end it, which must live as long as its iterator."""
    read, stripped = ReadOptions(), prefix.rstrip(b"\xff")
    if up_to is not None:
        read.set_iterate_upper_bound(up_to + b"\0")
    elif stripped:  # the smallest key above every key with this prefix
        read.set_iterate_upper_bound(stripped[:-1] + bytes((stripped[-1] + 1,)))
    return prefix if after is None or after < prefix else after + b"\0", read
