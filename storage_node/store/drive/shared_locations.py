"""Shared locations: the table of a drive's locations in a file, which all processes of this host map.

The problem. A process that begins to read knows no location. Reading all of them from the catalog takes as long as
reading the objects, and each of the workers of a training would do it, for a table of its own. The writer has the
table. But a location that is wrong must never be believed, and bytes in a file may be anything.

The table is the file `locations` in the catalog's folder. There are two reasons to believe it, of which one has to hold
before each look-up:

- The writer that has the catalog open maintains it: `last-commit` has its id. The writer changes the mapped rows where
  they are. Before a commit can be seen, the rows that it replaces are gone, so a row that is found is current, without
  any look at the catalog. A new writer first takes the id away.
- Nobody changes it, and it equals the catalog: it has the sequence number up to which this process has read the
  catalog. The writer seals it so when it closes the drive, and so does a reader that has scanned the whole catalog.

What else could go wrong, and what prevents it:

- *Loss of power, a copy, another drive, a restored folder*: the file says for which start of which host, file, drive
  and placement it was made. Any other one is ignored. So a mapped page that was not written before a crash of the
  machine is never met.
- *A kill*: a row is written before the index names it, and what was removed before a commit is only missing. So the id
  stays right until the next writer begins. Each writer begins a new file, and never believes what another one has left.
- *Half-written rows, damage*: each row has a checksum over itself and its key, each path has one, and all positions are
  checked against the size of the file when it was mapped. A file that was cut short ends a look-up, not the process.
- *A commit that failed*: RocksDB may have it or not. The table is withdrawn for good.
- *Removed files*: rows are dropped before a segment is removed, by its number. A row that was read just before leads to
  a missing file or to other bytes. Each object read is compared with its checksum, and looked up in the catalog then.
- *Other users*: the file has to belong to this user, and only this user may write to it.

When the table is full, it moves to a new file of twice the size, under a new id; whoever has the old one maps the new
one. Small tables stay in memory. If the file cannot be made, because the drive is full or read-only, so does every
table, and readers read the catalog.
"""

from __future__ import annotations

import os
import secrets
import stat
import struct
from contextlib import suppress
from pathlib import Path

import xxhash

from ais_loader.wire.closing import closing_fd
from ais_loader.wire.node_folder import host_id
from storage_node.store.drive.locations import Locations
from storage_node.store.drive.published_commits import FollowedCommits, PublishedCommits
from storage_node.store.permissions import OTHERS, private

FILE_NAME = "locations"
"""In the catalog's folder, so that both are set aside together."""
_HEAD, _ID, _SEQUENCE = struct.Struct("=8s3Q"), 16, 24
"""The magic, the place that the table was made for, its id, and the sequence number that it equals; and positions."""
_NUMBER = struct.Struct("=Q")
_MIN_ROOM = 1024
"""Smaller tables are not shared: looking up so few objects takes a millisecond or two."""


