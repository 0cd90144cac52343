"""Line indexes of objects: where the lines of text begin, kept in the store once they have been found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ais_loader.file_formats import HEAD_BYTES, UTF_16, format_of, is_text
from ais_loader.objects.client import Client
from ais_loader.objects.kept_index import Piece, bounds_index, kept_indexes, object_pieces
from ais_loader.objects.range_table import foreign
from ais_loader.values.entry import ObjectInfo
from ais_loader.wire.line_index import LINES

_LF, _CR = 10, 13

Bounds = npt.NDArray[np.int64]


def line_bounds(client: Client, objects: Sequence[ObjectInfo], *, timeout_s: float) -> list[Bounds]:
    """Return where the lines of each object begin and, last, its size. Blank lines belong to the line before.

    Raises InvalidRequest for an object that is something else than text, and the errors of `Client.get_batch`.
    """

    def text(info: ObjectInfo, pieces: Iterator[Piece]) -> Iterator[Piece]:
        for at, data in enumerate(pieces):
            if not at:
                _require_lines(objects, info, data[:HEAD_BYTES].tobytes())
            yield data

    def made(absent: Sequence[ObjectInfo]) -> Iterator[Bounds]:
        for info, pieces in object_pieces(client, absent, timeout_s=timeout_s):
            yield _bounds_of(text(info, pieces), info.size_bytes)

    return kept_indexes(client, objects, bounds_index(LINES), made, timeout_s=timeout_s)


def _require_lines(objects: Sequence[ObjectInfo], info: ObjectInfo, head: bytes) -> None:
    """Raise InvalidRequest for an object that is not text of lines, by its first bytes."""
    found = "UTF-16" if head[:2] in UTF_16 else format_of(head)
    if found is not None and not is_text(head):
        raise foreign(objects, info, found, "lines of text", "*.jsonl")


def _bounds_of(pieces: Iterator[Piece], size_bytes: int) -> Bounds:
    """Return the bounds of an object's lines from its bytes. A line of nothing, or a carriage return alone, is blank
    and begins nothing."""
    begins: list[Bounds] = []
    offset = line = before = 0
    for data in pieces:
        ends = np.flatnonzero(data == _LF)
        starts = np.concatenate([np.array([line], np.int64), ends[:-1] + (offset + 1)])[: len(ends)]
        lengths = ends + offset - starts
        last = data[np.maximum(ends - 1, 0)].astype(np.int64)
        if len(ends) and not ends[0]:
            last[0] = before
        is_blank = (lengths == 0) | ((lengths == 1) & (last == _CR))
        begins.append(starts[~is_blank])
        if len(ends):
            line = offset + int(ends[-1]) + 1
        offset += len(data)
        before = int(data[-1])
    left = size_bytes - line
    tail = [line, size_bytes] if left > 1 or (left == 1 and before != _CR) else [size_bytes]
    return np.concatenate([*begins, np.array(tail, np.int64)])
