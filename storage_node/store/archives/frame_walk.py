"""Frame parser for a sequence of compressed frames that arrives in chunks of any size; it reassembles the parts.

zstd and lz4 share this structure: a magic number, a header, blocks that start with their length, and an optional
trailer. Skippable frames between them have the same form in both. The subclass for each format interprets the parts.

Source: RFC 8878, 3.1; LZ4 frame format description 1.6.4.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from enum import IntEnum

from ais_loader.errors import ArchiveDamaged
from storage_node.store.archives.inflating import Decoder
from storage_node.store.archives.kinds import is_skippable
from storage_node.store.archives.member import DEFAULT_LIMITS, ArchiveLimits

_MAGIC_BYTES = 4


class Part(IntEnum):
    """Kind of the part that is being collected."""

    MAGIC = 0
    HEADER = 1
    BLOCK = 2
    DATA = 3
    TRAILER = 4
    SKIPPABLE = 5
    SKIPPED = 6


class FrameWalk(Decoder):
    """Base class of the frame parsers. A subclass announces the next part with `_expect`."""

    format_name: str

    def __init__(self, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._held = bytearray()
        self._part, self._need = Part.MAGIC, _MAGIC_BYTES
        self._any = False
        """True after a frame that is not skippable."""
        self._at = 0
        """Offset at which the held bytes begin."""
        self._skip = 0

    def _expect(self, part: Part, length: int = _MAGIC_BYTES) -> None:
        self._part, self._need = part, length

    def _feed(self, view: memoryview) -> Iterator[bytes]:
        position = 0
        while position < len(view):
            if self._part is Part.SKIPPED:
                step = min(self._skip, len(view) - position)
                self._skip -= step
                self._at += step
                position += step
                if not self._skip:
                    self._expect(Part.MAGIC)
                continue
            step = min(self._need - len(self._held), len(view) - position)
            self._held += view[position : position + step]
            position += step
            if len(self._held) < self._need:
                return
            if self._part is Part.HEADER and (longer := self._header_bytes(self._held)) > self._need:
                self._need = longer
            elif piece := self._take():
                yield piece

    def finish(self) -> None:
        if self._part is not Part.MAGIC or self._held or not self._any:
            raise ArchiveDamaged(f"byte {self.packed_bytes}: the {self.format_name} stream ends too early")

    def _take(self) -> bytes:
        """Process the held bytes, which form a complete part."""
        piece, at = bytes(self._held), self._at
        self._at += len(piece)
        self._held.clear()
        if self._part is Part.SKIPPABLE:
            self._skip = int.from_bytes(piece, "little")
            self._expect(Part.SKIPPED if self._skip else Part.MAGIC)
            return b""
        if self._part is Part.MAGIC and is_skippable(piece):
            self._expect(Part.SKIPPABLE, 4)
            return b""
        return self._took(piece, at)

    @abstractmethod
    def _header_bytes(self, header: bytearray) -> int:
        """Return the length of a frame's header, given its first bytes."""

    @abstractmethod
    def _took(self, piece: bytes, at: int) -> bytes:
        """Process one part, found at byte `at`: announce the next one and return the decompressed bytes. Raises as
        `feed`."""
