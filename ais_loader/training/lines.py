"""Lines: a map-style dataset of the lines of text objects, such as JSON Lines, by number.

Where lines begin is kept in the store once it has been found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ais_loader.errors import InvalidRequest
from ais_loader.file_formats import HEAD_BYTES, UTF_16, format_of, is_text
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.kept_index import Piece, bounds_index, kept_indexes, object_pieces
from ais_loader.objects.range_table import BoundsTable, foreign
from ais_loader.training.process_client import ClientOrUrl
from ais_loader.training.range_dataset import ItemDecoder, RangeDataset
from ais_loader.values.entry import EntryLike, Item, ObjectInfo
from ais_loader.wire.line_index import LINES

_COMPRESSED = (".gz", ".zst", ".lz4", ".bz2", ".xz")


class Lines(RangeDataset):
    """A map-style dataset of the lines in text objects, by number, for any sampler or plan.

    A sample is the bytes of a line without its line ending, or what `decode` makes of them. A line ends with a line
    feed, or a carriage return and a line feed; the last one of an object may have no ending. A line without any
    character is no sample and has no number. The lines of an object follow each other, object after object.

    A batch is one request, whatever objects its lines are in. Only those lines are read, and verified. Objects are read
    in the version that they had when the dataset was made: if one is replaced later, reading it raises ObjectNotFound.
    All else is as in a MapDataset, also `+` and `concat`.

    Where lines begin is found by reading an object once, and kept in the store for later datasets, with 4 bytes per
    line, until the object is replaced. It is kept if the store can be written to: through nodes, or a Client that may
    write. With the path of an embedded store it is not, and neither in remote buckets. A dataset takes 8 bytes of
    memory per line, which forked workers share.
    """

    _keeps_indexes = True

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[EntryLike] | Bucket,
        decode: Callable[[bytes], Any] | None = None,
        *,
        bucket: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, bucket, timeout_s, retry_s, options: See MapDataset.
            entries: Whole objects, as in MapDataset, or the URL of a prefix.
            decode: A function from the bytes of a line to a sample, such as `json.loads`. It runs in the process that
                fetched the batch, and must be picklable if workers are spawned.

        Raises InvalidRequest for an object that is compressed, by its name, or that begins like an archive, Parquet or
        another format; ObjectNotFound, TypeError, and the errors of listing and reading.
        """

        def find(client: Client, objects: list[ObjectInfo]) -> tuple[BoundsTable, _Line]:
            for info in objects:
                if info.name.lower().endswith(_COMPRESSED):
                    raise InvalidRequest(f"{info.bucket}/{info.name}: compressed, so no line can be read by itself")
            return BoundsTable(objects, line_bounds(client, objects, timeout_s=timeout_s)), _Line(decode)

        super().__init__(client_or_url, entries, find, bucket=bucket, timeout_s=timeout_s, retry_s=retry_s, **options)

    def __repr__(self) -> str:
        return f"<Lines, {len(self):,} in all, {self._client!r}>"

    def _place(self, at: int) -> str:
        return f"{super()._place(at)}, line {cast(BoundsTable, self._entries).place_of(at)[1] + 1}"


class _Line(ItemDecoder):
    def read(self, item: Item) -> bytes:
        # Blank lines that follow are in the range too.
        return item.tobytes().partition(b"\n")[0].removesuffix(b"\r")


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
