"""Streaming decompression in bounded steps: chunks of a compressed tar in, pieces of the tar out.

A decoder may be fed anything, and gives nothing it has not checked for size: a piece is at most a few MiB, whatever the
input claims, and the whole at most what the limits allow for its packed size, so that a bomb costs no more than that.
Restart points (where decompression can begin anew) fall off on the way.

Threads: a decoder belongs to one thread.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge
from storage_node.store.archives.kinds import ArchiveKind
from storage_node.store.archives.member import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES = 1 << 20
MIN_GAP_BYTES = 4 << 10
"""Restart points nearer to each other are not worth their bytes."""
MAX_EMPTY_BYTES = 1 << 20
"""But they are, where so much lies between that unpacks to nothing."""
_STEP_BYTES = 32 << 10


class RestartPoints:
    """Pairs of bytes, ascending: in the compressed file, and in what it unpacks to."""

    def __init__(self) -> None:
        self.packed_at = array("Q")
        self.content_at = array("Q")
        self.flags = bytearray()

    def add(self, packed_at: int, content_at: int, flags: int = 0, *, gap_bytes: int = MIN_GAP_BYTES) -> None:
        """Of points with nothing between them the last one counts; one too near to the last is left out."""
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
    """One compressed stream; counts what went in and came out."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.packed_bytes = 0
        self.content_bytes = 0
        self.points = RestartPoints()

    def feed(self, chunk: Buffer) -> Iterator[bytes]:
        """Pieces that this chunk completes; all of them must be taken before the next chunk.

        Raises:
            ArchiveDamaged: at the byte of the compressed file that the message names.
            ArchiveUnsupported: a variant of the format that we do not read.
            ArchiveTooLarge: it unpacks to more than its limits allow.
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
        """Raises ArchiveDamaged when the stream ended too early."""


class GzipDecoder(Decoder):
    """RFC 1952, members one after another; zeros may follow the last. CRC-32 and length are checked by zlib."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        super().__init__(limits)
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        self._started = False
        self._any = False

    def _feed(self, view: memoryview) -> Iterator[bytes]:
        # zlib copies the input that it leaves: small steps keep a file of tiny gzip members from costing its square.
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


def decoder_for(kind: ArchiveKind, limits: Limits = DEFAULT_LIMITS) -> Decoder:
    """For a compressed tar. Raises LibraryMissing when the library of that compression is not installed."""
    if kind is ArchiveKind.TAR_GZ:
        return GzipDecoder(limits)
    if kind is ArchiveKind.TAR_ZST:
        from storage_node.store.archives.zstd_frames import ZstdDecoder

        return ZstdDecoder(limits)
    if kind is ArchiveKind.TAR_LZ4:
        from storage_node.store.archives.lz4_frames import Lz4Decoder

        return Lz4Decoder(limits)
    raise ValueError(f"{kind.name} is no compressed tar")


def unpacked(kind: ArchiveKind, chunks: Iterable[Buffer], limits: Limits = DEFAULT_LIMITS) -> Iterator[bytes]:
    """The tar inside a compressed one, in pieces; raises as `Decoder.feed` and `finish` do."""
    decoder = decoder_for(kind, limits)
    for chunk in chunks:
        yield from decoder.feed(chunk)
    decoder.finish()
