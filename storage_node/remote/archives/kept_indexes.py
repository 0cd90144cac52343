"""Kept indexes of cold archives: files on the drives, each of one version of one remote object.

An archive's index is on the drive on which the archive would be. It is kept when the archive has been walked, and when
its stored copy is evicted. The folder has a budget on each drive; the oldest files go first. It can be removed at any
time.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
from collections import OrderedDict
from pathlib import Path

from ais_loader.errors import ArchiveError, LoaderError
from ais_loader.wire.reserved import REMOTE_ETAG
from storage_node.remote.archives.cold_index import KINDS, ColdIndex, IndexSource
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.index_format import ShardState
from storage_node.store.archives.kinds import kind_of_name
from storage_node.store.checksum import crc32c
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.permissions import FOLDER_MODE
from storage_node.store.store import Store

FOLDER_NAME = "cold-members"
KEPT_BYTES = 1 << 30
"""Budget for the files on one drive: the indexes of 20,000 archives of a thousand members each."""
LEAST_ARCHIVE_BYTES = 8 << 20
"""Smaller archives are fetched as a whole, so their indexes are not kept when they are evicted."""
_SUFFIX = ".index"
log = logging.getLogger(__name__)


class KeptIndexes:
    """Thread-safe. All methods wait for a drive."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._files: dict[Path, OrderedDict[str, int]] = {}
        """Sizes of the files in each folder, oldest first."""

    def load(self, bucket_uuid: bytes, name: str, etag: str, size_bytes: int) -> ColdIndex | None:
        """Return the index of this version of an archive; None if there is none that can be used."""
        folder = self._folder(bucket_uuid, name)
        if folder is None:
            return None
        path = folder / _file_name(bucket_uuid, name, etag)
        for origin in (IndexSource.STORED, IndexSource.HEADERS, IndexSource.DIRECTORY):
            try:
                return ColdIndex(MemberIndex.open(path, _state(origin, etag, size_bytes)), origin)
            except FileNotFoundError:
                return None
            except (OSError, ArchiveError):
                continue  # of another origin, or damaged
        return None

    def keep(self, bucket_uuid: bytes, name: str, etag: str, size_bytes: int, found: ColdIndex) -> None:
        """Keep an index, if its drive can be written to and it fits into the budget."""
        folder = self._folder(bucket_uuid, name)
        if folder is None or found.members.file_bytes > KEPT_BYTES:
            return
        file_name = _file_name(bucket_uuid, name, etag)
        try:
            with self._lock:
                folder.mkdir(FOLDER_MODE, exist_ok=True)
                files = self._files_of(folder)
                found.members.save(folder / file_name, _state(found.origin, etag, size_bytes))
                files.pop(file_name, None)
                files[file_name] = found.members.file_bytes
                self._shrink(folder, files)
        except OSError as error:
            log.info("the members of %s are not kept: %s", name, error)

    def keep_stored(self, bucket_uuid: bytes, name: str, entry: CatalogEntry) -> None:
        """Keep the index of a stored copy that is about to be evicted, if it has one."""
        etag = entry.metadata.get(REMOTE_ETAG, "")
        if not etag or entry.size_bytes < LEAST_ARCHIVE_BYTES or kind_of_name(name) not in KINDS:
            return
        with contextlib.suppress(LoaderError):
            drive = self._store.drive_set.at(self._store.drive_set.placement.owner(bucket_uuid, name))
            index = drive.shards.saved(entry)
            if index is not None:
                self.keep(bucket_uuid, name, etag, entry.size_bytes, ColdIndex(index, IndexSource.STORED))

    def _folder(self, bucket_uuid: bytes, name: str) -> Path | None:
        drives = self._store.drive_set
        try:
            return drives.at(drives.placement.owner(bucket_uuid, name)).root / FOLDER_NAME
        except LoaderError:
            return None

    def _files_of(self, folder: Path) -> OrderedDict[str, int]:
        if folder not in self._files:
            found = []
            for entry in os.scandir(folder):
                if entry.name.endswith(_SUFFIX) and not entry.name.startswith("."):
                    state = entry.stat()
                    found.append((state.st_mtime_ns, entry.name, state.st_size))
                else:
                    os.unlink(entry.path)  # partially written before a crash
            self._files[folder] = OrderedDict((name, size_bytes) for _, name, size_bytes in sorted(found))
        return self._files[folder]

    def _shrink(self, folder: Path, files: OrderedDict[str, int]) -> None:
        total_bytes = sum(files.values())
        while total_bytes > KEPT_BYTES:
            file_name, size_bytes = files.popitem(last=False)
            total_bytes -= size_bytes
            with contextlib.suppress(FileNotFoundError):
                (folder / file_name).unlink()


def _file_name(bucket_uuid: bytes, name: str, etag: str) -> str:
    fields = bucket_uuid, name.encode(), etag.encode()
    return hashlib.blake2b(b"".join(len(one).to_bytes(8) + one for one in fields), digest_size=20).hexdigest() + _SUFFIX


def _state(origin: IndexSource, etag: str, size_bytes: int) -> ShardState:
    """Return what stands for the state of a shard in the file of an index: a remote object has no version number."""
    return ShardState(Version(0, origin), size_bytes, crc32c(etag.encode()))
