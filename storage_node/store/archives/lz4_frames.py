"""LZ4 frame decoder that works block by block. A block is at most 4 MiB, so every step is bounded and the offset of
every block is known.

In frames of independent blocks every block is a restart point; its flags say how to continue from there. In frames of
linked blocks a block refers to the preceding 64 KiB, so only the frame is a restart point. Checksums of blocks and
content are verified if the frame has them.

Source: LZ4 frame format description 1.6.4.
"""

from __future__ import annotations

from typing import Any

import xxhash

from ais_loader.errors import ArchiveDamaged, ArchiveUnsupported, LibraryMissing
from ais_loader.extras import needs
from storage_node.store.archives.frame_walk import FrameWalk, Part
from storage_node.store.archives.member import DEFAULT_LIMITS, ArchiveLimits

with needs("lz4", "lz4 archives", LibraryMissing):
    import lz4.block  # type: ignore[import-untyped]

MAGIC = b"\x04\x22\x4d\x18"
LEGACY_MAGIC = b"\x02\x21\x4c\x18"
HISTORY_BYTES = 64 << 10
POINT_GAP_BYTES = 16 << 10
_BLOCK_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}

# Flags of a restart point: it is before a frame, or before a block. In the second case they also contain the relevant
# fields of the frame's header, with the block size code (4 to 7) minus 4 in bits 5 and 6.
AT_FRAME = 0
_IN_FRAME, _BLOCK_SUMS, _CONTENT_SUM = 0x80, 0x10, 0x08


class Lz4Decoder(FrameWalk):
    format_name = "lz4"

    def __init__(self, limits: ArchiveLimits = DEFAULT_LIMITS, resume: int = AT_FRAME) -> None:
        """`resume`: the flags of the restart point at which the input will begin."""
        super().__init__(limits)
        self._linked = self._block_sums = self._content_sum = self._plain = False
        self._content: Any = None  # running xxh32, if the frame is read from its beginning
        self._stated: int | None = None
        self._frame_start = 0  # offset of the frame in the content
        self._max_block = 0
        self._history = b""
        self._size_flag = 0
        if resume & _IN_FRAME:
            self._begin_blocks(bool(resume & _BLOCK_SUMS), bool(resume & _CONTENT_SUM), 4 + (resume >> 5 & 3))

    def _begin_blocks(self, block_sums: bool, content_sum: bool, size_flag: int) -> None:
        self._block_sums, self._content_sum, self._size_flag = block_sums, content_sum, size_flag
        self._max_block = _BLOCK_BYTES[size_flag]
        self._any = True
        self._expect(Part.BLOCK, 4)

    def _header_bytes(self, header: bytearray) -> int:
        return 3 + (8 if header[0] & 8 else 0) + (4 if header[0] & 1 else 0)

    def _took(self, piece: bytes, at: int) -> bytes:
        if self._part is Part.MAGIC:
            self._take_magic(piece, at)
        elif self._part is Part.HEADER:
            self._take_header(piece, at)
        elif self._part is Part.BLOCK:
            self._take_block(int.from_bytes(piece, "little"), at)
        elif self._part is Part.DATA:
            return self._unpack(piece, at)
        else:
            self._end_frame(int.from_bytes(piece, "little"), at)
        return b""

    def _take_magic(self, magic: bytes, at: int) -> None:
        if magic == MAGIC:
            self.points.add(at, self.content_bytes, AT_FRAME, gap_bytes=POINT_GAP_BYTES)
            self._any = True
            self._expect(Part.HEADER, 2)
        elif magic == LEGACY_MAGIC:
            raise ArchiveUnsupported(f"byte {at}: a legacy lz4 frame; compress without -l")
        else:
            raise ArchiveDamaged(f"byte {at}: no lz4 frame begins here, but {magic!r}")

    def _take_header(self, header: bytes, at: int) -> None:
        flags, size_flag = header[0], header[1] >> 4 & 7
        if header[-1] != xxhash.xxh32_intdigest(header[:-1]) >> 8 & 0xFF:
            raise ArchiveDamaged(f"byte {at}: the lz4 frame's header does not match its checksum")
        if flags >> 6 != 1 or flags & 2 or header[1] & 0x8F or size_flag not in _BLOCK_BYTES:
            raise ArchiveUnsupported(f"byte {at}: an lz4 frame of another version of the format")
        if flags & 1:
            raise ArchiveUnsupported(f"byte {at}: the lz4 frame needs a dictionary; compress without one")
        self._linked = not flags & 0x20
        self._stated = int.from_bytes(header[2:10], "little") if flags & 8 else None
        self._content = xxhash.xxh32() if flags & 4 else None
        self._frame_start, self._history = self.content_bytes, b""
        self._begin_blocks(bool(flags & 0x10), bool(flags & 4), size_flag)

    def _take_block(self, word: int, at: int) -> None:
        if word == 0:  # the end mark
            if self._content_sum:
                self._expect(Part.TRAILER, 4)
            else:
                self._end_frame(None, at)
            return
        self._plain, size = bool(word >> 31), word & 0x7FFFFFFF
        if not 0 < size <= self._max_block:
            raise ArchiveDamaged(f"byte {at}: an lz4 block of {size} bytes in a frame of blocks of {self._max_block}")
        if not self._linked:
            flags = _IN_FRAME | self._size_flag - 4 << 5
            flags |= (_BLOCK_SUMS if self._block_sums else 0) | (_CONTENT_SUM if self._content_sum else 0)
            self.points.add(at, self.content_bytes, flags, gap_bytes=POINT_GAP_BYTES)
        self._expect(Part.DATA, size + 4 * self._block_sums)

    def _unpack(self, data: bytes, at: int) -> bytes:
        self._expect(Part.BLOCK, 4)
        if self._block_sums:
            data, stored = data[:-4], int.from_bytes(data[-4:], "little")
            if xxhash.xxh32_intdigest(data) != stored:
                raise ArchiveDamaged(f"byte {at}: the lz4 block does not match its checksum")
        piece = data
        if not self._plain:
            try:
                piece = lz4.block.decompress(data, uncompressed_size=self._max_block, dict=self._history)
            except lz4.block.LZ4BlockError as error:
                raise ArchiveDamaged(f"byte {at}: lz4: {error}") from None
        if self._linked:
            self._history = (self._history + piece)[-HISTORY_BYTES:]
        if self._content is not None:
            self._content.update(piece)
        return piece

    def _end_frame(self, stored: int | None, at: int) -> None:
        self._expect(Part.MAGIC)
        if self._content is not None and stored is not None and self._content.intdigest() != stored:
            raise ArchiveDamaged(f"byte {at}: the lz4 frame's content does not match its checksum")
        size = self.content_bytes - self._frame_start
        if self._stated is not None and self._stated != size:
            raise ArchiveDamaged(f"byte {at}: the lz4 frame holds {size} bytes, its header says {self._stated}")
        self._content = self._stated = None
        self._linked = False
