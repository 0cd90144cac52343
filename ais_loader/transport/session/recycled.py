"""Recycled buffers: memory for what is received, which comes back when the last view of it has gone.

Memory that is new to a process costs a page fault for every 4 KiB, which takes longer than to copy as much into it, and
malloc gives freed memory back to the kernel as soon as some frames lie free together.

A block must not be used again while anything refers to its memory. It is lent as an array of its own, which
memoryviews, arrays and tensors over it, and slices of those, all hold; when that array is freed, its weak reference
puts the block among the idle ones. This alone decides nothing: NumPy makes an array of an array refer to the memory's
owner directly, and so does a caller who follows `.obj` and `.base`. Before an idle block is used again, its references
are therefore counted. A block that somebody still holds is forgotten, and freed with its last holder. The idle ones are
bounded.

Why not a finalizer: those of Python's own classes run while the collector of cycles still sees who holds the object,
and only once for an object. A plain array takes no part in collections, so it goes when nothing refers to it any more.
"""

from __future__ import annotations

import contextlib
import sys
import weakref

import numpy as np
import numpy.typing as npt

IDLE_BYTES = 16 << 20
"""Most that lies idle in a process."""
_STEP_BYTES = 256 << 10
"""Sizes are multiples of this, so that frames of about one size have blocks of one."""
_LOOKS = 8

Block = npt.NDArray[np.uint8]

_idle: list[Block] = []
"""The one that came last, which is the likeliest to be in the processor's caches, is the first to be taken. Memory is
freed anywhere, in the middle of these functions too: there is no lock, each step is one call of the list's."""
_lent: dict[int, _Loan] = {}
"""By identity: a weak reference that nobody holds calls nobody."""


class _Loan(weakref.ref[Block]):
    """Of the array that a block is lent as."""

    __slots__ = ("block",)
    block: Block


class _Exporter(np.ndarray):
    """What views show as their object: that of a read-only one has to have a hash, or the view has none."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def take(size_bytes: int) -> memoryview:
    """Room for so many bytes, to be written to by whoever asks, who hands out views of it that are read-only.

    Whatever is in it at first is of no meaning. At most a fifth of it, or 256 KiB, is kept beside what was asked for.
    """
    block = _fitting(-(-size_bytes // _STEP_BYTES) * _STEP_BYTES)
    lent = block[:size_bytes]
    loan = _Loan(lent, _give_back)
    loan.block = block
    _lent[id(loan)] = loan
    return lent.view(_Exporter).data


def _fitting(wanted_bytes: int) -> Block:
    unfit = []
    found = None
    for _ in range(_LOOKS):
        try:
            candidate, references = _take_last(_idle)
        except IndexError:
            break
        if references > _UNSHARED:
            continue
        if wanted_bytes <= len(candidate) <= wanted_bytes + wanted_bytes // 5:
            found = candidate
            break
        unfit.append(candidate)
    _idle[:0] = unfit
    return np.empty(wanted_bytes, np.uint8) if found is None else found


def _take_last(blocks: list[Block]) -> tuple[Block, int]:
    """With the number of its references."""
    block = blocks.pop()
    return block, sys.getrefcount(block)


_UNSHARED = _take_last([np.empty(1, np.uint8)])[1]
"""References of a block that nobody else holds; how many depends on the interpreter."""


def _give_back(loan: weakref.ref[Block]) -> None:
    if _lent is None:
        return  # the process ends, and this module has gone before
    _idle.append(_lent.pop(id(loan)).block)
    while sum(map(len, _idle)) > IDLE_BYTES:
        with contextlib.suppress(IndexError):
            _idle.pop(0)
