"""Resumption of a gathered batch within its first entry, of which the client already has the beginning.

The reorder buffer does not know about that: to it, the entry begins where the client's part ends.
"""

from __future__ import annotations

from dataclasses import replace

from ais_loader.wire.frame import Frame
from ais_loader.wire.gather.reorder import Reorder, Resume
from ais_loader.wire.generated import ais_batch_pb2 as pb


class Resumed:
    """The part that the client of a request already has; usually nothing."""

    def __init__(self, request: pb.BatchRequest) -> None:
        self._request = request
        self._skipped_bytes = request.resume_offset if len(request.name) else 0

    def inward(self, frame: Frame, first_position: int) -> Frame:
        """Convert a frame of a sender, whose entry 0 is at `first_position`, for the reorder buffer."""
        if self._skipped_bytes and first_position == 0 and frame.piece is not None and not frame.index[0]:
            if frame.begins_again:
                self._skipped_bytes = 0
                return frame
            return _moved(frame, -self._skipped_bytes)
        return frame

    def outward(self, frame: Frame) -> Frame:
        """Convert a frame of the reorder buffer for the client."""
        if self._skipped_bytes and frame.piece is not None and frame.index[0] == self._request.first_index:
            return _moved(frame, self._skipped_bytes)
        return frame

    def of(self, position: int, reorder: Reorder) -> Resume | None:
        """Return where to continue an entry of which the client, or the reorder buffer, has the beginning."""
        found, request = reorder.resume_of(position), self._request
        if found is not None:
            return found if position else found._replace(offset=found.offset + self._skipped_bytes)
        if position or not self._skipped_bytes:
            return None
        return Resume(request.resume_offset, request.resume_checksum, request.resume_version)

    def partly_received(self, positions: list[int], reorder: Reorder) -> set[int]:
        """Return those of these entries that are continued in the middle."""
        if not self._skipped_bytes and not reorder.begun:
            return set()
        return {position for position in positions if self.of(position, reorder) is not None}


def _moved(frame: Frame, by_bytes: int) -> Frame:
    assert frame.piece is not None
    piece = replace(frame.piece, offset=frame.piece.offset + by_bytes, entry_size=frame.piece.entry_size + by_bytes)
    return replace(frame, piece=piece)
