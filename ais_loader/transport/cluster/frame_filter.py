"""Frame filter: splits a node's frame into entries to deliver and entries to request from another node."""

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

_RETRY_ANOTHER = (pb.NOT_FOUND, pb.CORRUPT)
"""Failures of one replica. Another replica may have the entry."""
_RETRY_HOLDERS = (pb.UNAVAILABLE, pb.TIMEOUT)
"""Failures of the gathering node, which could not reach the holder. This process may reach it, and waits longer."""


class FrameFilter:
    """Frame filter of one batch. With `verify`, each payload is compared with its checksum."""

    def __init__(self, reorder: Reorder, routing: Routing, *, verify: bool) -> None:
        self._reorder = reorder
        self._routing = routing
        self._verifies = verify

    def filter(self, sender: Sender, received: Frame) -> tuple[Frame, Mask] | None:
        """Deliver the wanted part of a frame to the batch. Return that part, and which of its entries to request from
        another node.

        Returns None if there is nothing to request. Raises LoaderError for a frame that does not match the request.
        Raises DamagedEntry, with nothing delivered, if bytes are wrong that the node has not verified.
        """
        try:
            if (frame := self._reorder.wanted(sender.number, received)) is None:
                return None
            compare_unchecked(frame)
            if self._verifies:
                self._verify(sender, frame)
            if not frame.status.any():
                self._reorder.push(sender.number, frame)
                return None
            again = self._to_retry(sender, frame)
            contested = self._reorder.contested(sender.number, frame)
            if contested.any():
                elsewhere = np.isin(frame.status, _RETRY_ANOTHER + _RETRY_HOLDERS)
                again |= contested & elsewhere & ~failed_as(frame, errors.ObjectDeleted.kind)
            self._reorder.push(sender.number, frame, again)
        except DamagedEntry:
            raise
        except FrameError as error:
            name = self._routing.name(sender.node)
            raise errors.LoaderError(f"{name}: the node's answer does not add up: {error}") from error
        return frame, again & ~contested  # another node has already been asked for those

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
    def _to_retry(sender: Sender, frame: Frame) -> Mask:
        """Select the entries that this node does not have intact. Whether another node may have them is decided when
        one is chosen."""
        one, other = _RETRY_ANOTHER if sender.share.direct else _RETRY_HOLDERS
        again: Mask = (frame.status == one) | (frame.status == other)
        if sender.share.direct:
            again |= frame.status == pb.UNAVAILABLE
            again &= ~failed_as(frame, errors.ObjectDeleted.kind)
        return again
