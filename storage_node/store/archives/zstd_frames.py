"""zstd frame decoder that parses frames block by block, so that every step is bounded and the offset of every frame is
known.

The library decompresses. The parser finds only the borders of frames and blocks (RFC 8878, 3.1.1), and passes one block
of at most 128 KiB at a time. Each frame is a restart point. The seekable format consists of such frames and a seek
table in a skippable frame at the end. The table is not needed, because one pass over the shard finds the same
information.
"""

from __future__ import annotations

import threading
from typing import Any

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge, ArchiveUnsupported, LibraryMissing
from ais_loader.extras import needs
from storage_node.store.archives.frame_walk import FrameWalk, Part
from storage_node.store.archives.member import DEFAULT_LIMITS, ArchiveLimits

with needs("zstandard", "zstd archives", LibraryMissing):
    import zstandard

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_BLOCK_BYTES = 128 << 10
_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_kept = threading.local()  # one per thread; creating it costs as much as decompressing a small frame


class ZstdDecoder(FrameWalk):
    format_name = "zstd"

    def __init__(self, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._library = zstandard.ZstdDecompressor(max_window_size=limits.window_bytes)
        self._frame: Any = None
        self._has_trailer = self._last = False

    def _header_bytes(self, header: bytearray) -> int:
        return 1 + _header_bytes(header[0])

    def _took(self, piece: bytes, at: int) -> bytes:
        if self._part is Part.MAGIC:
            if piece != MAGIC:
                raise ArchiveDamaged(f"byte {at}: no zstd frame begins here, but {piece!r}")
            self.points.add(at, self.content_bytes)
            self._frame = self._library.decompressobj(read_across_frames=False)
            self._any = True
            self._expect(Part.HEADER, 1)
        elif self._part is Part.HEADER:
            self._check_header(piece, at)
            self._has_trailer = bool(piece[0] & 4)
            self._expect(Part.BLOCK, 3)
        elif self._part is Part.BLOCK:
            self._take_block(int.from_bytes(piece, "little"), at)
        elif self._part is Part.DATA:
            self._end_block()
        else:
            self._expect(Part.MAGIC)
        return self._pass_on(piece, at)

    def _pass_on(self, data: bytes, at: int) -> bytes:
        try:
            piece = bytes(self._frame.decompress(data))
        except zstandard.ZstdError as error:
            raise ArchiveDamaged(f"byte {at}: zstd: {error}") from None
        if self._part is Part.MAGIC and data != MAGIC and not self._frame.eof:
            raise ArchiveDamaged(f"byte {at}: the zstd frame ends here, its content does not")
        return piece

    def _check_header(self, header: bytes, at: int) -> None:
        if header[0] & 8:
            raise ArchiveUnsupported(f"byte {at}: the zstd frame uses a reserved bit; a newer format?")
        if any(header[2 - (header[0] >> 5 & 1) :][: _DICTIONARY_BYTES[header[0] & 3]]):
            raise ArchiveUnsupported(f"byte {at}: the zstd frame needs a dictionary; compress without one")
        window = _window_bytes(header)
        if window > self.limits.window_bytes:
            raise ArchiveTooLarge(
                f"byte {at}: the zstd frame needs a window of {window} bytes, at most {self.limits.window_bytes} "
                "are given; compress without --long or --ultra"
            )

    def _take_block(self, header: int, at: int) -> None:
        self._last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == 3 or size > MAX_BLOCK_BYTES:
            raise ArchiveDamaged(f"byte {at}: no zstd block begins here")
        self._expect(Part.DATA, 1 if kind == 1 else size)  # run-length block: one octet
        if not self._need:
            self._end_block()

    def _end_block(self) -> None:
        if not self._last:
            self._expect(Part.BLOCK, 3)
        elif self._has_trailer:
            self._expect(Part.TRAILER, 4)
        else:
            self._expect(Part.MAGIC)


def _header_bytes(descriptor: int) -> int:
    """Return the length of a frame header after its descriptor byte."""
    single = descriptor >> 5 & 1
    size_flag = descriptor >> 6
    size_bytes = 1 if single and not size_flag else _SIZE_BYTES[size_flag]
    return (0 if single else 1) + _DICTIONARY_BYTES[descriptor & 3] + size_bytes


def _window_bytes(header: bytes) -> int:
    """Return the window size (RFC 8878, 3.1.1.1.2); the window of a single segment is its content."""
    if header[0] >> 5 & 1:
        size_flag = header[0] >> 6
        size = int.from_bytes(header[1 + _DICTIONARY_BYTES[header[0] & 3] :], "little")
        return size + 256 if size_flag == 1 else size
    least = 1 << 10 + (header[1] >> 3)
    return least + least // 8 * (header[1] & 7)


def unpack_frame(data: bytes, content_bytes: int) -> bytes | None:
    """Decompress one frame with one call if its header declares `content_bytes`; otherwise return None.

    Raises ArchiveDamaged.
    """
    try:
        if not content_bytes or zstandard.frame_content_size(data) != content_bytes:
            return None
        decompressor = getattr(_kept, "decompressor", None)
        if decompressor is None:
            decompressor = _kept.decompressor = zstandard.ZstdDecompressor()
        content: bytes = decompressor.decompress(data, max_output_size=content_bytes)
        return content
    except zstandard.ZstdError as error:
        raise ArchiveDamaged(f"a zstd frame: {error}") from None