class SharedLocations:
    """File of one drive's table. Not thread-safe: `EntryCache` in a writer and `Drive` in a reader hold a lock."""

    def __init__(self, folder: Path, drive_uuid: str, published: PublishedCommits | None, dirfd: int) -> None:
        """`published`: the commits of this process if it writes to the drive. `dirfd`: see `Locations`."""
        self._path, self._drive, self._published = folder / FILE_NAME, drive_uuid, published
        self._dirfd = dirfd
        self._placement = 0
        """Digest of the placement that the drive's objects have; 0 while nothing is shared."""
        self._room = 0
        self._fd = -1
        self._table: Locations | None = None  # readers: the table that was mapped last
        self._id = self._sequence = 0
        self._tried: object = None

    def set_placement(self, digest: int) -> None:
        """Set the digest of the store's placement; 0 if objects are moving between drives, or nothing is shared."""
        self._placement, self._tried, self._table, self._id, self._sequence = digest, None, None, 0, 0

    # -- writing

    def follow(self, table: Locations) -> None:
        """Share a table that has grown; withdraw one that is no longer in its file."""
        if table.is_shared == (self._fd >= 0) and table.room == self._room:
            return
        self._room = table.room
        self.withdraw()
        if self._published is not None and self._placement and table.room > _MIN_ROOM:
            try:
                self._use(self._created(table), table)
            except OSError:
                self._placement = 0  # it stays in memory

    def _use(self, fd: int, table: Locations) -> None:
        """Publish a table that is in this file."""
        assert self._published is not None
        self.withdraw()
        self._fd, self._room = fd, table.room
        number = secrets.randbits(63) | 1
        os.pwrite(fd, _NUMBER.pack(number), _ID)
        self._published.set_table(number)

    def withdraw(self) -> None:
        """Let nobody believe the file of this process any more."""
        if self._fd >= 0:
            assert self._published is not None
            self._published.set_table(0)
            os.close(self._fd)
            self._fd = -1

    def end(self) -> None:
        """Withdraw the table, and share none any more."""
        self.withdraw()
        self._placement = 0

    def seal(self, table: Locations, sequence: int) -> None:
        """Note that the table equals the catalog at this number, and is changed no more. Raises OSError."""
        if self._fd >= 0 and table.is_shared:
            os.pwrite(self._fd, _NUMBER.pack(sequence), _SEQUENCE)

    def save(self, table: Locations, sequence: int) -> None:
        """Write the table of a reader that has scanned the catalog up to this number. The table is in the file then.

        Does nothing where that is impossible, or while a writer shares its table.
        """
        with suppress(OSError):
            if self._placement and table.room > _MIN_ROOM and self._table is None:
                os.close(self._created(table, sequence))
                self._tried = None

    def _created(self, table: Locations, sequence: int = 0) -> int:
        """Move a table to a new file in the place of the former one. Returns its descriptor. Raises OSError."""
        new = self._path.with_name(f"{FILE_NAME}.{secrets.token_hex(4)}")
        fd = private(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            if not table.share(fd):
                raise OSError("there is no room for the table")
            place = self._place(os.fstat(fd))
            os.pwrite(fd, _HEAD.pack(os.pread(fd, _HEAD.size, 0)[:8], place, 0, sequence), 0)
            os.replace(new, self._path)
        except BaseException:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise
        return fd

    # -- reading

    def current(self, sequence: int, followed: FollowedCommits | None) -> Locations | None:
        """Return the table if it may be believed. `sequence`: up to which this process has read the catalog.
        `followed`: the commits of a writer of this host that has the catalog open, if there is one."""
        published = followed.table if followed is not None else 0
        if self._table is not None and (sequence == self._sequence or (published and published == self._id)):
            return self._table if self._table.is_shared else None
        if not self._placement or self._tried == (published, sequence):
            return None
        self._tried = published, sequence
        self._table, self._id, self._sequence = None, 0, 0
        with suppress(OSError):
            fd, number, equals = self._opened(os.O_RDONLY)
            with closing_fd(fd):
                table = Locations(self._dirfd, 0)
                if (equals == sequence or (published and published == number)) and table.map(fd):
                    self._table, self._id, self._sequence = table, number, equals
        return self._table

    def _opened(self, flags: int) -> tuple[int, int, int]:
        """Return a descriptor of the file, its id and its sequence number. Raises OSError if it was not made for this
        place, or others can change it."""
        fd = os.open(self._path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found, head = os.fstat(fd), os.pread(fd, _HEAD.size, 0)
            is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS
            if not is_own or len(head) < _HEAD.size:
                raise OSError(f"{self._path}: another user can change it, or it has no head")
            _, place, number, equals = _HEAD.unpack(head)
            if place != self._place(found):
                raise OSError(f"{self._path}: it was made for another place")
        except BaseException:
            os.close(fd)
            raise
        return fd, number, equals

    def _place(self, found: os.stat_result) -> int:
        made_for = f"{host_id()} {found.st_dev} {found.st_ino} {self._drive} {self._placement}"
        return xxhash.xxh3_64_intdigest(made_for.encode()) or 1
