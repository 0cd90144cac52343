"""Records: a map-style dataset of the records in TFRecord and array_record files, by number.

A record of TFRecord is its length in 8 bytes, the masked CRC-32C of the length, the data, and the masked CRC-32C of the
data.

Source: https://www.tensorflow.org/tutorials/load_data/tfrecord#tfrecords_format_details.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ArchiveDamaged
from ais_loader.file_formats import ARRAY_RECORD, HEAD_BYTES, format_of
from ais_loader.objects.array_records import ArrayRecordChunks, array_record_chunks, array_records
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.kept_index import Piece, bounds_index, kept_indexes, object_pieces
from ais_loader.objects.range_table import BoundsTable, foreign, place, read_ranges
from ais_loader.training.process_client import ClientOrUrl
from ais_loader.training.range_dataset import ItemDecoder, RangeDataset
from ais_loader.training.sample_parts import SharedItem, Within
from ais_loader.values.entry import Entry, EntryLike, Item, ObjectInfo
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.line_index import TF_RECORDS


class Records(RangeDataset):
    """A map-style dataset of the records in TFRecord and array_record files, by number, for any sampler or plan.

    A sample is the bytes of a record, or what `decode` makes of it. The records of a file follow each other, file after
    file. A batch is one request, whatever files its records are in, for their bytes alone. Their own checksums are
    compared as well (TFRecord). Records of a chunk of several, as array_record's `group_size` makes them, are fetched
    with their chunk, once for all records of it in a batch. Chunks may be packed by zstd or brotli.

    Where the records of a TFRecord file begin is found by reading it once, and kept as for Lines. array_record files
    list their chunks. All else is as in a MapDataset, also `+` and `concat`.
    """

    _keeps_indexes = True

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[EntryLike] | Bucket,
        decode: Callable[[Item], Any] | None = None,
        *,
        bucket: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, bucket, timeout_s, retry_s, options: See MapDataset.
            entries: Whole objects, as in MapDataset, or the URL of a prefix. The first bytes of each tell its format.
            decode: A function from an Item, whose data are those of a record, to a sample, such as `decoders.example`
                for tf.train.Example. It must be picklable if workers are spawned.

        Raises InvalidRequest for an object that begins like another known format; ArchiveDamaged for a file that is
        damaged, truncated or no file of records; ObjectNotFound, TypeError, and the errors of listing and reading.
        Reading raises ArchiveDamaged, and ArchiveUnsupported for chunks that are transposed or packed by snappy.
        """

        def find(client: Client, objects: list[ObjectInfo]) -> tuple[_RecordTable, _Record]:
            heads = read_ranges(client, [(one, 0, min(HEAD_BYTES, one.size_bytes)) for one in objects], timeout_s)
            formats = [None if is_tf_record(head) else format_of(head) for head in heads]
            for info, found in zip(objects, formats, strict=True):
                if found not in (None, ARRAY_RECORD):
                    raise foreign(objects, info, found, "a TFRecord or array_record file", "*.tfrecord")
            listed = [info for info, found in zip(objects, formats, strict=True) if found]
            framed = [info for info, found in zip(objects, formats, strict=True) if not found]
            chunks = iter(array_record_chunks(client, listed, timeout_s))
            bounds = iter(tf_record_bounds(client, framed, timeout_s=timeout_s))
            return _RecordTable(objects, [next(chunks) if found else next(bounds) for found in formats]), _Record(
                decode
            )

        super().__init__(client_or_url, entries, find, bucket=bucket, timeout_s=timeout_s, retry_s=retry_s, **options)

    def __repr__(self) -> str:
        return f"<Records, {len(self):,} in all, {self._client!r}>"


