"""Parquet rows: a map-style dataset of the rows or row groups of Parquet files, by number."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ArchiveDamaged, InvalidRequest
from ais_loader.extras import needs
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.range_table import RangeTable, place, read_ranges, text_column
from ais_loader.training.process_client import ClientOrUrl
from ais_loader.training.range_dataset import ItemDecoder, RangeDataset
from ais_loader.training.sample_parts import Within
from ais_loader.values.entry import Entry, EntryLike, Item, ObjectInfo
from ais_loader.values.source import Buffer
from ais_loader.wire.sparse_file import SparseFile

if TYPE_CHECKING:
    import pyarrow.parquet


_TAIL_BYTES = 64 << 10
"""Bytes at the end of a file that pyarrow reads first, and that most footers fit into."""

Unit = Literal["row", "row_group"]


class ParquetRows(RangeDataset):
    """A map-style dataset of the rows in Parquet files, by number, for any sampler or plan.

    A sample is a dict from column to value, as `pyarrow.Table.to_pylist` returns them. With `unit="row_group"`, it is
    the pyarrow.Table of a row group that has rows. Those of a file follow each other, file after file.

    A batch is one request for the bytes of the columns in the row groups that it needs. Parquet is read by row groups:
    a row costs its columns of the group, once for all rows of the group in a batch. For rows in any order, write small
    groups, or take row groups as samples. Footers are read when the dataset is made, with one request, and one more for
    those above 64 KiB. All else is as in a MapDataset, also `+` and `concat`.
    """

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[EntryLike] | Bucket,
        columns: Sequence[str] | None = None,
        *,
        unit: Unit = "row",
        bucket: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, bucket, timeout_s, retry_s, options: See MapDataset.
            entries: Whole objects, as in MapDataset, or the URL of a prefix.
            columns: The columns to read; all by default. "a.b" is a field of a struct, and "a" all of them.
            unit: Whether a sample is a row or a row group.

        Raises InvalidRequest for an unknown column, an encrypted file, and an object that is no Parquet file;
        ArchiveDamaged for a footer that cannot be read; MissingExtra without pyarrow; ObjectNotFound, TypeError, and
        the errors of listing and reading. Reading raises ArchiveDamaged for pages that cannot be decoded.
        """
        if unit not in ("row", "row_group"):
            raise InvalidRequest(f"unit={unit!r}: need 'row' or 'row_group'")
        if isinstance(columns, str) or (columns is not None and not columns):
            raise InvalidRequest(f"columns={columns!r}: need a list of names of columns, or None for all")

        def find(client: Client, objects: list[ObjectInfo]) -> tuple[_RowTable, _Rows]:
            footers = _footers(client, objects, timeout_s)
            names = None if columns is None else list(columns)
            return _RowTable(objects, footers, names, of_groups=unit == "row_group"), _Rows(footers, names)

        super().__init__(client_or_url, entries, find, bucket=bucket, timeout_s=timeout_s, retry_s=retry_s, **options)

    def __repr__(self) -> str:
        return f"<ParquetRows, {len(self):,} samples, {self._client!r}>"


class _RowTable(RangeTable):
    def __init__(
        self,
        objects: Sequence[ObjectInfo],
        footers: Sequence[pyarrow.parquet.FileMetaData],
        columns: list[str] | None,
        *,
        of_groups: bool,
    ) -> None:
        self._of_groups, self._columns, self._footers = of_groups, columns, footers
        rows = [[footer.row_group(at).num_rows for at in range(footer.num_row_groups)] for footer in footers]
        self._rows = [np.array(one, np.int64).cumsum() for one in rows]
        """Number of rows up to the end of each group, by file."""
        for info, one in zip(objects, rows, strict=True):
            if min(one, default=0) < 0:
                raise ArchiveDamaged(f"{place(info)}: a footer with a group of {min(one)} rows")
        self._groups = [[at for at, count in enumerate(one) if count] for one in rows]
        super().__init__(objects, [len(one) for one in self._groups] if of_groups else map(sum, rows))
        self._leaves = [_leaves(*one, columns) for one in zip(objects, footers, strict=True)]
        self._ranges: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}

    def entry_of(self, number: int, within: int) -> Entry:
        row = None
        if self._of_groups:
            group = self._groups[number][within]
        else:
            group = int(self._rows[number].searchsorted(within, "right"))
            row = within - (self._rows[number].item(group - 1) if group else 0)
        key = (number, group)
        if (ranges := self._ranges.get(key)) is None:
            ranges = self._ranges[key] = self._ranges_of(number, group)
        bucket, name, version = self._objects[number]
        return Entry(bucket, name, version=version, ranges=ranges, opaque=Within(row, key))

    def columns(self) -> Iterable[npt.NDArray[np.integer[Any]]]:
        return self._stops, text_column([self._of_groups, self._columns])

    def _ranges_of(self, number: int, group: int) -> tuple[tuple[int, int], ...]:
        """Return where the chunks of the columns are in the file, those that follow each other as one."""
        import pyarrow

        try:  # pyarrow ends the process where `column` comes to an error of the footer, and raises the same one here
            empty = _opened(1 << 62, [], metadata=self._footers[number], buffer_size=1)
            empty.reader.read_row_group(group, column_indices=self._leaves[number], use_threads=False)
        except io.UnsupportedOperation:  # a byte of the pages
            pass
        except (pyarrow.ArrowException, OSError) as error:
            name = "/".join(self._objects[number][:2])
            raise ArchiveDamaged(f"ais://{name}: a footer that cannot be read: {error}").caused_by(error) from None
        found: list[tuple[int, int]] = []
        chunks = [self._footers[number].row_group(group).column(leaf) for leaf in self._leaves[number]]
        for start, length in sorted((_start_of(chunk), chunk.total_compressed_size) for chunk in chunks):
            if found and sum(found[-1]) == start:
                start, length = found[-1][0], found.pop()[1] + length
            found.append((start, length))
        return tuple(found)


