"""Drive lock: which process holds a drive for writing, and how to hold one whose catalog cannot be opened.

RocksDB guards a catalog with a POSIX record lock on its file LOCK. Such a lock belongs to the process, and closing
*any* descriptor of that file releases it. Code here must not touch the LOCK file of a catalog that this process has
open.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from ais_loader.errors import StoreLocked
from ais_loader.wire.closing import closing_fd
from storage_node.store.permissions import FILE_MODE, FOLDER_MODE

_FLOCK = struct.Struct("hhqqi")  # struct flock: type, whence, start, length, pid


def lock_holder(lock: Path) -> str | None:
    """Return the holder of a lock: "process N", "another process" if its id is unknown, or None if the lock is free."""
    try:
        with lock.open("rb") as file:
            query = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, query)[: _FLOCK.size])
    except FileNotFoundError:
        return None
    except OSError:
        return "another process"
    if kind == fcntl.F_UNLCK:
        return None
    # A holder in another container's process table has the id 0 or -1.
    return f"process {pid}" if pid > 0 else "another process"


def writing_mark(drive: Path) -> tuple[object, ...]:
    """Return a value that differs from an earlier one if the writer of a drive has got on in the meantime.

    It reads only the sizes of the catalog's log and of uploads under way, and the time of the last `note_writing`.
    """
    sizes: list[tuple[str, int]] = []
    for folder, ending in ((drive / "catalog", ".log"), (drive / "staging", "")):
        with contextlib.suppress(OSError), os.scandir(folder) as found:
            for entry in found:
                if entry.name.endswith(ending):
                    with contextlib.suppress(FileNotFoundError):  # done, or replaced, since it was listed
                        sizes.append((entry.name, entry.stat().st_size))
    with contextlib.suppress(OSError):
        return (os.stat(drive / "staging").st_mtime_ns, *sorted(sizes))
    return tuple(sorted(sizes))


def note_writing(drive: Path) -> None:
    """Let `writing_mark` differ: the holder of the lock collects bytes that are not on the drive yet."""
    with contextlib.suppress(OSError):  # the drive has failed; the write itself tells
        os.utime(drive / "staging")


@contextlib.contextmanager
def hold(lock: Path) -> Iterator[None]:
    """Exclude every writer from a catalog meanwhile. Raises StoreLocked."""
    lock.parent.mkdir(FOLDER_MODE, exist_ok=True)
    with closing_fd(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)) as fd:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreLocked(
                f"{lock.parent.parent} is open for writing by {lock_holder(lock) or 'another process'}; close it first"
            ) from None
        yield
