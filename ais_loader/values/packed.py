"""Packed batch: all items in one array, ready for a collate function or a copy to a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ais_loader.extras import needs
from ais_loader.wire import recycled
from ais_loader.wire.frame import U8, U32, Frame

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The n items of a batch, end to end. Item i is `values[offsets[i]:offsets[i + 1]]`. A failed item is empty.

    Shapes: values (total_bytes,) uint8, offsets (n + 1,) int64, status (n,) uint8 (numbers of `Status`). These are
    read-only numpy arrays. `torch()` returns tensors.
    """

    values: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    status: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, index: int) -> npt.NDArray[np.uint8]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of a batch of {len(self):,} items")
        index %= len(self)
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def torch(self) -> PackedTensors:
        """Return copies of the arrays as tensors."""
        with needs("torch", "tensors of a batch"):
            import torch

        return PackedTensors(*(torch.from_numpy(array.copy()) for array in (self.values, self.offsets, self.status)))

    def pin_memory(self) -> PackedTensors:
        """Return tensors in page-locked memory. DataLoader(pin_memory=True) calls this.

        Raises torch's RuntimeError if there is no accelerator.
        """
        return self.torch().pin_memory()


@dataclass(frozen=True, slots=True)
class PackedTensors:
    """A PackedBatch as torch tensors, with the same shapes and dtypes."""

    values: torch.Tensor
    offsets: torch.Tensor
    status: torch.Tensor

    def __len__(self) -> int:
        return len(self.status)

    def pin_memory(self) -> PackedTensors:
        return PackedTensors(self.values.pin_memory(), self.offsets.pin_memory(), self.status.pin_memory())

    def to(self, *args: Any, **kwargs: Any) -> PackedTensors:
        """Apply `torch.Tensor.to` to each tensor."""
        return PackedTensors(
            self.values.to(*args, **kwargs), self.offsets.to(*args, **kwargs), self.status.to(*args, **kwargs)
        )


def _parts(frame: Frame) -> list[memoryview]:
    return frame.content if isinstance(frame.content, list) else [frame.content]


def pack(frames: Iterable[Frame], entries: int, *, ordered: bool = True) -> PackedBatch:
    """Combine frames of `entries` whole entries into one PackedBatch in index order. `ordered`: the frames are in that
    order already.

    A single ordered frame's payload is used without a copy.
    """
    gathered = _Gathered(entries)
    columns = [gathered.add(frame) for frame in frames]
    values = np.frombuffer(gathered.values(), np.uint8)
    sizes = np.concatenate([np.zeros(1, np.int64), *(size.astype(np.int64) for _, size, _ in columns)])
    status = np.concatenate([np.empty(0, np.uint8), *(status for _, _, status in columns)])
    offsets = sizes.cumsum()
    if not ordered:
        order = np.concatenate([np.empty(0, np.uint32), *(index for index, _, _ in columns)]).argsort()
        spans = zip(offsets[order].tolist(), offsets[order + 1].tolist(), strict=True)
        values = np.concatenate([np.empty(0, np.uint8), *(values[start:stop] for start, stop in spans)])
        offsets, status = np.concatenate([np.zeros(1, np.int64), sizes[order + 1].cumsum()]), status[order]
    for array in (values, offsets, status):
        array.setflags(write=False)
    return PackedBatch(values, offsets, status)


class _Gathered:
    """Payloads of frames, end to end in one recycled buffer, whose size is estimated from the first frames.

    Each frame's own buffer is free again before the next frame is read. Otherwise all frames would be in memory beside
    the result, in memory that is new to the process.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._found = 0
        self._bytes = 0
        self._only: memoryview | None = None
        self._target = memoryview(bytearray())

    def add(self, frame: Frame) -> tuple[U32, U32, U8]:
        """Take a frame's payload. Returns copies of its index, sizes and status, which do not keep the frame."""
        self._found += len(frame.index)
        if self._found == self._entries and not self._bytes:
            self._only = frame.payload
        else:
            self._reserve(frame.payload_bytes)
            for part in _parts(frame):
                self._target[self._bytes : self._bytes + len(part)] = part
                self._bytes += len(part)
        return frame.index.copy(), frame.size.copy(), frame.status.copy()

    def _reserve(self, more_bytes: int) -> None:
        needed = self._bytes + more_bytes
        if needed > len(self._target):
            before = self._target
            expected = needed * self._entries // max(1, self._found)
            self._target = recycled.take(max(needed, expected + expected // 32))
            self._target[: self._bytes] = before[: self._bytes]

    def values(self) -> memoryview:
        whole = self._target[: self._bytes] if self._only is None else self._only
        return whole.toreadonly()
