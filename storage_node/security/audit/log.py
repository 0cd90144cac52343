"""Audit log: appends lines to a chain of files, from a thread of its own.

Callers hand over what a line is made of and go on. The thread makes the lines of all that has come meanwhile, and
writes them at once. A line is therefore in the kernel within some 10 milliseconds of its event: the end of the process
loses no more than that. A power cut loses what the kernel has not written yet: only a full file is synchronized, and
the last one when the node stops.

If a line cannot be written, as on a full drive, the node goes on. The line is lost and counted, and the next one that
can be written says how many were. So are the lines of a file that somebody removes or changes under the node.

The store's record keeps the end of the chain, which is synchronized before: when a file begins, every KEEP_S, and when
the node stops. The chain goes on from there also where the files are gone, so it has a gap.

A log on a drive that the node gives up goes on with its next line on another drive, in that drive's chain, as it does
after a start of the node. Nothing is written any more where the drive was: its folder may become a new drive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, takewhile
from pathlib import Path
from typing import Any, TypeAlias

from ais_loader.errors import LoaderError
from storage_node.security.audit.log_files import (
    CLOSE,
    FOLDER_NAME,
    OPEN,
    Link,
    cut_torn_end,
    encode,
    links_backwards,
    numbers_in,
    path_of,
)
from storage_node.settings.declarations import AuditSettings
from storage_node.store.files.growing_file import sync_folder
from storage_node.store.permissions import FOLDER_MODE, private
from storage_node.store.store import Store
from storage_node.store.store_record import AuditEnd

log = logging.getLogger(__name__)

COLLECT_S = 0.01
"""Time for which the thread collects lines before it writes them: waking it for each line would cost more than the
line."""
KEEP_S = 60.0
"""Longest time until the store's record has the end of the chain."""
MAX_WAITING = 1 << 20
"""Maximum number of entries of all lines that wait for the thread. Further lines are lost."""
Fields: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Place of a log: its folder, which is created if it is missing, and the end of the chain in the store's record."""

    folder: Path
    end: AuditEnd
    keep: Callable[[AuditEnd], object]
    """Replaces the end there. Raises LoaderError."""


