"""Slots: recycled shared memory without names, through which a batch goes from a worker to the trainer.

A worker pickles a batch, with its tensors and numpy arrays beside it (protocol 5), and copies all of that into a slot.
The trainer maps the slot once. It gets arrays and tensors that are views of it, wherever they are in the batch. When it
drops the last view, the slot is free again: the trainer sets its first byte to 0, and the worker looks at that byte.

A slot is a memfd. Its memory is freed with the last process that maps it, however that ends. Its pages are allocated in
advance, so that full memory is an error of the worker, and never a SIGBUS. A batch then goes through the socket. So do
batches for which all slots are in use, and small ones.

A slot may have several readers, each with a byte of its own. They map it for each batch, copy-on-write: none sees what
another one changes in its batch.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import struct
import weakref
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ais_loader.errors import Unsupported
from ais_loader.extras import needs
from ais_loader.wire import recycled
from ais_loader.wire.memory_file import memory_file

with needs("torch", "BatchLoader"):
    import torch

_ALIGNED = 64
_HEADER_BYTES = _ALIGNED
READERS = 56
"""Most readers of a slot. Byte n is 1 from the writing until reader n has dropped its last view."""
_STAMP = struct.Struct("=Q")
"""Number of a slot's writing, behind the bytes of its readers."""
_SMALL_BYTES = 16 << 10
_PAGE_BYTES = 64 << 10


class Parcel(NamedTuple):
    """Where a batch is: the spans of its parts in a slot, or the parts themselves. The last part is the pickle."""

    slot: int | None = None
    is_new: bool = False
    """Whether the slot's file is sent after this."""
    stamp: int = 0
    spans: Sequence[tuple[int, int]] = ()
    parts: Sequence[bytes | bytearray] = ()
    failure: str = ""
    """Why there is no memory for another slot."""