class _Rows(ItemDecoder):
    def __init__(self, footers: Sequence[pyarrow.parquet.FileMetaData], columns: list[str] | None) -> None:
        super().__init__()
        self._footers, self._columns = footers, columns

    def read(self, item: Any) -> Any:
        table, row = item.unpacked(self._table), item.entry.opaque.part
        return table if row is None else table.slice(row, 1).to_pylist()[0]

    def _table(self, item: Item) -> Any:
        import pyarrow.parquet

        number, group = item.entry.opaque.of
        ranges = item.entry.ranges or ()
        stops = itertools.accumulate(size or 0 for _, size in ranges)
        parts = [(at, item.data[stop - (size or 0) : stop]) for stop, (at, size) in zip(stops, ranges, strict=True)]
        try:
            file = _opened(max(map(sum, ranges)), parts, metadata=self._footers[number])  # type: ignore[arg-type]
            table = file.read_row_group(group, self._columns, use_threads=False)
            if len(table) != self._footers[number].row_group(group).num_rows:
                raise OSError(f"it has {len(table):,} rows, not those of the footer")
            return table
        except (pyarrow.ArrowException, OSError) as error:
            raise ArchiveDamaged(f"row group {group}, which cannot be decoded: {error}").caused_by(error) from None


def _opened(size_bytes: int, parts: Iterable[tuple[int, Buffer]], **options: Any) -> pyarrow.parquet.ParquetFile:
    import pyarrow.parquet

    file = SparseFile(size_bytes, parts)
    return pyarrow.parquet.ParquetFile(file, pre_buffer=False, page_checksum_verification=True, **options)


def _footers(client: Client, objects: Sequence[ObjectInfo], timeout_s: float) -> list[pyarrow.parquet.FileMetaData]:
    with needs("pyarrow", "Parquet files", extra="parquet"):
        import pyarrow.parquet
    sizes = [min(_TAIL_BYTES, info.size_bytes) for info in objects]
    tails = _read_ends(client, objects, sizes, timeout_s)
    needed = [_footer_bytes(info, tail) for info, tail in zip(objects, tails, strict=True)]
    long = [at for at, size in enumerate(needed) if size > sizes[at]]
    ends = _read_ends(client, [objects[at] for at in long], [needed[at] for at in long], timeout_s)
    for at, tail in zip(long, ends, strict=True):
        tails[at] = tail
    footers = []
    for info, tail in zip(objects, tails, strict=True):
        try:
            footers.append(_opened(info.size_bytes, [(info.size_bytes - len(tail), tail)]).metadata)
        except (pyarrow.ArrowException, OSError) as error:
            raise ArchiveDamaged(f"{place(info)}: a footer that cannot be read: {error}").caused_by(error) from None
    return footers


def _read_ends(client: Client, objects: Sequence[ObjectInfo], sizes: Sequence[int], timeout_s: float) -> list[bytes]:
    ranges = [(info, info.size_bytes - size, size) for info, size in zip(objects, sizes, strict=True)]
    return read_ranges(client, ranges, timeout_s)


def _footer_bytes(info: ObjectInfo, tail: bytes) -> int:
    """Return the size of a file's footer, with the 8 bytes behind it."""
    if tail.endswith(b"PARE"):
        raise InvalidRequest(f"{place(info)}: an encrypted Parquet file, which cannot be read here")
    size = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < 12 or not tail.endswith(b"PAR1") or size > info.size_bytes:
        raise InvalidRequest(f"{place(info)}: no Parquet file, or a truncated one: its end is not that of one")
    return size


def _leaves(info: ObjectInfo, footer: pyarrow.parquet.FileMetaData, columns: list[str] | None) -> list[int]:
    """Return the numbers of the columns to read, in which structs and lists are resolved."""
    paths = [footer.schema.column(at).path for at in range(footer.num_columns)]
    if not paths:
        raise InvalidRequest(f"{place(info)}: a Parquet file without columns")
    for name in columns or ():
        if not any(path == name or path.startswith(f"{name}.") for path in paths):
            known = ", ".join(dict.fromkeys(path.partition(".")[0] for path in paths))
            raise InvalidRequest(f"{place(info)}: no column {name!r}; its columns are {known}")
    return [
        at
        for at, path in enumerate(paths)
        if columns is None or any(path == name or path.startswith(f"{name}.") for name in columns)
    ]


def _start_of(chunk: Any) -> int:
    starts = (chunk.dictionary_page_offset, chunk.data_page_offset)
    return int(min((start for start in starts if start), default=0))  # some writers say 0 where there is no dictionary
