"""Inventory of a remote bucket: names, sizes, ETags and modification times of its objects, listed once.

It is stored as hidden objects of the bucket, which are placed, copied and repaired like all objects:

    /.inventory/ID/current          a Description; replacing it makes another inventory the valid one
    /.inventory/ID/data-HEX         the columns
    /.inventory/ID/changed/NAME     empty; written before an object is put or deleted through the store

ID is `Remote.inventory`, so that an inventory is forgotten with its place. The data are blocks of ROWS objects in the
order of the names' UTF-8 bytes. First come the names of all blocks, then their details, because most readers need the
names alone:

    names:    uint16[n] lengths, and the names
    details:  int64[n] sizes, int64[n] modification times, uint16[n] lengths of the ETags, and the ETags

All numbers are little-endian.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

PREFIX = "/.inventory/"
ROWS = 8192
"""Number of objects in each block but the last."""
FORMAT = 1
_LAST = b"\xff"
"""No UTF-8 text begins with this byte."""


def current_name(id_: str) -> str:
    """Return the name of the object that describes the inventory."""
    return f"{PREFIX}{id_}/current"


def changed_name(id_: str, name: str = "") -> str:
    """Return the name of the mark of a changed object, or their common prefix."""
    return f"{PREFIX}{id_}/changed/{name}"


class Row(NamedTuple):
    """One object."""

    name: bytes
    size_bytes: int
    modified_ns: int
    etag: bytes


class Block(NamedTuple):
    """Columns of some objects, in their stored form."""

    length: int
    """Number of objects."""
    names: bytes
    details: bytes


def encoded(rows: Sequence[Row]) -> Block:
    """Return the columns of these rows. Names and ETags have less than 64 KiB."""
    names, sizes, times, etags = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Block(
        len(rows),
        np.fromiter(map(len, names), "<u2", len(rows)).tobytes() + b"".join(names),
        np.array(sizes, "<i8").tobytes()
        + np.array(times, "<i8").tobytes()
        + np.fromiter(map(len, etags), "<u2", len(rows)).tobytes()
        + b"".join(etags),
    )


def lengths_of(names: bytes | memoryview, count: int) -> npt.NDArray[np.uint16]:
    """Return the lengths of the names of a block. Raises ValueError."""
    lengths: npt.NDArray[np.uint16] = np.frombuffer(names, "<u2", count)
    if 2 * count + int(lengths.sum(dtype=np.int64)) != len(names):
        raise ValueError("the names of an inventory do not have the length that they should have")
    return lengths


def names_of(names: bytes, count: int) -> list[bytes]:
    """Return the names of a block. Raises ValueError."""
    return _split(names, lengths_of(names, count), 2 * count)


def rows_of(block: Block) -> Iterator[Row]:
    """Return the rows of a block. Raises ValueError."""
    count, details = block.length, block.details
    if len(details) < 18 * count:
        raise ValueError("the details of an inventory are too short")
    sizes, times = (np.frombuffer(details, "<i8", count, 8 * count * at).tolist() for at in (0, 1))
    etags = _split(details, np.frombuffer(details, "<u2", count, 16 * count), 18 * count)
    return map(Row, names_of(block.names, count), sizes, times, etags)


def _split(buffer: bytes, lengths: npt.NDArray[np.uint16], start: int) -> list[bytes]:
    stops = accumulate(lengths.tolist(), initial=start)
    return [buffer[begin:stop] for begin, stop in pairwise(stops)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Contents of an inventory, and where its blocks are."""

    place: tuple[str, str]
    """URL and endpoint of the remote that was listed."""
    prefix: str
    """Prefix of all names; the inventory says nothing about others."""
    count: int
    size_bytes: int
    """Sum of the objects' sizes."""
    skipped: int
    """Number of names that no object here can have."""
    skipped_names: tuple[str, ...]
    """The first of them."""
    listed_ns: int
    """Time at which the listing began, in nanoseconds since the epoch."""
    data: str
    """Last component of the name of the object with the data."""

    def to_bytes(self, blocks: BlockIndex) -> bytes:
        """Return the content of the object that describes the inventory."""
        fields = {"format": FORMAT, **asdict(self)}
        return json.dumps(fields).encode() + b"\n" + blocks.to_bytes()

    @classmethod
    def parse(cls, content: bytes) -> tuple[Self, BlockIndex]:
        """Return what such an object contains. Raises ValueError, also for a later format."""
        head, _, rest = content.partition(b"\n")
        found = cls.of_json(head)
        return found, BlockIndex.parse(rest, found.count)

    @classmethod
    def of_json(cls, head: bytes | str) -> Self:
        """Return the description in the first line of such an object. Raises ValueError, also for a later format."""
        try:
            fields = json.loads(head)
            if (format_ := fields.pop("format")) != FORMAT:
                raise ValueError(f"an inventory has format {format_}; this version reads format {FORMAT}")
            fields["place"] = tuple(fields["place"])
            fields["skipped_names"] = tuple(fields["skipped_names"])
            return cls(**fields)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"the description of an inventory cannot be read: {error!r}") from None


class BlockIndex:
    """Positions of all blocks, and the first name of each."""

    def __init__(self, count: int, names: Sequence[int], details: Sequence[int], firsts: Sequence[bytes]) -> None:
        """`names`, `details`: start of each block among all names and among all details, and their ends."""
        self.count = count
        """Number of objects."""
        self._names, self._details, self.firsts = names, details, firsts

    def __len__(self) -> int:
        return len(self.firsts)

    def to_bytes(self) -> bytes:
        positions = np.array([*self._names, *self._details], "<i8").tobytes()
        return positions + np.array([len(name) for name in self.firsts], "<u2").tobytes() + b"".join(self.firsts)

    @classmethod
    def parse(cls, content: bytes, count: int) -> BlockIndex:
        """Raises ValueError."""
        blocks = -(-count // ROWS)
        positions = np.frombuffer(content, "<i8", 2 * (blocks + 1)).tolist()
        at = 16 * (blocks + 1)
        firsts = _split(content, np.frombuffer(content, "<u2", blocks, at), at + 2 * blocks)
        return cls(count, positions[: blocks + 1], positions[blocks + 1 :], firsts)

    def rows(self, block: int) -> int:
        """Return the number of objects in a block."""
        return min(ROWS, self.count - block * ROWS)

    def names_range(self, first: int, stop: int) -> tuple[int, int]:
        """Return start and length in the data of the names of these blocks."""
        return self._names[first], self._names[stop] - self._names[first]

    def details_range(self, block: int) -> tuple[int, int]:
        """Return start and length in the data of the details of a block."""
        start = self._details[block]
        return self._names[-1] + start, self._details[block + 1] - start

    def blocks_with(self, prefix: bytes, after: bytes = b"") -> range:
        """Return the blocks that may have names that begin with `prefix` and follow `after`."""
        first = max(0, bisect_right(self.firsts, max(prefix, after)) - 1)
        return range(first, max(first, bisect_left(self.firsts, prefix + _LAST)))
