"""Scrub of one drive: reads every object in turn, in small steps, and compares it with its stored checksums.

Damaged objects are noted with the store's damaged replicas; damaged versions that only snapshots see are counted and
logged. The progress is stored beside the catalog, so that a drive is completed even if its node is restarted every day.
Belongs to one thread at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ais_loader.errors import CorruptObject, StoreFormatError
from ais_loader.wire.closing import closing_fd
from storage_node.store import format as fmt
from storage_node.store.checksum import crc32c, decode_checked, encode_checked
from storage_node.store.damaged_copies import DamagedCopies
from storage_node.store.drive.block_checksums import read_blocks
from storage_node.store.drive.drive import Drive
from storage_node.store.files.error_counters import is_passing
from storage_node.store.files.object_files import drive_error, read_fully
from storage_node.store.format import BLOCK_BYTES, CatalogEntry
from storage_node.store.permissions import private

FILE_NAME = "scrub.json"
_FORMAT = 1
_SAVE_INTERVAL_S = 5.0
_ENTRIES_AT_ONCE = 1000
"""Maximum number of entries per step, however small they are."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class ScrubProgress:
    """Progress on one drive. Times are by the wall clock, which survives a restart."""

    began_s: float
    """Start of the current pass, or of the last one."""
    finished_s: float = 0.0
    """End of the last complete pass; 0: none is complete yet."""
    is_under_way: bool = False
    after: str = ""
    """Hexadecimal catalog key after which the pass continues."""
    objects: int = 0
    """Counts of the current pass, or of the last one."""
    bytes: int = 0
    damaged: int = 0


class DriveScrub:
    def __init__(self, drive: Drive, damaged: DamagedCopies) -> None:
        """Continues where an earlier scrub of the same drive ended."""
        self._drive = drive
        self._damaged = damaged
        self._path = drive.root / FILE_NAME
        self._saved_s = 0.0
        self._reading: tuple[bytes, CatalogEntry, Iterator[int]] | None = None
        self.progress = self._load()

    def _load(self) -> ScrubProgress:
        try:
            return ScrubProgress(**decode_checked("scrub", _FORMAT, self._path.read_bytes(), self._path))
        except (OSError, StoreFormatError, ValueError, KeyError, TypeError, AttributeError):
            return ScrubProgress(time.time())  # harmless: the next pass begins a whole period from now

    def is_due(self, interval_s: float) -> bool:
        """Whether a pass is in progress, or the last one began at least `interval_s` ago, or in the future by a clock
        that was ahead; 0: never."""
        is_recent = 0 <= time.time() - self.progress.began_s < interval_s
        return self.progress.is_under_way or (interval_s > 0 and not is_recent)

    def step(self, most_bytes: int) -> int:
        """Read about `most_bytes` bytes of objects. Returns how many were read. A pass ends when it reaches the end of
        the drive.

        Raises DriveFailed, Closed.
        """
        if not self.progress.is_under_way:
            self.progress = ScrubProgress(time.time(), self.progress.finished_s, is_under_way=True)
        read_bytes = 0
        for _ in range(_ENTRIES_AT_ONCE):
            if self._reading is None and not self._next():
                self.progress.is_under_way, self.progress.after = False, ""
                self.progress.finished_s = time.time()
                self.save()
                return read_bytes
            read_bytes += self._read_on(most_bytes - read_bytes)
            if read_bytes >= most_bytes:
                break
        if time.monotonic() - self._saved_s > _SAVE_INTERVAL_S:
            self.save()
        return read_bytes

    def _next(self) -> bool:
        """Begin the next object; False if there is none."""
        after = bytes.fromhex(self.progress.after) or None
        retained = self._drive.catalog.scan(fmt.RETAINED_PREFIX, after)  # their keys sort after those of objects
        for key, value in itertools.chain(self._drive.entries(after), retained):
            with contextlib.suppress(StoreFormatError):  # unreadable entries are left to the doctor
                entry = fmt.decode_entry(value)
                if entry.has_file:
                    self._reading = key, entry, compare_copy(self._drive, entry)
                    return True
        return False

    def _read_on(self, most_bytes: int) -> int:
        assert self._reading is not None
        key, entry, blocks = self._reading
        read_bytes = 0
        try:
            for size in blocks:
                read_bytes += size
                if read_bytes >= most_bytes:
                    self.progress.bytes += read_bytes
                    return read_bytes
        except OSError as error:
            if is_passing(error):
                self._reading = None  # to be begun again
                raise drive_error(error, self._drive.root, "comparing an object") from error
            self._found(key, entry)
        except CorruptObject:
            self._found(key, entry)
        self._reading, self.progress.after = None, key.hex()
        self.progress.objects += 1
        self.progress.bytes += read_bytes
        return read_bytes

    def _found(self, key: bytes, entry: CatalogEntry) -> None:
        """Record damage, unless the object has been replaced or moved to another drive meanwhile."""
        bucket_uuid = fmt.bucket_of_key(key)
        if key.startswith(fmt.RETAINED_PREFIX):
            if self._drive.catalog.get(key) is not None:
                self._drive.faults.note_checksum()
                self.progress.damaged += 1
                log.error(
                    "%s: version %s of %r, which only snapshots see, is damaged; `ais-loader doctor --checksums` names "
                    "all that is",
                    self._drive.root,
                    entry.version,
                    fmt.name_of_retained(key),
                )
            return
        name = fmt.name_of_key(key)
        now = self._drive.newest(bucket_uuid, [name])[0]
        if now is not None and now.path == entry.path:
            self._drive.faults.note_checksum()
            self.progress.damaged += 1
            self._damaged.note(bucket_uuid, name, entry.version)

    def save(self) -> None:
        """Store the progress. If the drive cannot store it, a restart continues from the last stored progress."""
        self._saved_s = time.monotonic()
        part = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            with open(part, "wb", opener=private) as file:
                file.write(encode_checked("scrub", _FORMAT, asdict(self.progress)))
            os.replace(part, self._path)


def compare_copy(drive: Drive, entry: CatalogEntry) -> Iterator[int]:
    """Compare an object with its stored checksums, block by block; yields the number of bytes read for each.

    Raises CorruptObject if they differ, OSError, DriveFailed, Closed.
    """
    stored = [entry.checksum]
    if entry.size_bytes > BLOCK_BYTES:
        stored = read_blocks(drive.catalog, entry, 0, -(-entry.size_bytes // BLOCK_BYTES)).tolist()
    whole = 0
    with closing_fd(drive.files.open(entry.path)) as fd:
        for at, checksum in enumerate(stored):
            wanted = min(BLOCK_BYTES, entry.size_bytes - at * BLOCK_BYTES)
            block = read_fully(fd, wanted, entry.offset + at * BLOCK_BYTES)
            if len(block) != wanted or crc32c(block) != checksum:
                raise CorruptObject(f"{drive.root}: the bytes do not match the stored checksum")
            whole = crc32c(block, whole)
            yield wanted
        if whole != entry.checksum or (not entry.offset and os.fstat(fd).st_size != entry.size_bytes):
            raise CorruptObject(f"{drive.root}: the bytes do not match the stored checksum")


def is_whole(drive: Drive, entry: CatalogEntry) -> bool:
    """Whether an object matches its checksums. Raises DriveFailed, Closed."""
    try:
        for _ in compare_copy(drive, entry):
            pass
    except OSError as error:
        if is_passing(error):
            raise drive_error(error, drive.root, "comparing an object") from error
        return False
    except CorruptObject:
        return False
    return True
