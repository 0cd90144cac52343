"""Frame editing: frames made from parts of others, and from entries that failed before anyone sent them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ais_loader.errors import NodeUnavailable, ObjectDeleted, ObjectReplaced, Unsupported
from ais_loader.wire.frame import WIRE_U32, EntryFault, Frame
from ais_loader.wire.generated import ais_batch_pb2 as pb

Mask: TypeAlias = npt.NDArray[np.bool_]


_FIRST_SEARCH = 1024


def first_unset(mask: Mask, at: int) -> int:
    """Return the first position from `at` on where the mask is not set; its length if it is set everywhere."""
    width = _FIRST_SEARCH
    while at < len(mask):
        window = mask[at : at + width]
        first = int(window.argmin())
        if not window[first]:
            return at + first
        at, width = at + len(window), width * 2
    return len(mask)


def subset(frame: Frame, keep: Mask) -> Frame | None:
    """Return a frame without some entries, which must be empty; None if nothing remains."""
    if not keep.any():
        return None
    index = frame.index[keep]
    errors = {at: frame.errors[at] for at in index.tolist() if at in frame.errors} if frame.errors else {}
    return Frame(
        index,
        frame.size[keep],
        frame.checksum[keep],
        frame.status[keep],
        frame.checksum_kind[keep],
        list(compress(frame.content, keep)) if isinstance(frame.content, list) else frame.content,
        frame.piece,
        errors,
    )


def failing(frame: Frame, which: Mask, faults: Mapping[int, EntryFault]) -> Frame:
    """Return a frame of whole entries of which some are marked as failed, without their bytes. Faults by index."""
    left = without(frame, which)
    size, checksum, status, kind = frame.size.copy(), frame.checksum.copy(), frame.status.copy(), frame.checksum_kind
    size[which], checksum[which], status[which] = 0, 0, pb.FAILED
    kind = kind.copy()
    kind[which] = pb.NONE
    payload = memoryview(b"") if left is None else left.payload
    return Frame(frame.index, size, checksum, status, kind, payload, None, {**frame.errors, **faults})


def without_untransformed(frame: Frame, transformed: Mask, node_of: Callable[[int], str]) -> Frame:
    """Mark entries that a node has sent untransformed as failed. A node without transforms ignores them and sends what
    is stored, which must not be taken for the result.

    Such entries fail as Unsupported, in their place. `node_of` returns who sent an entry, by its index.
    """
    sent = (frame.status == pb.OK) & (frame.checksum_kind != pb.TRANSFORMED) & transformed[frame.index]
    if not sent.any():
        return frame
    return failing(
        frame,
        sent,
        {
            index: EntryFault(
                f"{node_of(index)} sent it as it is stored: it knows no transforms, and is of a version before",
                Unsupported.kind,
            )
            for index in frame.index[sent].tolist()
        },
    )


def without(frame: Frame, drop: Mask) -> Frame | None:
    """Return a frame without some entries and their bytes; None if nothing remains."""
    if drop.all():
        return None
    stops = frame.size.astype(np.int64).cumsum().tolist()
    sizes = frame.size.tolist()
    kept = [frame.payload[stops[k] - sizes[k] : stops[k]] for k in np.flatnonzero(~drop).tolist()]
    payload = kept[0] if len(kept) == 1 else memoryview(b"".join(kept))
    return subset(replace(frame, content=payload), ~drop)


def failures(status: int, faults: Sequence[EntryFault]) -> Frame:
    """Return a frame of entries 0 to len(faults) - 1, all failed."""
    count = len(faults)
    zeros = np.zeros(count, WIRE_U32)
    return Frame(
        np.arange(count).astype(WIRE_U32),
        zeros,
        zeros,
        np.full(count, status, np.uint8),
        np.zeros(count, np.uint8),
        memoryview(b""),
        None,
        dict(enumerate(faults)),
    )


def failed_as(frame: Frame, kind: str) -> Mask:
    """Return which entries failed with an error of this kind."""
    which = np.zeros(len(frame.index), np.bool_)
    for index, fault in frame.errors.items():
        if fault.kind == kind:
            which |= frame.index == index
    return which


def torn(frame: Frame, old_bytes: int) -> Frame:
    """Adjust a frame whose first entry fails after the consumer has received some of its bytes.

    "Not found" then refers to the version of those bytes, which no node has now; a new request may get another one.
    """
    if not len(frame.index):
        return frame
    index = int(frame.index[0])
    fault = frame.errors.get(index, EntryFault("it is gone"))
    if frame.status[0] != pb.NOT_FOUND or fault.kind in (ObjectDeleted.kind, ObjectReplaced.kind):
        return frame
    message = f"{old_bytes:,} bytes of it had come when a node was lost, and were of another version: {fault.message}"
    status = frame.status.copy()
    status[0] = pb.UNAVAILABLE
    return replace(frame, status=status, errors=frame.errors | {index: EntryFault(message, NodeUnavailable.kind)})