class AuditLog:
    """The audit log of one node. `append` is for the node's event loop.

    Args:
        find_place: Returns where the log is now; None if nowhere any more, and it stays.
        node_uuid: The node's identity, which each line has.
        file_bytes: Size from which a file is full.
        files: Number of files that are kept.
        collect_s: See COLLECT_S.
    """

    def __init__(
        self,
        find_place: Callable[[], LogPlace | None],
        node_uuid: str,
        *,
        file_bytes: int,
        files: int,
        collect_s: float = COLLECT_S,
    ) -> None:
        self._find_place = find_place
        self._node_uuid = node_uuid
        self._file_bytes, self._files = file_bytes, files
        self._collect_s = collect_s
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ais-loader-audit")
        self._waiting: deque[tuple[float, int, Callable[[], Fields]]] = deque()
        self._scheduled = False
        self._arrived = self._taken = 0
        """Entries of all lines that were handed over, and that the thread has taken. Each has one writer."""
        self._refused = self._failed = self._told = 0
        """Lines that were lost before the thread took them, and because of errors; how many of both the log says."""
        self.lines = 0
        """Lines that were written."""
        # Of the thread.
        self._fd: int | None = None
        self._is_failing = False
        """Whether the last lines could not be written."""
        place = find_place()
        assert place is not None, "a log begins somewhere"
        self._begin_in(place)

    def _begin_in(self, place: LogPlace) -> None:
        self.folder, self._end, self._keep = place.folder, place.end, place.keep
        self._number = self._size_bytes = 0
        self._lines_before = self.lines
        """Lines that were written before the file was opened."""
        self._oldest, self._link = place.end.oldest, Link(place.end.seq, place.end.sum)
        self._is_running = False
        """Whether this run of the node has begun a file there."""

    @property
    def lost(self) -> int:
        """Lines that were not written."""
        return self._refused + self._failed

    def append(self, make: Callable[[], Fields], entries: int = 1) -> None:
        """Append a line, whose fields `make` returns; it is called on the log's thread.

        `entries`: number of objects that the line is about, which `make` keeps in memory.
        """
        if self._arrived - self._taken + entries > MAX_WAITING:
            self._refused += 1
            return
        self._arrived += entries
        self._waiting.append((time.time(), entries, make))
        if not self._scheduled:
            self._scheduled = True
            self._thread.submit(self._drain)

    def open(self) -> None:
        """Begin to log. A log that cannot be written is tried again with each line."""
        self._thread.submit(self._drain)

    async def keep_end(self) -> None:
        """Keep the end of the chain from time to time. Runs until cancelled."""
        while True:
            await asyncio.sleep(KEEP_S)
            self._thread.submit(self._keep_end)

    def close(self) -> None:
        """Write what is left, and that the node stops."""
        self._closing.set()
        self._thread.submit(self._finish)
        self._thread.shutdown()

    def _drain(self) -> None:
        if self._collect_s:
            self._closing.wait(self._collect_s)
        self._scheduled = False  # before the lines are taken: what comes later schedules again
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        self._taken += sum(entries for _, entries, _ in taken)
        made: list[Fields] = []
        for at_s, _, make in taken:
            try:
                made.append({"time": _time_text(at_s), **make()})
            except Exception:  # boundary of a thread: a bug in one line must not lose the others
                log.exception("a line of the audit log could not be made")
                self._failed += 1
        pending = len(made)
        try:
            self._require_open()
            self._write(made)
            pending = 0
            if self._size_bytes >= self._file_bytes:
                self._end_file()
                self._require_open()
        except OSError as error:
            self._failed += pending
            self._abandon(error)

    def _finish(self) -> None:
        self._drain()
        self._close_file()

    def _close_file(self) -> None:
        try:
            if self._fd is not None:
                self._write([{"time": _time_text(time.time()), "event": CLOSE}])
                self._keep_end()
                self._end_file()
        except OSError as error:
            self._abandon(error)

    def _follow_drives(self) -> None:
        """Go on in another folder if the drive of this one is not in use any more."""
        place = self._find_place()
        if place is not None and place.folder != self.folder:
            log.warning("the audit log goes on in %s, no longer in %s", place.folder, self.folder)
            self._close_file()
            self._begin_in(place)

    def _abandon(self, error: OSError) -> None:
        """Close the file after an error. The next line opens it again."""
        if not self._is_failing:  # on a full drive, once and not for each line
            log.warning("%s: lines of the audit log are lost: %s", self.folder, error)
        self._is_failing = True
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None

    def _end_file(self) -> None:
        assert self._fd is not None
        fd, self._fd = self._fd, None
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _require_open(self) -> None:
        """Open the newest file, or begin another one if that is full or gone. Raises OSError."""
        self._follow_drives()
        if self._fd is not None:
            if self._is_in_place(self._fd):
                return
            self._failed += self.lines - self._lines_before
            self._abandon(OSError(f"{path_of(self.folder, self._number).name} was removed or changed by somebody else"))
        # Later, parents that are missing are those of a drive that was taken away: it must find its place empty.
        self.folder.mkdir(mode=FOLDER_MODE, parents=not self._is_running, exist_ok=True)
        numbers = numbers_in(self.folder)
        self._link = self._last_link()
        number = max(1, self._number, *numbers)
        path = path_of(self.folder, number)
        torn_bytes = cut_torn_end(path)
        if path.exists() and path.stat().st_size >= self._file_bytes:
            number += 1
        self._remove_old(numbers, number)
        self._fd = private(path_of(self.folder, number), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._number, self._size_bytes, self._lines_before = number, os.fstat(self._fd).st_size, self.lines
        self._oldest = min(max(self._oldest or min(numbers, default=1), number - self._files + 1), number)
        if number not in numbers:
            sync_folder(self.folder)
        if self._is_running and self._size_bytes:
            return
        fields = {"time": _time_text(time.time()), "event": OPEN, "file": number, "oldest": self._oldest}
        fields["start"] = not self._is_running
        if torn_bytes:
            fields["cut_bytes"] = torn_bytes
        self._write([fields])
        self._is_running = True
        self._keep_end()

    def _is_in_place(self, fd: int) -> bool:
        """Return whether the open file is as it was written, and still has its name."""
        try:
            found = os.lstat(path_of(self.folder, self._number))
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(fd)) and found.st_size == self._size_bytes

    def _last_link(self) -> Link:
        """Return the end of the chain on the drive; the known one if the files lack that. Raises OSError."""
        known, links = self._link, links_backwards(self.folder)
        last = next(links, Link())
        if not known.seq or known in takewhile(lambda link: link.seq >= known.seq, chain([last], links)):
            return last
        log.error("%s: lines of the audit log were removed or changed, among them line %d", self.folder, known.seq)
        return known

    def _keep_end(self) -> None:
        end = AuditEnd(self._oldest, *self._link)
        if self._fd is None or end == self._end:
            return
        try:
            os.fsync(self._fd)
            self._keep(end)
            self._end = end
        except (OSError, LoaderError) as error:
            log.warning("%s: the store's record cannot keep the end of the audit log: %s", self.folder, error)

    def _remove_old(self, numbers: list[int], number: int) -> None:
        for one in numbers:
            if one <= number - self._files:
                path_of(self.folder, one).unlink(missing_ok=True)

    def _write(self, made: list[Fields]) -> None:
        """Write lines, all or none. Raises OSError."""
        assert self._fd is not None
        lost = self.lost
        if lost > self._told:
            now, begins = _time_text(time.time()), not self._size_bytes  # with the line of its opening
            told: Fields = {"time": now, "event": "lost", "lines": lost - self._told}
            made = [*made[:begins], told, *made[begins:]]
        link, encoded = self._link, []
        for fields in made:
            line, link = encode(link, {"node": self._node_uuid, **fields})
            encoded.append(line)
        data = memoryview(b"".join(encoded))
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size_bytes)
            raise
        self._link, self._is_failing = link, False
        self._size_bytes += len(data)
        self.lines += len(encoded)
        self._told = lost


def audit_log(settings: AuditSettings, store: Store, node_uuid: bytes) -> AuditLog | None:
    """Return the log of a node; None if nothing is logged. It is not open."""
    uuid = node_uuid.hex()

    def find_place() -> LogPlace | None:
        drive = next((drive for drive in store.drives if drive is not None), None)
        if settings.folder:
            folder = Path(settings.folder) / uuid
            place = str(folder)
        elif drive is None:
            return None
        else:
            folder, place = drive.root / FOLDER_NAME, drive.identity.drive_uuid
        end = store.record.current.audit.get(place, AuditEnd())
        return LogPlace(
            folder,
            end,
            lambda end: store.record.change(lambda record: record.changed(audit={**record.audit, place: end})),
        )

    if settings.level == "off" or find_place() is None:
        return None
    return AuditLog(find_place, uuid, file_bytes=settings.file_bytes, files=settings.files)


def _time_text(at_s: float) -> str:
    """Return a time as RFC 3339 has it, in UTC with milliseconds."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
