"""Files ahead: for a thread that opens one small file of a bucket after another in the order of their names, the next
ones come together, with a listing and a batch, instead of a request or two each.

Libraries open files one by one: a task of `ray.data.read_binary_files`, pandas in a loop, a folder of images. Over a
network, they wait for each. Readers of an embedded store wait for no one and need none of this.

It begins after a run of opens in ascending order, and then only if nothing lies between the last two names. Files are
kept for MAX_AGE_S, within which the file system may show earlier versions, and only until this process writes.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from itertools import islice

from ais_loader import Client, Entry, errors
from ais_loader.objects.pinned import WHOLE_BYTES
from ais_loader.transport.base import OpenedObject

from ..shared_store import SharedStore

MAX_AGE_S = 1.0
"""How long the file system may show what has been replaced or deleted."""
FIRST_RUN = 8
"""Opens in ascending order before the first listing. A shuffled reader has this many once in 40,000 times."""
MAX_RUN = 1024
FIRST_FILES, LEAST_FILES, MOST_FILES = 8, 2, 128
MOST_BYTES = 4 << 20
"""Size of the files of one batch, of which one more may come."""
_PAUSE_S = 0.25
"""A thread that takes this long from one file to the next does not need more at a time."""


class _Thread(threading.local):
    """One thread's last open, and the files that were fetched for it."""

    def __init__(self) -> None:
        self.bucket, self.name = "", ""
        self.opened_s = 0.0
        self.run = 0
        """Number of opens in ascending order that end with the last one."""
        self.needed_run = FIRST_RUN
        self.files = FIRST_FILES
        """Number of files of the next batch."""
        self.held: dict[str, OpenedObject] = {}
        """The files that follow, large ones without their bytes."""
        self.fetched_s = 0.0
        self.changes = 0


class FilesAhead:
    """Thread-safe; each thread has its own files."""

    def __init__(self, store: SharedStore) -> None:
        self._store = store
        self._thread = _Thread()
        self._is_remote: dict[str, bool] = {}
        """Whether a bucket's objects are those of a remote storage, which charges for listings."""

    def known(self, bucket: str, name: str) -> OpenedObject | None:
        """Return the file if it has been fetched, without opening it."""
        mine = self._thread
        return mine.held.get(name) if mine.held and mine.bucket == bucket and self._is_fresh(mine) else None

    def opened(self, client: Client, bucket: str, name: str) -> OpenedObject | None:
        """Return the file that this thread opens now, or None if it has to be opened by itself."""
        mine, now_s = self._thread, time.monotonic()
        if (bucket, name) == (mine.bucket, mine.name):
            return None
        last, pause_s = mine.name, now_s - mine.opened_s
        follows = bucket == mine.bucket and name > last
        mine.bucket, mine.name, mine.opened_s = bucket, name, now_s
        mine.run = mine.run + 1 if follows and pause_s < _PAUSE_S else 0
        if mine.held:
            fresh, found = self._is_fresh(mine), mine.held.pop(name, None)
            if fresh and follows and found is not None:
                return _whole(found)
            mine.held = {}
            if fresh:
                self._give_up(mine)
        if mine.run < mine.needed_run:
            return None
        try:
            self._fetch(mine, client, last)
        except (errors.LoaderError, OSError):  # opening the file by itself tells why, or works
            self._give_up(mine)
        return _whole(mine.held.pop(name, None))

    def _is_fresh(self, mine: _Thread) -> bool:
        return mine.changes == self._store.changes and time.monotonic() - mine.fetched_s < MAX_AGE_S

    @staticmethod
    def _give_up(mine: _Thread) -> None:
        """Wait for a longer run: this thread skips files, or its order is another one."""
        mine.held, mine.run, mine.files = {}, 0, FIRST_FILES
        mine.needed_run = min(2 * mine.needed_run, MAX_RUN)

    def _fetch(self, mine: _Thread, client: Client, last: str) -> None:
        """Fetch the files that follow `last`, of which the first is being opened. Raises the errors of a listing and a
        batch."""
        if self._must_not_list(client, mine.bucket):
            self._give_up(mine)
            return
        began_s, before_s = time.monotonic(), mine.fetched_s
        if began_s - before_s < MAX_AGE_S / 4:
            mine.files, mine.needed_run = min(2 * mine.files, MOST_FILES), FIRST_RUN
        elif began_s - before_s > MAX_AGE_S / 2 and before_s:
            mine.files = max(mine.files // 2, LEAST_FILES)
        mine.fetched_s, mine.changes = began_s, self._store.changes
        listed = client.bucket(mine.bucket).objects(start_after=last, page_size=mine.files)
        infos = list(islice(listed, mine.files))
        if not infos or infos[0].name != mine.name:
            self._give_up(mine)
            return
        held, small, size_bytes = {}, [], 0
        for info in infos:
            if size_bytes >= MOST_BYTES:
                break
            held[info.name] = OpenedObject(info)
            if 0 < info.size_bytes <= WHOLE_BYTES:
                small.append(info)
                size_bytes += info.size_bytes
        entries = [Entry(info.bucket, info.name, version=info.version) for info in small]
        with client.get_batch(entries, on_error="placeholder") as batch:
            for info, item in zip(small, batch, strict=True):
                if item.ok:
                    held[info.name] = OpenedObject(info, partial(_bytes_of, item.data))
                else:  # replaced or deleted since
                    del held[info.name]
        mine.held = held

    def _must_not_list(self, client: Client, bucket: str) -> bool:
        if bucket not in self._is_remote:
            self._is_remote[bucket] = client.bucket(bucket).info().remote is not None
        return self._is_remote[bucket]


def _whole(found: OpenedObject | None) -> OpenedObject | None:
    """Return a file whose bytes are here, and None for another: it is opened in its current version."""
    return found if found is not None and (found.content is not None or not found.info.size_bytes) else None


def _bytes_of(data: memoryview) -> memoryview:
    return data
