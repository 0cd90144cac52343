"""Records: a map-style dataset of the records in TFRecord and array_record files, by number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ArchiveDamaged
from ais_loader.file_formats import ARRAY_RECORD, HEAD_BYTES, format_of
from ais_loader.objects.array_records import ArrayRecordChunks, array_record_chunks, array_records
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.range_table import BoundsTable, foreign, read_ranges
from ais_loader.objects.tf_records import is_tf_record, tf_record_bounds, tf_record_data
from ais_loader.training.process_client import ClientOrUrl
from ais_loader.training.range_dataset import ItemDecoder, RangeDataset
from ais_loader.training.sample_parts import SharedItem, Within
from ais_loader.values.entry import Entry, EntryLike, Item, ObjectInfo


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
