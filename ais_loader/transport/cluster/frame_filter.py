"""Frame filter: the entries of a node's frame that are delivered, and those that another node is asked for."""

from __future__ import annotations

import numpy as np

from ais_loader import errors
from ais_loader.transport.cluster.routing import Routing
from ais_loader.transport.cluster.substream import Sender
from ais_loader.wire.answer_check import DamagedEntry, compare_unchecked, damaged_entry
from ais_loader.wire.frame import Frame, FrameError
from ais_loader.wire.gather.frame_edit import Mask, failed_as
from ais_loader.wire.gather.reorder import Reorder
from ais_loader.wire.generated import ais_batch_pb2 as pb

_ASK_ANOTHER = (pb.NOT_FOUND, pb.CORRUPT)
"""What one copy has not, another may have."""
_ASK_HOLDERS = (pb.UNAVAILABLE, pb.TIMEOUT)
"""What the gathering node could not reach, this process may; and it has a longer patience."""


class FrameFilter:
    """Of one batch. With `verify` each payload is compared with its checksum."""

    def __init__(self, reorder: Reorder, routing: Routing, *, verify: bool) -> None:
        self._reorder = reorder
        self._routing = routing
        self._verifies = verify

    def filter(self, sender: Sender, came: Frame) -> tuple[Frame, Mask] | None:
        """Put what is wanted of a frame into the batch; that part, and which of its entries to ask of another node.

        None where there is nothing to ask. Raises LoaderError for a frame that does not belong to what was asked, and
        DamagedEntry, with nothing put in, where bytes that the node has not compared are wrong.
        """
        try:
            if (frame := self._reorder.wanted(sender.number, came)) is None:
                return None
            compare_unchecked(frame)
            if self._verifies:
                self._verify(sender, frame)
            if not frame.status.any():
                self._reorder.push(sender.number, frame)
                return None
            again = self._ask_elsewhere(sender, frame)
            contested = self._reorder.contested(sender.number, frame)
            if contested.any():
                elsewhere = np.isin(frame.status, _ASK_ANOTHER + _ASK_HOLDERS)
                again |= contested & elsewhere & ~failed_as(frame, errors.ObjectDeleted.kind)
            self._reorder.push(sender.number, frame, again)
        except DamagedEntry:
            raise
        except FrameError as wrong:
            name = self._routing.name(sender.node)
            raise errors.LoaderError(f"{name}: the node's answer does not add up: {wrong}") from wrong
        return frame, again & ~contested  # another has been asked for those already

    def _verify(self, sender: Sender, frame: Frame) -> None:
        last = max(frame.index.tolist(), default=-1)
        if last >= len(sender.share.positions):
            raise FrameError(f"entry {last} of {len(sender.share.positions)}")
        resume = None
        if frame.piece is not None and frame.piece.offset and last >= 0:
            resume = self._reorder.resume_of(sender.share.positions[last])
        if (index := damaged_entry(frame, 0 if resume is None else resume[1])) is not None:
            raise FrameError(f"entry {sender.share.positions[index]} was damaged on its way")

    @staticmethod
    def _ask_elsewhere(sender: Sender, frame: Frame) -> Mask:
        """Entries that this node has not got whole: whether another one may have is seen when it is to be asked."""
        one, other = _ASK_ANOTHER if sender.share.direct else _ASK_HOLDERS
        again: Mask = (frame.status == one) | (frame.status == other)
        if sender.share.direct:
            again |= frame.status == pb.UNAVAILABLE
            again &= ~failed_as(frame, errors.ObjectDeleted.kind)
        return again
