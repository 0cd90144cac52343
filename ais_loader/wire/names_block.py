"""Names block: names of objects as two buffers, as listings of names alone and inventories carry them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

_LAST = "\U0010ffff" * 256
"""Sorts after all that can follow a folder in a name of at most 1,024 bytes."""


def after_folder(folder: str) -> str:
    """Return a text that sorts after all names in a folder, which ends with a slash, and before those behind it."""
    return folder + _LAST


class NamesBlock(NamedTuple):
    """Names of n objects, in UTF-8."""

    lengths: npt.NDArray[np.uint16]
    """Shape (n,), lengths in bytes."""
    names: bytes
    """The names, one after another."""

    def to_list(self) -> list[bytes]:
        stops = itertools.accumulate(self.lengths.tolist(), initial=0)
        return [self.names[begin:stop] for begin, stop in itertools.pairwise(stops)]

    @classmethod
    def of(cls, names: Sequence[bytes]) -> Self:
        return cls(np.fromiter(map(len, names), np.uint16, len(names)), b"".join(names))
