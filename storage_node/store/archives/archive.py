"""Archive interface shared by all kinds: builds the index of an archive's members, then reads them.

`ShardIndexer` and `index_shard` build an index in one pass over the shard, either as its bytes arrive or from its file.
`Archive` reads by name or by Member. In a tar, and for stored members of a zip, a member is a range of the file
(`file_range`), which callers may read like any other range. Every other member is decompressed from the nearest restart
point. A shard whose restart points are too far apart `needs_copy` (unpack_cache.py) and is then read as a plain tar.

The plan of a tar.zst or tar.lz4 has three columns: the offset of each point in the file, its offset in the content, and
its flags. The plan of a tar.gz is described in gzip_points.py. Reading a member decompresses from the preceding point
on, so the longest stretch between two points bounds the cost of one member.

Threads: an Archive and a view may be used from any number of threads; an indexer belongs to one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ais_loader.errors import ArchiveDamaged, ArchiveIndexError, ArchiveTooLarge, ArchiveUnsupported, MemberCorrupt
from storage_node.store.archives.gzip_points import GzipPoints, build_gzip_points
from storage_node.store.archives.index import MemberIndex
from storage_node.store.archives.inflating import Decoder, GzipDecoder, RestartPoints
from storage_node.store.archives.kinds import MAGIC_BYTES, ArchiveKind, recognise
from storage_node.store.archives.member import DEFAULT_LIMITS, STORED, ArchiveLimits, Member, require_readable
from storage_node.store.archives.source import ByteSource, chunks_of, range_within, read_exactly
from storage_node.store.archives.tar_index import TarIndexer
from storage_node.store.archives.zip_index import index_zip, unpack
from storage_node.store.checksum import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ShardIndexer:
    """Indexer of a shard whose bytes are streamed through it, as in a PUT. A zip is only read in `finish`."""

    def __init__(self, name: str, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        self._name, self._limits = name, limits
        self._head = bytearray()
        self._size = 0
        self._kind: ArchiveKind | None = None
        self._tar = TarIndexer(limits)

    def feed(self, chunk: Buffer) -> None:
        """Index the next bytes.

        Raises NotAnArchive, ArchiveDamaged, ArchiveUnsupported, ArchiveTooLarge or LibraryMissing if the shard cannot
        be indexed. It is stored nevertheless.
        """
        view = memoryview(chunk).cast("B")
        self._size += len(view)
        if self._kind is not None:
            self._pass_on(view)
            return
        self._head += view
        if len(self._head) >= MAGIC_BYTES:
            self._begin()

    def finish(self, source: ByteSource) -> MemberIndex:
        """Return the index. `source` is the shard as it was stored. Raises as `feed` does."""
        if self._kind is None:
            self._begin()
        kind = self._kind
        assert kind is not None
        if source.size_bytes != self._size:
            raise ArchiveDamaged(f"the shard has {source.size_bytes} bytes, {self._size} have passed by")
        if kind is ArchiveKind.ZIP:
            return index_zip(source, self._limits)
        if kind is ArchiveKind.TAR:
            return self._tar.finish()
        self._decoder.finish()
        index = self._tar.finish()
        if kind is ArchiveKind.TAR_GZ:
            return index.with_plan(kind, build_gzip_points(source, index.content_bytes))
        return index.with_plan(kind, encode_points(self._decoder.points))

    def _begin(self) -> None:
        self._kind = recognise(self._name, bytes(self._head[:MAGIC_BYTES]))
        if self._kind.is_compressed_tar:
            self._decoder = decoder_for(self._kind, self._limits)
        self._pass_on(memoryview(bytes(self._head)))
        self._head.clear()

    def _pass_on(self, view: memoryview) -> None:
        if self._kind is ArchiveKind.TAR:
            self._tar.feed(view)
        elif self._kind is not ArchiveKind.ZIP:
            for piece in self._decoder.feed(view):
                self._tar.feed(piece)


def index_shard(source: ByteSource, name: str, limits: ArchiveLimits = DEFAULT_LIMITS) -> MemberIndex:
    """Index a shard that is already stored. Raises as ShardIndexer does."""
    indexer = ShardIndexer(name, limits)
    if recognise(name, source.pread(MAGIC_BYTES, 0)) is ArchiveKind.ZIP:
        return index_zip(source, limits)
    for chunk in chunks_of(source):
        indexer.feed(chunk)
    return indexer.finish(source)


class Archive:
    """One shard and its index."""

    def __init__(self, source: ByteSource, index: MemberIndex, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        """`source` must be what `index` was built from. MemberIndex.open checks that for files.

        Raises ArchiveIndexError, LibraryMissing.
        """
        self.source, self.index, self.limits = source, index, limits
        self._view: View | None = None
        if index.kind is ArchiveKind.TAR_GZ:
            self._view = GzipPoints(source, index.plan, index.content_bytes)
        elif index.kind.is_compressed_tar:
            self._view = RestartView(source, index.kind, index.plan, index.content_bytes, limits)
        elif index.content_bytes != source.size_bytes:
            raise ArchiveIndexError(f"the shard has {source.size_bytes} bytes, its index is of {index.content_bytes}")

    @property
    def is_plain(self) -> bool:
        """Whether every member is a range of the file, at its offset."""
        return self.index.kind is ArchiveKind.TAR

    @property
    def stretch_bytes(self) -> int:
        """Maximum number of bytes decompressed before a member of a compressed tar; 0 for other kinds."""
        return self._view.stretch_bytes if self._view else 0

    @property
    def needs_copy(self) -> bool:
        """Whether members should be read from a decompressed copy (`on_copy`). Reading without one still works."""
        return self.stretch_bytes > MAX_STRETCH_BYTES

    def content(self) -> Iterator[bytes]:
        """Iterate over the uncompressed tar in pieces: the contents of a decompressed copy."""
        chunks = chunks_of(self.source)
        if not self.index.kind.is_compressed_tar:
            return chunks
        # Indexing has already ruled out a bomb, but it may have used different chunks.
        limits = replace(self.limits, free_bytes=max(1, self.index.content_bytes))
        return _readable_before(unpacked(self.index.kind, chunks, limits))

    def on_copy(self, copy: ByteSource) -> Archive:
        """Return an archive with the same members that reads from a copy of `content`."""
        return Archive(copy, self.index.with_plan(ArchiveKind.TAR, b""), self.limits)

    def file_range(self, member: Member) -> tuple[int, int] | None:
        """Offset and length of the member's bytes in the file, or None if they are compressed."""
        if self._view is None and member.method == STORED:
            return member.offset_bytes, member.size_bytes
        return None

    def pieces(self, member: Member, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Iterate over a range of a member, in pieces of at most a few MiB.

        A whole member is verified: its last piece is yielded only if the checksum matches. A range is verified only by
        the checksums of its compression format; see `verify`.

        Raises:
            RangeError: the range is not within the member; nothing was read.
            MemberCorrupt: the bytes differ from those that were indexed.
            ArchiveDamaged: they cannot be decompressed.
            ArchiveUnsupported: the member is only listed.
        """
        require_readable(member)
        start, stop = range_within(member.size_bytes, start, length)
        pieces = self._pieces(member, start, stop)
        return self._verified(member, pieces) if stop - start == member.size_bytes else pieces

    def verify(self, member: Member) -> None:
        """Compare the whole member with its checksum, in bounded memory. Call it before reading a range that must be
        correct.

        Raises as `pieces` does.
        """
        for _ in self.pieces(member):
            pass

    def _pieces(self, member: Member, start: int, stop: int) -> Iterator[bytes]:
        if self._view is not None:
            return _readable_before(self._view.pieces(member.offset_bytes + start, member.offset_bytes + stop))
        if member.method == STORED:
            return chunks_of(self.source, member.offset_bytes + start, member.offset_bytes + stop)
        return self._inflated(member, start, stop)

    def _inflated(self, member: Member, start: int, stop: int) -> Iterator[bytes]:
        """Inflate a deflated member. Its only restart point is its beginning."""
        at = 0
        for piece in unpack(self.source, member.offset_bytes, member.packed_bytes, member.size_bytes, member.method):
            if at + len(piece) > start:
                yield piece[max(0, start - at) : stop - at]
            at += len(piece)
            if at >= stop < member.size_bytes:
                return

    @staticmethod
    def _verified(member: Member, pieces: Iterator[bytes]) -> Iterator[bytes]:
        checksum, held, size = 0, b"", 0
        for piece in pieces:
            if held:
                yield held
            checksum, held = crc32c(piece, checksum), piece
            size += len(piece)
        if checksum != member.checksum or size != member.size_bytes:
            raise MemberCorrupt(
                f"{member.name!r}: {size} bytes have the CRC-32C {checksum:08x}, the index says {member.checksum:08x}"
            )
        if held:
            yield held


def _readable_before(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Iterate over pieces of an indexed archive. Indexing has read all of it, so a variant of the format that cannot be
    read, or that is too large, is damage."""
    try:
        yield from pieces
    except (ArchiveUnsupported, ArchiveTooLarge) as error:
        raise ArchiveDamaged(f"the bytes are not those that were indexed: {error}") from None


def decoder_for(kind: ArchiveKind, limits: ArchiveLimits = DEFAULT_LIMITS) -> Decoder:
    """Create the decoder of a compressed tar. Raises LibraryMissing if the compression library is not installed."""
    if kind is ArchiveKind.TAR_GZ:
        return GzipDecoder(limits)
    if kind is ArchiveKind.TAR_ZST:
        from storage_node.store.archives.zstd_frames import ZstdDecoder  # its library is an extra

        return ZstdDecoder(limits)
    if kind is ArchiveKind.TAR_LZ4:
        from storage_node.store.archives.lz4_frames import Lz4Decoder

        return Lz4Decoder(limits)
    raise ValueError(f"{kind.name} is no compressed tar")


def unpacked(kind: ArchiveKind, chunks: Iterable[Buffer], limits: ArchiveLimits = DEFAULT_LIMITS) -> Iterator[bytes]:
    """Iterate over the tar inside a compressed one, in pieces. Raises as `Decoder.feed` and `finish` do."""
    decoder = decoder_for(kind, limits)
    for chunk in chunks:
        yield from decoder.feed(chunk)
    decoder.finish()


MAX_STRETCH_BYTES = 16 << 20
"""Maximum stretch between restart points. A shard with longer ones is served from a decompressed copy."""
ONE_FRAME_BYTES = 4 << 20
"""Frames up to this size are decompressed by one call."""

_SPARE_BYTES = 64 << 10
_COUNT = struct.Struct("<Q")


class View(Protocol):
    """The uncompressed tar inside a compressed one, by positioned reads."""

    stretch_bytes: int
    """Maximum number of bytes read or decompressed before the requested range. A file may contain many blocks that
    decompress to nothing."""

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        """Iterate over bytes start .. stop-1 of the tar, in pieces of at most a few MiB.

        Raises ArchiveDamaged if the file no longer contains them.
        """
        ...


def encode_points(points: RestartPoints) -> bytes:
    packed_at, content_at = (np.array(column, "<u8").tobytes() for column in (points.packed_at, points.content_at))
    return _COUNT.pack(len(points.flags)) + packed_at + content_at + bytes(points.flags)


class RestartView:
    """View of a tar.zst or tar.lz4."""

    def __init__(
        self, source: ByteSource, kind: ArchiveKind, plan: memoryview, content_bytes: int, limits: ArchiveLimits
    ) -> None:
        self._source, self._kind = source, kind
        self._limits = replace(limits, free_bytes=max(1, content_bytes))  # indexing has ruled out a bomb
        count = _COUNT.unpack_from(plan)[0] if len(plan) >= _COUNT.size else 0
        if not count or len(plan) != _COUNT.size + 17 * count:
            raise ArchiveIndexError(f"the restart points of a compressed tar do not take {len(plan)} bytes")
        # Reading integers from a memoryview is several times faster than from an array.
        columns = plan[_COUNT.size : _COUNT.size + 16 * count].cast("Q")
        self._packed, self._contents = columns[:count], columns[count:]
        self._flags = plan[_COUNT.size + 16 * count :]
        self._content_bytes = content_bytes
        packed = np.append(np.frombuffer(plan, "<u8", count, _COUNT.size), np.uint64(source.size_bytes))
        content = np.append(np.frombuffer(plan, "<u8", count, _COUNT.size + 8 * count), np.uint64(content_bytes))
        if content[0] != 0 or (packed[1:] < packed[:-1]).any() or (content[1:] < content[:-1]).any():
            raise ArchiveIndexError("the restart points of a compressed tar are not in order, or outside of it")
        # After the last point there may be the seek table, which is never read.
        self.stretch_bytes = int(max(np.diff(content).max(), np.diff(packed[:-1]).max(initial=0)))

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        while start < stop:
            row = bisect_right(self._contents, start) - 1
            content_at, content_stop = self._contents[row], self._end(self._contents, row + 1, self._content_bytes)
            packed_at, packed_stop = self._packed[row], self._end(self._packed, row + 1, self._source.size_bytes)
            held, packed = content_stop - content_at, packed_stop - packed_at
            # The frame may be followed by frames to skip, such as a seek table.
            if self._kind is ArchiveKind.TAR_ZST and held <= ONE_FRAME_BYTES and packed <= 2 * held + _SPARE_BYTES:
                from storage_node.store.archives.zstd_frames import unpack_frame

                whole = unpack_frame(read_exactly(self._source, packed, packed_at), held)
                if whole is not None:
                    piece = whole[start - content_at : stop - content_at]
                    yield piece
                    start += len(piece)
                    continue
            yield from self._from_point(row, packed_at, content_at, start, stop)
            return

    @staticmethod
    def _end(column: Sequence[int] | memoryview, row: int, end: int) -> int:
        return column[row] if row < len(column) else end

    def _from_point(self, row: int, packed_at: int, at: int, start: int, stop: int) -> Iterator[bytes]:
        """Decompress from a restart point on, across the following ones."""
        decoder: Any
        if self._kind is ArchiveKind.TAR_ZST:
            from storage_node.store.archives.zstd_frames import ZstdDecoder

            decoder = ZstdDecoder(self._limits)
        else:
            from storage_node.store.archives.lz4_frames import Lz4Decoder

            decoder = Lz4Decoder(self._limits, self._flags[row])
        # The requested bytes end before the first point after them, so reading stops there.
        packed_stop = self._end(self._packed, bisect_left(self._contents, stop), self._source.size_bytes)
        for chunk in chunks_of(self._source, packed_at, packed_stop):
            for piece in decoder.feed(chunk):
                if at + len(piece) > start:
                    yield piece[max(0, start - at) : stop - at]
                at += len(piece)
                if at >= stop:
                    return
        raise ArchiveDamaged(f"byte {packed_stop}: what is packed here ends at byte {at} of the tar, not at {stop}")
