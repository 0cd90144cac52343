"""Answer check: whether a response is complete. Each entry arrives once and in its place, pieces are contiguous, and
END agrees.

Pure bookkeeping for any requester: a client's session, one part of a merged batch, or a node that gathers from its
peers. A violation raises FrameError; the caller knows what follows from it.

Shapes: n entries of the request.
"""

from __future__ import annotations

import numpy as np

from ais_loader.wire.batch_columns import entry_values
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import U8, U32, WIRE_U32, Frame, FrameError
from ais_loader.wire.generated import ais_batch_pb2 as pb

_OK_SEED = crc32c(bytes((pb.OK,)))


def digest(status: U8, checksum: U32) -> int:
    """Compute the digest that END carries. It is equal for equal responses, however they were cut into frames and
    whoever sent them.

    Both arrays are in index order and have shape (n,).
    """
    return crc32c(checksum.astype("<u4", copy=False).tobytes(), crc32c(status.tobytes()))


def digest_of_ok(checksum: int) -> int:
    """Compute the digest of one entry that is OK."""
    return crc32c(checksum.to_bytes(4, "little"), _OK_SEED)


def damaged_entry(frame: Frame, seed: int) -> int | None:
    """Return the first entry whose bytes do not match the checksum sent with them. `seed` is the checksum of earlier
    pieces."""
    start = 0
    for index, size, expected in zip(frame.index.tolist(), frame.size.tolist(), frame.checksum.tolist(), strict=True):
        if size and crc32c(frame.payload[start : start + size], seed) != expected:
            return int(index)
        start += size
    return None


class DamagedEntry(FrameError):
    """Bytes that the node has not verified do not match their stored checksum."""


def compare_unchecked(frame: Frame) -> None:
    """Verify entries that the node has not verified, and mark them as STORED.

    Raises DamagedEntry.
    """
    unchecked = frame.checksum_kind == pb.UNCHECKED
    if not unchecked.any():
        return
    if (index := damaged_entry(frame, 0)) is not None:
        raise DamagedEntry(f"entry {index} is not what was put")
    frame.checksum_kind = np.where(unchecked, np.uint8(pb.STORED), frame.checksum_kind)


class AnswerCheck:
    """The response to one request, as far as it has arrived. Belongs to one thread.

    Args:
        n: entries of the request.
        first_index: the index of entry 0 in frames.
        resume_offset: where entry 0 continues, if its beginning was delivered before.
        may_stop: whether END may follow the first failed entry.
        verify: whether to compare each payload with its checksum.
    """

    def __init__(
        self, n: int, first_index: int = 0, *, resume_offset: int = 0, may_stop: bool = False, verify: bool = False
    ) -> None:
        self.n = n
        self.received = 0
        """Number of entries that have arrived completely. In ordered mode, this is the index of the next one."""
        self.partial: Frame | None = None
        """The last piece of an entry that has arrived partially."""
        self._first_index = first_index
        self._resume_offset = resume_offset
        self._may_stop = may_stop
        self._verify = verify
        self._base = 0
        self._status: U8 = np.zeros(n, np.uint8)
        self._checksum: U32 = np.zeros(n, np.uint32)

    def restart(self) -> None:
        """Prepare for a repeated request of what has not arrived: END counts from here. A large entry continues where
        it stopped."""
        self._base = self.received

    def rest_of(self, request: pb.BatchRequest, arrived: int) -> pb.BatchRequest:
        """Return a request for what has not arrived of an ordered one, of which `arrived` entries are complete, and
        restart."""
        rest = pb.BatchRequest()
        rest.CopyFrom(request)
        for values in entry_values(rest).values():
            del values[:arrived]
        rest.first_index = request.first_index + arrived
        self.restart()
        if (last := self.partial) is not None and last.piece is not None:
            rest.resume_offset = last.piece.offset + len(last.payload)
            rest.resume_checksum = int(last.checksum[0])
            rest.resume_version = last.piece.version
        elif arrived:
            rest.resume_offset, rest.resume_version = 0, ""
            rest.ClearField("resume_checksum")
        return rest

    def take(self, frame: Frame) -> None:
        """Check the next frame, in order. Raises FrameError if it is not the expected one. An empty one only says that
        the sender is alive."""
        if not len(frame.index) and frame.piece is None:
            return
        first = self.received
        stop = first + len(frame.index)
        due = np.arange(self._first_index + first, self._first_index + stop, dtype=WIRE_U32)
        if stop > self.n or frame.index.tobytes() != due.tobytes():  # faster than comparing the arrays
            arrived = frame.index[:4].astype(np.int64) - self._first_index
            raise FrameError(f"entries {arrived.tolist()} arrived where {first} was due")
        if frame.piece is not None or self.partial is not None or (self._resume_offset and not first):
            self._check_piece(frame)
        if self._verify:
            # A piece's checksum covers the entry from its beginning.
            continues = frame.piece is not None and frame.piece.offset > 0 and self.partial is not None
            seed = int(self.partial.checksum[0]) if continues and self.partial is not None else 0
            if (index := damaged_entry(frame, seed)) is not None:
                raise FrameError(f"entry {index} was damaged on its way")
        if not frame.completes_entry:
            self.partial = frame
            return
        self.partial = None
        self._status[first:stop] = frame.status
        self._checksum[first:stop] = frame.checksum
        self.received = stop

    def _check_piece(self, frame: Frame) -> None:
        due = self._resume_offset if self.received == 0 else 0
        if not frame.continues(self.partial, due):
            after = self.partial.piece if self.partial is not None else f"nothing, at {due:,}" if due else "nothing"
            raise FrameError(f"entry {self.received}: {frame.piece or 'a whole entry'} arrived after {after}")

    def count(self, frame: Frame) -> None:
        """Count a frame in any order. Whoever restores the order has checked that it was expected."""
        if frame.completes_entry:
            at = frame.index - self._first_index if self._first_index else frame.index
            self._status[at] = frame.status
            self._checksum[at] = frame.checksum
            self.received += len(frame.index)

    def finish(self, end: pb.End) -> None:
        """Check END, which must not be a rejection. Raises FrameError if it disagrees with what arrived, or comes too
        early.

        Frames counted in any order have arrived completely, or END is wrong: a gap changes the digest.
        """
        status, checksum = self._status[self._base : self.received], self._checksum[self._base : self.received]
        counted = (self.received - self._base, int(np.count_nonzero(status)), digest(status, checksum))
        announced = (end.entries, end.failed_entries, end.digest)
        if counted != announced:
            raise FrameError(f"(entries, failed, digest) should be {announced}, are {counted}")
        stopped = self._may_stop and end.outcome == pb.End.STOPPED and len(status) and status[-1]
        if self.received != self.n and not stopped:
            raise FrameError(f"it ended after {self.received:,} of {self.n:,} entries")
