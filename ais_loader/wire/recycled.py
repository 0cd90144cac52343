"""Recycled buffers: memory for received messages, which returns when its last view has been freed.

Memory that is new to a process costs a page fault for every 4 KiB, which takes longer than copying as much data into
it. malloc returns freed memory to the kernel as soon as some adjacent frames are free.

A block must not be reused while anything refers to its memory. It is lent as a separate array, to which memoryviews,
arrays and tensors over it, and slices of those, all hold a reference. When that array is freed, its weak reference puts
the block into the idle list. This alone is not sufficient: NumPy makes an array of an array refer directly to the owner
of the memory, and so does a caller who follows `.obj` and `.base`. Before an idle block is reused, its references are
therefore counted. A block that is still referenced is dropped from the list, and freed with its last reference. The
size of the idle list is bounded.

A finalizer would not do: finalizers of Python classes run while the cycle collector still has references to the object,
and only once per object. A plain array takes no part in garbage collection, so it is freed when nothing refers to it
any more.

Values that belong to the caller, such as bytes, cannot be recycled here. `keep_freed` has malloc recycle their memory.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref

import numpy as np
import numpy.typing as npt

IDLE_BYTES = 16 << 20
"""Most bytes in idle blocks of a process if little is lent, besides one large block."""
MAX_IDLE_BYTES = 256 << 20
"""Most bytes in idle blocks, besides one large block. Up to this, as much may be idle as is lent: a loop that holds a
batch until it has the next one will need as much again."""
LARGE_BYTES = 8 << 20
MAX_LARGE_BYTES = 256 << 20
"""Largest block that is kept. One block from LARGE_BYTES to this size is kept besides the others: a loop that takes
whole batches drops one as large whenever it has taken the next."""
_STEP_BYTES = 256 << 10
"""Block sizes are multiples of this, so that frames of similar size share one block size."""
_CANDIDATES = 8
_HUGE_PAGE_BYTES = 2 << 20
_HUGE_FROM_BYTES = 4 << 20
"""Buffers from this size on begin at a huge page. NumPy asks the kernel for huge pages in arrays of this size, which
take a fraction of the time when they are touched for the first time."""

_MOST_ADAPTED_BYTES = (32 << 20) - (64 << 10)
"""Size just below the largest one to which glibc adapts."""

Block = npt.NDArray[np.uint8]

_idle: list[Block] = []
"""Idle blocks. The last one added is the likeliest to be in the CPU caches and is taken first. Memory can be freed
anywhere, even inside these functions, so there is no lock: each step is one atomic call of the list."""
_loans: dict[int, _RecycledLoan] = {}
"""Weak references by their identity: a weak reference that is itself freed never runs its callback."""


class _RecycledLoan(weakref.ref[Block]):
    """Weak reference to the array as which a block is lent."""

    __slots__ = ("block",)
    block: Block


class _Exporter(np.ndarray):
    """The object that views expose as `.obj`: without a hash of it, a read-only view cannot be hashed."""

    __hash__ = object.__hash__  # type: ignore[assignment]


@functools.cache
def keep_freed() -> None:
    """Let malloc keep up to 64 MiB that this process has freed, in each arena, for the next batch.

    glibc adapts to what a program frees: from then on it takes blocks of that size from its arenas, and returns the top
    of an arena to the kernel only beyond twice that size. A block that is never touched costs two system calls. Limits
    that the environment sets (GLIBC_TUNABLES, MALLOC_TRIM_THRESHOLD_) stay, and other allocators are not affected.
    """
    np.empty(_MOST_ADAPTED_BYTES, np.uint8)


def take(size_bytes: int) -> memoryview:
    """Return writable memory of this size. The caller fills it, and then hands out read-only views of it.

    Its initial content is undefined. The block exceeds the requested size by at most a fifth, or 256 KiB, and from
    4 MiB on by 2 MiB that are not touched.
    """
    is_huge = size_bytes >= _HUGE_FROM_BYTES
    block = _fitting(-(-size_bytes // _STEP_BYTES) * _STEP_BYTES + is_huge * _HUGE_PAGE_BYTES)
    start = -block.ctypes.data % _HUGE_PAGE_BYTES if is_huge else 0
    part = block[start : start + size_bytes]
    loan = _RecycledLoan(part, _release)
    loan.block = block
    _loans[id(loan)] = loan
    return part.view(_Exporter).data


def _fitting(wanted_bytes: int) -> Block:
    unfit = []
    found = None
    for _ in range(_CANDIDATES if wanted_bytes < LARGE_BYTES else len(_idle)):
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
    """Pop the last block, and return it with its reference count."""
    block = blocks.pop()
    return block, sys.getrefcount(block)


_UNSHARED = _take_last([np.empty(1, np.uint8)])[1]
"""Reference count of a block with no other reference; it depends on the interpreter."""


def _release(loan: weakref.ref[Block]) -> None:
    if _loans is None:
        return  # the process ends, and this module has been torn down
    block = _loans.pop(id(loan)).block
    if len(block) <= MAX_LARGE_BYTES:
        _idle.append(block)
    del block
    while _is_too_much([len(idle) for idle in list(_idle)]):
        with contextlib.suppress(IndexError):
            _idle.pop(0)


def _is_too_much(sizes: list[int]) -> bool:
    """Whether idle blocks of these sizes are more than may be kept."""
    idle_bytes = sum(sizes) - _large(sizes)
    if idle_bytes <= IDLE_BYTES:
        return False
    return idle_bytes > min(sum([len(loan.block) for loan in list(_loans.values())]), MAX_IDLE_BYTES)


def _large(sizes: list[int]) -> int:
    """Return the size of the last large block, which is kept besides the others; 0 if there is none."""
    return next((size for size in reversed(sizes) if size >= LARGE_BYTES), 0)
