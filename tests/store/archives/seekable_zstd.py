"""Seekable zstd writer: rewrites a tar as independent frames with a seek table, for shards that came in one frame.

A frame ends at the border of a member once it is large enough, so that a small member lies in one frame. It always ends
before it becomes too large. Standard tools read the result as an ordinary tar.zst; tools that support the seekable
format find frames by the table.

Source: zstd's contrib/seekable_format/zstd_seekable_compression_format.md, version 0.1.0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ais_loader.errors import LibraryMissing
from ais_loader.extras import needs
from storage_node.store.archives.member import DEFAULT_LIMITS, ArchiveLimits
from storage_node.store.archives.tar_index import TarIndexer

if TYPE_CHECKING:
    from typing_extensions import Buffer

MIN_FRAME_BYTES = 16 << 10
MAX_FRAME_BYTES = 256 << 10
SKIPPABLE_MAGIC = 0x184D2A5E
SEEKABLE_MAGIC = 0x8F92EAB1
MAX_FRAMES = 0x8000000

_ENTRY = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")


def reframe(
    chunks: Iterable[Buffer],
    *,
    level: int = 3,
    min_frame_bytes: int = MIN_FRAME_BYTES,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    limits: ArchiveLimits = DEFAULT_LIMITS,
) -> Iterator[bytes]:
    """Iterate over the frames of the tar in `chunks`, and finally the seek table. One frame is held in memory at a
    time.

    For a compressed tar pass `inflating.unpacked(kind, chunks)`. A tar of more than MAX_FRAMES frames gets no table.

    Raises as TarIndexer.feed and finish do, if the input is not a tar; LibraryMissing without zstandard.
    """
    with needs("zstandard", "re-framing", LibraryMissing):
        import zstandard
    if not 0 < min_frame_bytes <= max_frame_bytes:
        raise ValueError(f"frames of {min_frame_bytes} to {max_frame_bytes} bytes")
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
    table = bytearray()

    def pack(frame: bytes) -> bytes:
        packed = compressor.compress(frame)
        table.extend(_ENTRY.pack(len(packed), len(frame)))
        return packed

    for frame in _cut(chunks, min_frame_bytes, max_frame_bytes, limits):
        yield pack(frame)
    frames = len(table) // _ENTRY.size
    if frames <= MAX_FRAMES:
        table += _FOOTER.pack(frames, 0, SEEKABLE_MAGIC)
        yield struct.pack("<II", SKIPPABLE_MAGIC, len(table)) + table


def _cut(chunks: Iterable[Buffer], least: int, most: int, limits: ArchiveLimits) -> Iterator[bytes]:
    parser = TarIndexer(limits)
    held = bytearray()
    held_at = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), least):
            # Steps of `least` bytes: borders within one step are too near to each other to cut at each.
            step = view[start : start + least]
            parser.feed(step)
            held += step
            border = parser.border_bytes - held_at
            while border >= least or len(held) >= most:
                cut = border if least <= border <= most else most
                if cut > len(held):
                    break
                yield bytes(held[:cut])
                del held[:cut]
                held_at += cut
                border = parser.border_bytes - held_at
    parser.finish()
    if held:
        yield bytes(held)
