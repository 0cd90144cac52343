"""Clean-shutdown mark: tells whether the machine went down while a drive was open for writing.

A process that dies leaves the page cache behind: intents and garbage in the catalog then name every file that may have
to go. A machine that dies does not: a rename can be on the disk while the intent that announced it is not. A drive is
therefore marked while it is open, with the identity of the running kernel; who finds the mark of another one compares
all files with the catalog.
"""

from __future__ import annotations

import ctypes
import os
import uuid
from pathlib import Path

from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> bytes:
    """Different after every start of the machine; different every time where the system does not tell."""
    try:
        return _BOOT_ID.read_bytes().strip()
    except OSError:
        return uuid.uuid4().hex.encode()


def machine_went_down(catalog: Catalog) -> bool:
    """Whether the previous writer lived in a kernel that is no more. Raises LoaderError."""
    mark = catalog.get(fmt.OPEN_MARK_KEY)
    return mark is not None and mark != boot_id()


def begin(catalog: Catalog) -> None:
    """Mark the drive as open; lasting on return, as is the counter's reservation. Raises LoaderError."""
    batch = WriteBatch(raw_mode=True)
    batch.put(fmt.OPEN_MARK_KEY, boot_id())
    catalog.write(batch, sync=True)


def end(catalog: Catalog, fd: int, *, lasting: bool) -> None:
    """Take the mark away; with `lasting` all that was done is on the disk before. Raises LoaderError, OSError."""
    if lasting:
        sync_file_system(fd)
    batch = WriteBatch(raw_mode=True)
    batch.delete(fmt.OPEN_MARK_KEY)
    catalog.write(batch, sync=True)


def sync_file_system(fd: int) -> None:
    """Everything that has been written to the file system of this descriptor is on the disk. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "syncfs"):
        os.sync()
    elif libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