class SlotWriter:
    """The slots of a worker."""

    def __init__(self, most: int) -> None:
        self._slots: list[mmap.mmap] = []
        self._most = most
        self._failure = ""
        self._stamp = 0

    def write(self, value: Any, readers: Collection[int] = (0,)) -> tuple[Parcel, int | None]:
        """Return where the value is, and the file of the slot if it is new: the caller sends and closes it.

        Raises the errors of pickling.
        """
        buffers: list[pickle.PickleBuffer] = []
        pickled: list[Any] = []  # in pieces: large bytes come as they are, and are copied into the slot alone
        _Pickler(SimpleNamespace(write=pickled.append), 5, buffer_callback=buffers.append).dump(value)
        parts = [*([buffer.raw()] for buffer in buffers), pickled]
        spans, stop = [], _HEADER_BYTES
        for part in parts:
            start = -(-stop // _ALIGNED) * _ALIGNED
            stop = start + sum(map(len, part))
            spans.append((start, stop))
        found = None if stop < _SMALL_BYTES else self._free_slot(stop)
        if found is None:
            return Parcel(parts=[bytearray().join(part) for part in parts], failure=self._failure), None
        number, file = found
        slot = self._slots[number]
        self._stamp += 1
        slot[:_HEADER_BYTES] = bytes(at in readers for at in range(READERS)) + _STAMP.pack(self._stamp)
        for (start, _), part in zip(spans, parts, strict=True):
            for piece in part:
                slot[start : (start := start + len(piece))] = piece
        return Parcel(number, file is not None, self._stamp, spans), file

    def give_back(self, reader: int, number: int | None = None) -> None:
        """Give back the slots of a reader that has died, or one that it was not told of."""
        for slot in self._slots if number is None else [self._slots[number]]:
            slot[reader] = 0

    def _free_slot(self, size_bytes: int) -> tuple[int, int | None] | None:
        """Return the number of a free slot, and its file if it is new; None if there is none."""
        free = [number for number, slot in enumerate(self._slots) if not any(slot[:READERS])]
        for number in free:
            if len(self._slots[number]) >= size_bytes:
                return number, None
        if self._failure or (not free and len(self._slots) >= self._most):
            return None
        size_bytes = -(-size_bytes * 5 // 4 // _PAGE_BYTES) * _PAGE_BYTES
        file = memory_file("ais-loader-slot")
        try:
            os.posix_fallocate(file, 0, size_bytes)
            slot = mmap.mmap(file, size_bytes)
        except OSError as error:
            os.close(file)
            self._failure = str(error)
            return None
        if len(self._slots) < self._most:
            self._slots.append(slot)
            return len(self._slots) - 1, file
        self._slots[free[0]] = slot  # of one that is too small
        return free[0], file


class SlotReader:
    """The slots of one writer, in the trainer. `read` may be called in any thread, by one at a time."""

    def __init__(self, *, pin_memory: bool = False, shared_as: int | None = None) -> None:
        """`shared_as`: Number of this reader, of several."""
        self._slots: dict[int, _Mapping] = {}
        self._pin_memory, self._shared_as = pin_memory, shared_as
        recycled.keep_freed()

    def map(self, number: int, file: int) -> None:
        """Map a new slot, which replaces the one with its number. Raises OSError, and RuntimeError of CUDA."""
        self._slots.pop(number, None)  # no batch is read from the one before, if this fails
        flags = mmap.MAP_SHARED if self._shared_as is None else mmap.MAP_PRIVATE
        mapping = _Mapping(file, os.fstat(file).st_size, flags)
        if self._shared_as is not None:
            mapping.reader, mapping.file = self._shared_as, os.dup(file)
        self._slots[number] = mapping  # complete: another thread may copy from it
        if self._pin_memory:
            mapping.pin()

    def read(self, parcel: Parcel, file: int | None = None) -> Any:
        """Return the value. It has views of the slot, which is free again when none is left.

        `file`: That of a new slot, which is mapped and closed. Raises what `map` raises.
        """
        if file is not None:
            try:
                self.map(parcel.slot or 0, file)
            finally:
                os.close(file)
        if parcel.slot is None:
            *buffers, data = [memoryview(part) for part in parcel.parts]
        else:
            root: Any = np.asarray(_Loan(self._slots[parcel.slot]))
            *buffers, data = [memoryview(root)[start:stop] for start, stop in parcel.spans]
        return pickle.loads(data, buffers=buffers)

    def copied(self, parcel: Parcel) -> Parcel | None:
        """Return the parcel as it was written, without its slot; None if the slot has been written again."""
        parts = parcel.parts
        if parcel.slot is not None:
            if (mapping := self._slots.get(parcel.slot)) is None:  # it is being replaced
                return None
            with mmap.mmap(mapping.file, 0, access=mmap.ACCESS_READ) as slot:
                parts = [slot[start:stop] for start, stop in parcel.spans]
                if slot[READERS:_HEADER_BYTES] != _STAMP.pack(parcel.stamp):  # now, as it may have begun meanwhile
                    return None
        return Parcel(parts=[bytearray(part) for part in parts])


class _Mapping(mmap.mmap):
    """A slot's memory, page-locked if it was pinned."""

    address: int | None = None
    reader = 0
    file = -1
    """The slot's file, if it has several readers."""

    def give_back(self) -> None:
        if self.file == -1:
            self[self.reader] = 0
        else:
            os.pwrite(self.file, bytes(1), self.reader)
            with contextlib.suppress(OSError):  # mlockall
                self.madvise(mmap.MADV_DONTNEED)  # free the copies of pages that were changed

    def pin(self) -> None:
        address = np.frombuffer(self, np.uint8).ctypes.data
        if error := int(torch.cuda.cudart().cudaHostRegister(address, len(self), 0)):
            raise RuntimeError(f"pin_memory=True: cudaHostRegister of {len(self):,} bytes failed with {error}")
        self.address = address

    def __del__(self) -> None:
        if self.address is not None:
            torch.cuda.cudart().cudaHostUnregister(self.address)
        if self.file != -1:
            os.close(self.file)


class _Loan:
    """A slot's memory, to which every view of it refers: who follows `.base` and `.obj` comes to this object, and never
    to the mapping, which outlives it."""

    __slots__ = ("__array_interface__", "__weakref__")

    def __init__(self, slot: _Mapping) -> None:
        self.__array_interface__ = np.frombuffer(slot, np.uint8).__array_interface__
        weakref.finalize(self, _give_back, slot, os.getpid()).atexit = False


def check_pinning() -> None:
    """Raises Unsupported if there is no accelerator to lock pages for."""
    if not torch.cuda.is_available():
        raise Unsupported("pin_memory=True: there is no CUDA device here")


def _give_back(slot: _Mapping, pid: int) -> None:
    if os.getpid() == pid:  # not in a child that was forked while there were views
        slot.give_back()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.requires_grad or not value.numel():
            return NotImplemented
        if value.layout != torch.strided or value.device.type != "cpu" or value.is_quantized:
            return NotImplemented
        dense = value.resolve_conj().resolve_neg()
        # In the order of the memory, which is not that of the indices for `channels_last`, and without gaps.
        if 1 + sum((n - 1) * step for n, step in zip(dense.shape, dense.stride(), strict=True)) != dense.numel():
            dense = dense.contiguous()
        flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8)
        return _tensor, (pickle.PickleBuffer(flat.numpy()), value.dtype, tuple(dense.shape), dense.stride())


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).as_strided(shape, stride)
