"""Frames made from others, or from nothing: a part of one, and entries that failed before anybody sent them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protos.frame import WIRE_U32, EntryFault, Frame

Mask: TypeAlias = npt.NDArray[np.bool_]


def subset(frame: Frame, keep: Mask) -> Frame | None:
    """A frame without some of its entries, which must have no bytes; None when nothing is left."""
    if not keep.any():
        return None
    index = frame.index[keep]
    errors = {at: frame.errors[at] for at in index.tolist() if at in frame.errors} if frame.errors else {}
    return Frame(
        index, frame.size[keep], frame.checksum[keep], frame.status[keep], frame.checksum_kind[keep], frame.payload,
        frame.piece, errors,
    )  # fmt: skip


def failures(count: int, status: int, fault: EntryFault) -> Frame:
    """Entries 0 to count - 1, which all failed in the same way."""
    zeros = np.zeros(count, WIRE_U32)
    return Frame(
        np.arange(count).astype(WIRE_U32), zeros, zeros, np.full(count, status, np.uint8), np.zeros(count, np.uint8),
        memoryview(b""), None, dict.fromkeys(range(count), fault),
    )  # fmt: skip
