"""Streaming decompression in bounded steps: takes chunks of a compressed tar and yields pieces of the tar.

A decoder accepts any input and checks the size of everything it returns. A piece is at most a few MiB, whatever the
input claims. The total is at most what the limits allow for the packed size, which bounds the cost of a decompression
bomb. Restart points (positions at which decompression can begin) are collected on the way.

Threads: a decoder belongs to one thread.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge
from storage_node.store.archives.member import DEFAULT_LIMITS, ArchiveLimits

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 1 << 20
MIN_GAP_BYTES = 4 << 10
"""Minimum distance between restart points in the content. Nearer ones are not worth their space."""
MAX_EMPTY_BYTES = 1 << 20
"""Maximum packed distance over which MIN_GAP_BYTES applies: packed data may decompress to nothing."""
_STEP_BYTES = 32 << 10


class RestartPoints:
    """Restart points, ascending: offsets in the compressed file, and in the decompressed content."""

    def __init__(self) -> None:
        self.packed_at = array("Q")
        self.content_at = array("Q")
        self.flags = bytearray()

    def add(self, packed_at: int, content_at: int, flags: int = 0, *, gap_bytes: int = MIN_GAP_BYTES) -> None:
        """Add a point. It replaces a previous point at the same content offset, and is skipped if it is too near to the
        previous one."""
        if self.content_at and self.content_at[-1] == content_at:
            self.packed_at.pop(), self.content_at.pop(), self.flags.pop()
        elif (
            self.content_at
            and content_at - self.content_at[-1] < gap_bytes
            and packed_at - self.packed_at[-1] < MAX_EMPTY_BYTES
        ):
            return
        self.packed_at.append(packed_at)
        self.content_at.append(content_at)
        self.flags.append(flags)


class Decoder(ABC):
    """Base class of decoders of one compressed stream. Counts its input and output."""

    def __init__(self, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.packed_bytes = 0
        self.content_bytes = 0
        self.points = RestartPoints()

    def feed(self, chunk: Buffer) -> Iterator[bytes]:
        """Iterate over the pieces that this chunk completes. Consume all of them before feeding the next chunk.

        Raises:
            ArchiveDamaged: at the byte of the compressed file that the message names.
            ArchiveUnsupported: a variant of the format that is not supported.
            ArchiveTooLarge: it decompresses to more than its limits allow.
        """
        view = memoryview(chunk).cast("B")
        allowed = self.limits.unpacked_bytes(self.packed_bytes + len(view))
        for piece in self._feed(view):
            self.content_bytes += len(piece)
            if self.content_bytes > allowed:
                raise ArchiveTooLarge(
                    f"byte {self.packed_bytes}: {self.content_bytes} bytes have come out of at most "
                    f"{self.packed_bytes + len(view)}, more than {self.limits.expansion} times as many; a bomb?"
                )
            if piece:
                yield piece
        self.packed_bytes += len(view)

    @abstractmethod
    def _feed(self, view: memoryview) -> Iterator[bytes]: ...

    @abstractmethod
    def finish(self) -> None:
        """Raises ArchiveDamaged if the stream ended too early."""


class GzipDecoder(Decoder):
    """Decoder of consecutive gzip members (RFC 1952); zeros may follow the last. zlib checks CRC-32 and length."""

    def __init__(self, limits: ArchiveLimits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._started = False
        self._any = False

    def _feed(self, view: memoryview) -> Iterator[bytes]:
        # zlib copies its unused input. Small steps keep that copying from being quadratic for a file of tiny gzip
        # members.
        for start in range(0, len(view), _STEP_BYTES):
            yield from self._step(bytes(view[start : start + _STEP_BYTES]), self.packed_bytes + start)

    def _step(self, data: bytes, at: int) -> Iterator[bytes]:
        end = at + len(data)
        while True:
            if not self._started:
                data = data.lstrip(b"\0") if self._any else data
                if not data:
                    return
                self._started = True
            try:
                piece = self._inflater.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                where = end - len(data)
                raise ArchiveDamaged(f"after byte {where}: not the gzip data that it should be: {error}") from None
            yield piece
            if self._inflater.eof:
                data = self._inflater.unused_data
                self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
                self._started, self._any = False, True
            else:
                data = self._inflater.unconsumed_tail
                if not data and len(piece) < PIECE_BYTES:
                    return

    def finish(self) -> None:
        if self._started or not self._any:
            raise ArchiveDamaged(f"byte {self.packed_bytes}: the gzip stream ends too early")