class _RecordTable(BoundsTable):
    """Records that are ranges, and those within ranges: the chunks of array_record files."""

    def __init__(
        self, objects: Sequence[ObjectInfo], found: Sequence[npt.NDArray[np.int64] | ArrayRecordChunks]
    ) -> None:
        self._chunks = [one.stops if isinstance(one, ArrayRecordChunks) else None for one in found]
        bounds = [one.bounds if isinstance(one, ArrayRecordChunks) else one for one in found]
        counts = [
            len(one) - 1 if stops is None else sum(stops[-1:].tolist())
            for one, stops in zip(bounds, self._chunks, strict=True)
        ]
        super().__init__(objects, bounds, counts)

    def entry_of(self, number: int, within: int) -> Entry:
        stops = self._chunks[number]
        if stops is None:
            return super().entry_of(number, within)
        chunk = int(stops.searchsorted(within, "right"))
        before = stops.item(chunk - 1) if chunk else 0
        part = Within(within - before, of=stops.item(chunk) - before)
        return replace(super().entry_of(number, chunk), opaque=part)


class _Record(ItemDecoder):
    def read(self, item: Item) -> Any:
        if isinstance(item, SharedItem):
            records = item.unpacked(lambda chunk: array_records(chunk.data, chunk.entry.start))
            if len(records) != item.entry.opaque.of:
                raise ArchiveDamaged(f"a chunk of {len(records)} records; the footer says {item.entry.opaque.of}")
            data = records[item.entry.opaque.part]
        else:
            data = tf_record_data(item.data)
        return bytes(data) if self._decode is None else Item(item.index, item.entry, item.status, data, None)


_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


def tf_record_bounds(client: Client, objects: Sequence[ObjectInfo], *, timeout_s: float) -> list[npt.NDArray[np.int64]]:
    """Return where the records of each object begin and, last, its size. Like the indexes of lines, they are kept.

    Raises ArchiveDamaged for an object that is truncated or no TFRecord file, and the errors of `Client.get_batch`.
    """

    def made(absent: Sequence[ObjectInfo]) -> Iterator[npt.NDArray[np.int64]]:
        for info, pieces in object_pieces(client, absent, timeout_s=timeout_s):
            yield _bounds_of(info, pieces)

    return kept_indexes(client, objects, bounds_index(TF_RECORDS), made, timeout_s=timeout_s)


def tf_record_data(framed: memoryview) -> memoryview:
    """Return the data of a record with its frame. Raises ArchiveDamaged if a checksum does not match."""
    data = framed[_HEADER.size : -_FOOTER.size]
    if len(framed) < _HEADER.size + _FOOTER.size or _length(framed) != len(data):
        raise ArchiveDamaged("a TFRecord whose length is damaged, or does not match its checksum")
    if _masked(crc32c(data)) != _FOOTER.unpack(framed[-_FOOTER.size :])[0]:
        raise ArchiveDamaged("a TFRecord whose data do not match their checksum: it was damaged before it was stored")
    return data


def is_tf_record(head: bytes) -> bool:
    """Whether a file that begins with these bytes begins with the length of a record, and its checksum."""
    return len(head) >= _HEADER.size and _length(head) is not None


def _length(framed: bytes | memoryview) -> int | None:
    """Return the length of the record that begins here; None if its checksum does not match."""
    length, checksum = _HEADER.unpack(framed[: _HEADER.size])
    return length if checksum == _masked(crc32c(framed[:8])) else None


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _bounds_of(info: ObjectInfo, pieces: Iterator[Piece]) -> npt.NDArray[np.int64]:
    bounds = [0]
    rest, begin = b"", 0
    """Bytes that are not parsed, and where they begin in the object."""
    for piece in pieces:
        rest += piece.tobytes()
        while (at := bounds[-1] - begin) + _HEADER.size <= len(rest):
            length = _length(rest[at : at + _HEADER.size])
            if length is None:
                raise ArchiveDamaged(
                    f"{place(info)}: no record at byte {bounds[-1]:,}: its length does not match its "
                    "checksum; the file is damaged, compressed (store it unpacked), or no TFRecord file"
                )
            bounds.append(bounds[-1] + _HEADER.size + length + _FOOTER.size)
        cut = min(at, len(rest))
        rest, begin = rest[cut:], begin + cut
    if bounds[-1] != info.size_bytes:
        raise ArchiveDamaged(
            f"{place(info)}: truncated: record {max(0, len(bounds) - 2)}, from byte "
            f"{bounds[-2] if len(bounds) > 1 else 0:,}, does not end with the file's {info.size_bytes:,} bytes"
        )
    return np.array(bounds, np.int64)
