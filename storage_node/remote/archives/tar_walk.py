"""Walks of cold archives: which bytes of a tar or a zip to read to find its members, without the members' own bytes.

Headers of a tar are parsed in order, by the indexer of stored archives, which skips content. The place of a header is
known only from the one before, so that reading them one by one would take a round trip for each. Therefore *scouts* run
ahead: each begins somewhere in the tar, searches the first header there, and follows from header to header. What a
scout reads is used when the parser comes there. What it takes for a header need not be one: it decides only what is
read, never what is found.

The amount that is read at a header adapts: small members are read through, large ones passed over. A walk that would
cost more than it saves is given up (`is_too_dear`).

The directory of a zip, at its end, is parsed as that of a stored one. The local header of a member is compared with it
when the member is read (`cold_index`).

Pure: the caller reads what a tar walk has `wanted`, and adds it. `index_directory` raises MissingBytes for what has to
be read first, and is called again. A walk belongs to one thread at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ais_loader.errors import ArchiveDamaged, ArchiveError, ArchiveTooLarge
from ais_loader.wire.cold_reads import near_ranges
from storage_node.remote.archives.sparse_source import SparseSource
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.kinds import MAGIC_BYTES, ArchiveKind, recognise
from storage_node.store.archives.member import DEFAULT_LIMITS, STORED, ArchiveLimits
from storage_node.store.archives.table import MemberTable
from storage_node.store.archives.tar_header import BLOCK_BYTES, ZERO_BLOCK, padded, parse_header
from storage_node.store.archives.tar_index import TarIndexer
from storage_node.store.archives.zip_directory import find_directory, method_of, read_entries

REQUEST_BYTES = 16 << 10
"""A request costs as much as reading this many bytes."""
MOST_REQUESTS = 2048
MOST_BYTES = 64 << 20
"""Limits of one walk."""
SCOUTS = 24
"""Requests at once: of the parser and the scouts."""
_SEARCH_SHARE = 0.03
"""Share of the tar that all scouts together may read to find their first headers: each reads half a member, about."""
_LEARNED = 6
"""Windows after which scouts begin, and the cost of the whole walk is estimated: the size of members is known then."""
_SLACK = 1.25
"""How far the cost, and its estimate, may exceed what is allowed: a walk is not given up shortly before its end."""
_LEAST_WINDOW, _FIRST_WINDOW, _MOST_WINDOW = 1 << 10, 4 << 10, 64 << 10
_MOST_SEARCH_STEP = 512 << 10
_WRONG_HINTS = 4
"""Wrong hints after which all are dropped."""


@dataclass(slots=True)
class _Scout:
    at: int
    """Offset of the next header; while searching, of the next block to look at."""
    stop: int
    """Where the part of the next scout begins."""
    searched_bytes: int = 0
    is_searching: bool = True
    passed_bytes: int = 0
    """Bytes that it has passed from its first header on."""
    has_ended: bool = False
    is_hint: bool = False


class TarWalk:
    """
    Args:
        size_bytes: Size of the tar.
        name: Its name.
        share: Share of its bytes that the walk may cost, requests included.
        hints: Offsets at which headers probably are, ascending.
    """

    def __init__(self, name: str, size_bytes: int, *, share: float, hints: Sequence[int] = ()) -> None:
        self._name, self._size = name, size_bytes
        self._allowed_bytes = int(share * size_bytes)
        self._known = SparseSource(size_bytes)
        self._indexer = TarIndexer()
        self._at = 0
        self._window = _FIRST_WINDOW
        self._scouts: list[_Scout] = []
        self._are_out = False
        self._wrong_hints = 0
        self._parsed_windows = 0
        self._spacing_bytes = 0
        """Bytes that one request passes, about; 0 while this is unknown."""
        self.requests = 0
        self.read_bytes = 0
        """Requests and bytes that were wanted so far."""
        self._search_requests = self._search_bytes = 0
        """Those of them that were to find the first headers of scouts."""
        if hints:
            self._are_out = True
            stops = [*hints[1:], size_bytes]
            self._scouts = [
                _Scout(at, stop, is_searching=False, is_hint=True) for at, stop in zip(hints, stops, strict=True) if at
            ]

    @property
    def is_complete(self) -> bool:
        """Whether all headers were parsed, and `finish` can be called."""
        return self._at >= self._size

    @property
    def is_too_dear(self) -> bool:
        """Whether fetching the tar costs less, as far as can be told."""
        spent_bytes = self.read_bytes + self.requests * REQUEST_BYTES
        if spent_bytes > _SLACK * self._allowed_bytes or self.read_bytes > MOST_BYTES or self.requests > MOST_REQUESTS:
            return True
        if self.requests - self._search_requests < _LEARNED:
            return False
        requests, read_bytes = self.requests - self._search_requests, self.read_bytes - self._search_bytes
        share = _SLACK * self._passed_bytes() / self._size
        return read_bytes + requests * REQUEST_BYTES > share * self._allowed_bytes or requests > share * MOST_REQUESTS

    def wanted(self) -> list[tuple[int, int]]:
        """Return the ranges (start, stop) to read next, at once. Empty when the walk is complete, or too dear."""
        if self.is_complete or self.is_too_dear:
            return []
        if not self._are_out and self._parsed_windows >= _LEARNED:
            self._send_out()
        walked = [(self._at, self._at + self._window)]
        searched: list[tuple[int, int]] = []
        for scout in self._scouts:
            if len(walked) + len(searched) >= SCOUTS:
                break
            if scout.has_ended:
                continue
            if scout.is_searching:
                searched.append((scout.at, scout.at + self._search_step()))
            else:
                walked.append((scout.at, scout.at + self._window))
        wanted = self._unknown(walked)
        searches = self._unknown(searched)
        self._search_requests += len(searches)
        self._search_bytes += _bytes_of(searches)
        wanted += searches
        self.requests += len(wanted)
        self.read_bytes += _bytes_of(wanted)
        return wanted

    def _drop_hints(self) -> None:
        """Go on as if there had been no hints, apart from what they have cost."""
        self._scouts, self._are_out, self._wrong_hints = [], False, 0
        self._search_requests, self._search_bytes = self.requests, self.read_bytes

    def _unknown(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return what of these ranges is unknown, joined where they meet."""
        cut = [(self._known.known_from(start), min(stop, self._size)) for start, stop in ranges]
        found = near_ranges([one for one in cut if one[0] < one[1]], gap_bytes=0, most_bytes=MOST_BYTES)
        return [(one.start, one.stop) for one in found]

    def add(self, start: int, data: bytes | memoryview) -> None:
        """Add the bytes of a range that was wanted."""
        self._known.add(start, data)

    def advance(self) -> None:
        """Go on as far as bytes are known. Raises what the indexer raises, NotAnArchive."""
        self._parse()
        for scout in self._scouts:
            if not scout.has_ended:
                self._follow(scout)
        if self._wrong_hints >= _WRONG_HINTS:
            self._drop_hints()
        self._scouts = [scout for scout in self._scouts if not (scout.has_ended and scout.stop <= self._at)]

    def finish(self) -> MemberIndex:
        """Return the index, whose members have no checksums. Raises ArchiveDamaged for a tar that is truncated."""
        return self._indexer.finish()

    def _parse(self) -> None:
        if not self._at:
            recognise(self._name, self._known.pread(MAGIC_BYTES, 0))
        window_start, headers_stop = self._at, self._at
        while self._at < self._size:
            if skipped := min(self._indexer.skippable_bytes, self._size - self._at):
                self._indexer.skip(skipped)
                self._at += skipped
                continue
            stop = min(self._at + self._indexer.needed_bytes, self._known.known_from(self._at))
            if stop <= self._at:
                break
            self._indexer.feed(self._known.pread(stop - self._at, self._at))
            self._at = headers_stop = stop
        if headers_stop - window_start <= self._window and self._at < self._size:
            self._parsed_windows += 1
            self._adapt(headers_stop - window_start, self._at - headers_stop)
        self._known.drop_before(self._at)

    def _adapt(self, used_bytes: int, gap_bytes: int) -> None:
        """Adapt the window to the bytes of headers that were in one, and to the distance of the next header."""
        if gap_bytes < REQUEST_BYTES:
            self._window = min(2 * self._window, _MOST_WINDOW)
        elif used_bytes <= self._window // 4:
            self._window = max(self._window // 2, _LEAST_WINDOW)

    def _send_out(self) -> None:
        self._are_out = True
        spacing = self._spacing_bytes = max(BLOCK_BYTES, self._at // self._parsed_windows)
        count = min(SCOUTS - 1, int(2 * _SEARCH_SHARE * self._size / spacing))
        step = (self._size - self._at) // (count + 1) // BLOCK_BYTES * BLOCK_BYTES
        if count and step > 4 * spacing:
            starts = [self._at + step * number for number in range(1, count + 1)]
            self._scouts = [_Scout(at, stop) for at, stop in zip(starts, [*starts[1:], self._size], strict=True)]

    def _search_step(self) -> int:
        return min(_MOST_SEARCH_STEP, max(_FIRST_WINDOW, padded(self._spacing_bytes // 4)))

    def _passed_bytes(self) -> int:
        ahead = (scout.at - max(scout.at - scout.passed_bytes, self._at) for scout in self._scouts)
        return min(self._size, self._at + sum(max(0, passed_bytes) for passed_bytes in ahead))

    def _follow(self, scout: _Scout) -> None:
        if scout.at < self._at:
            scout.has_ended = True  # the parser has overtaken it
        elif scout.is_searching:
            self._search(scout)
        while not scout.is_searching and not scout.has_ended:
            if scout.at >= scout.stop:
                scout.has_ended = True
                return
            block = self._block(scout.at)
            if block is None:
                return
            length = _entry_bytes(block, scout.at)
            if not length:
                scout.has_ended = True
                self._wrong_hints += scout.is_hint and not scout.passed_bytes
                return
            scout.at += length
            scout.passed_bytes += length

    def _search(self, scout: _Scout) -> None:
        while (block := self._block(scout.at)) is not None:
            if block[257:262] == b"ustar" and _entry_bytes(block, scout.at):
                scout.is_searching = False
                return
            scout.at += BLOCK_BYTES
            scout.searched_bytes += BLOCK_BYTES
        scout.has_ended = scout.searched_bytes > 4 * self._spacing_bytes or scout.at >= scout.stop

    def _block(self, at: int) -> bytes | None:
        if self._known.known_from(at) < at + BLOCK_BYTES:
            return None
        return self._known.pread(BLOCK_BYTES, at)


def _entry_bytes(block: bytes, at: int) -> int:
    """Return the size of a header and its content; 0 if this is no header, or the end of the tar."""
    if block == ZERO_BLOCK:
        return 0
    try:
        return BLOCK_BYTES + padded(parse_header(block, at).size_bytes)
    except ArchiveError:
        return 0


def _bytes_of(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(stop - start for start, stop in ranges)


TAIL_BYTES = 128 << 10
"""Bytes to read from the end first: the longest comment, and the directory of about a thousand members."""


def index_directory(source: SparseSource, limits: ArchiveLimits = DEFAULT_LIMITS) -> MemberIndex:
    """Index a zip by its directory. The offset of a member is that of its local header; its checksum is its CRC-32.

    Raises MissingBytes, and what indexing a stored zip raises: ArchiveDamaged, ArchiveUnsupported, ArchiveTooLarge.
    """
    directory = find_directory(source, limits)
    source.pread(directory.size_bytes, directory.at)  # all of it is missing together, and not piece by piece
    allowed, total = limits.unpacked_bytes(source.size_bytes), 0
    table = MemberTable(limits)
    starts, ends = array("Q"), array("Q")
    for entry in read_entries(source, directory):
        if not entry.is_file:
            table.add_other(entry.name.rstrip(b"/"))
            continue
        method = method_of(entry, directory)
        total += entry.size_bytes
        if total > allowed:
            raise ArchiveTooLarge(f"byte {entry.at}: the zip claims to unpack to more than {allowed} bytes; a bomb?")
        if method == STORED and entry.packed_bytes != entry.size_bytes:
            raise ArchiveDamaged(f"byte {entry.at}: a stored member takes another number of bytes than it has")
        starts.append(entry.header_at)
        ends.append(entry.header_at + entry.packed_bytes)
        table.add_file(entry.name, entry.header_at, entry.size_bytes, entry.crc32, entry.packed_bytes, method)
    begins, stops = np.array(starts, np.uint64), np.array(ends, np.uint64)
    by_place = np.argsort(begins)
    if (stops[by_place][:-1] > begins[by_place][1:]).any() or (len(stops) and int(stops.max()) > directory.at):
        raise ArchiveDamaged(f"byte {directory.at}: by its directory, members of the zip overlap")
    return MemberIndex.of(table.finish(), ArchiveKind.ZIP, source.size_bytes)
