"""Recycled buffers: memory for what is received, which comes back when the last view of it has gone.

Memory that is new to a process costs a page fault for every 4 KiB, which takes longer than to copy as much into it, and
malloc gives freed memory back to the kernel as soon as some frames lie free together.

A buffer cannot be used again while anybody sees its bytes: memoryviews, arrays and tensors over it, and slices of
those, all hold the object itself, and its finalizer, which runs when nothing holds it any more, puts it back. Nobody
has to say that he is done. What lies idle is bounded, and small; the rest is freed as ever.
"""

from __future__ import annotations

import contextlib

IDLE_BYTES = 16 << 20
"""Most that lies idle in a process."""
_STEP_BYTES = 256 << 10
"""Sizes are multiples of this, so that frames of about one size have buffers of one."""
_LOOKS = 8

_idle: list[RecycledBuffer] = []
"""The one that came last, which is the likeliest to be in the processor's caches, is the first to be taken. A finalizer
runs anywhere, in the middle of these functions too: there is no lock, each step is one call of the list's."""


class RecycledBuffer(bytearray):
    """Some bytes that are used again; whatever is in them at first is of no meaning."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]  # else nobody could hash a read-only view of it

    def __del__(self) -> None:
        # One of no bytes was let go for good; and when a process ends, this module may have gone before.
        if len(self) and _idle is not None:
            _idle.append(self)
            while sum(map(len, _idle)) > IDLE_BYTES:
                _free_oldest()


def take(size_bytes: int) -> memoryview:
    """Room for so many bytes, to be written to by whoever asks, who hands out views of it that are read-only.

    At most a fifth of it, or 256 KiB, is kept beside what was asked for.
    """
    wanted_bytes = -(-size_bytes // _STEP_BYTES) * _STEP_BYTES
    unfit = []
    found = None
    for _ in range(_LOOKS):
        try:
            candidate = _idle.pop()
        except IndexError:
            break
        if wanted_bytes <= len(candidate) <= wanted_bytes + wanted_bytes // 5:
            found = candidate
            break
        unfit.append(candidate)
    _idle[:0] = unfit
    return memoryview(RecycledBuffer(wanted_bytes) if found is None else found)[:size_bytes]


def _free_oldest() -> None:
    with contextlib.suppress(IndexError):
        _idle.pop(0).clear()
