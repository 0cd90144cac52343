"""Megatron tokens: a map-style dataset of the sequences in Megatron's .bin and .idx files, or of windows of them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ais_loader.errors import ArchiveDamaged, InvalidRequest
from ais_loader.objects.bucket import Bucket
from ais_loader.objects.client import Client
from ais_loader.objects.range_table import RangeTable, described, pin_of, place, read_ranges, text_column
from ais_loader.training.process_client import ClientOrUrl, ProcessClient
from ais_loader.training.range_dataset import RangeDataset
from ais_loader.training.token_windows import Tokens, count_of
from ais_loader.values.entry import Entry, EntryLike, Item, ObjectInfo

_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\0\0"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
"""Types of tokens by their code. 6 and 7 are floats, which were exchanged between versions of Megatron."""
_LENGTHS, _POINTERS, _DOCUMENTS, _MODES = range(4)
_COLUMN_TYPES = tuple(map(np.dtype, ("<i4", "<i8", "<i8", "i1")))
_PAGE = 1024
_MOST_BYTES = 256 << 20
"""Bytes of indexes that a process keeps."""

_SEQUENCES = ("sequence", None)

Unit = Literal["sequence", "document"]
Array = npt.NDArray[np.integer[Any]]


class MegatronTokens(RangeDataset):
    """A map-style dataset of the sequences in Megatron's indexed files, by number, for any sampler or plan.

    A sample is a numpy array of the tokens of a sequence, in the machine's byte order; with `as_tensor`, a torch tensor
    of int64. With `unit="document"`, it has all sequences of a document. Samples of a multimodal file, which has a mode
    for each sequence, are pairs of the array and the mode, an int. With `sequence_length`, samples are those of
    Megatron's GPTDataset: number n of a file has the `sequence_length + 1` tokens that `GPTDataset[n]` has, across
    documents that are shuffled.

    A batch is one request, whatever files its samples are in, for their bytes alone. Only the headers of indexes are
    read at first. What a batch needs of the rest is read with one request before it (two for documents). Up to 256 MiB
    of it are kept in each process: 12 bytes for each sequence, in pages of 1,024. With `sequence_length`, the
    index of a file is read as a whole, and 12 more bytes are kept for each sequence and epoch.

    Source: Megatron-LM, core 0.13, megatron/core/datasets/{indexed_dataset,gpt_dataset}.py and helpers.cpp.
    """

    def __init__(
        self,
        client_or_url: ClientOrUrl,
        entries: Iterable[EntryLike] | Bucket,
        unit: Unit = "sequence",
        *,
        sequence_length: int | None = None,
        seed: int = 1234,
        epochs: int = 1,
        as_tensor: bool = False,
        bucket: str | None = None,
        timeout_s: float = 30.0,
        retry_s: float | None = None,
        **options: Any,
    ) -> None:
        """
        Args:
            client_or_url, bucket, timeout_s, retry_s, options: See MapDataset.
            entries: Whole objects, as in MapDataset, or the URL of a prefix: files `x.bin` or their `x.idx`, or both.
                The other one is beside it.
            unit: Whether a sample is a sequence or a document. They are the same unless sentences were split.
            sequence_length: The number of tokens that a model takes, one less than those of a sample.
            seed: Megatron's `random_seed`, for the order of documents and samples with `sequence_length`. It applies
                to each file.
            epochs: How often each file is repeated, with `sequence_length`: its documents are shuffled over all epochs,
                as Megatron does for `num_samples` = `(epochs * tokens - 1) // sequence_length`.
            as_tensor: Whether a sample is a torch tensor of int64 in place of the array.

        Raises InvalidRequest for an object of another name, an index of another format, or of floats, and files of
        different types; ArchiveDamaged for an index of another size than its header says; ObjectNotFound, TypeError,
        and the errors of listing and reading. Reading raises ArchiveDamaged for an index and tokens that do not fit.
        """
        if unit not in ("sequence", "document"):
            raise InvalidRequest(f"unit={unit!r}: need 'sequence' or 'document'")
        if sequence_length is not None:
            if unit != "sequence":
                raise InvalidRequest("unit='document' with sequence_length: windows go across documents")
            count_of("sequence_length", sequence_length), count_of("epochs", epochs)
            if count_of("seed", seed, 0) >= 2**32:
                raise InvalidRequest(f"seed={seed}: need less than 2**32, as numpy's RandomState does")

        def find(client: Client, objects: list[ObjectInfo]) -> tuple[_IndexedTable, _MegatronTokens]:
            files = _files(client, objects, timeout_s)
            stored = np.dtype(_DTYPES[files[0].code]) if files else np.dtype("<u2")
            decode = _MegatronTokens(stored, as_tensor=as_tensor)
            if modal := [one.index for one in files if one.counts[_MODES] and (unit, sequence_length) != _SEQUENCES]:
                raise InvalidRequest(
                    f"{place(modal[0])}: multimodal, with a mode for each sequence, which "
                    "a sample of several would mix: leave out unit and sequence_length"
                )
            if sequence_length is None:
                return _SequenceTable(files, unit == "document", timeout_s), decode
            return _WindowTable(files, sequence_length, seed, epochs, timeout_s), decode

        super().__init__(client_or_url, entries, find, bucket=bucket, timeout_s=timeout_s, retry_s=retry_s, **options)
        self._entries.client = self._client  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<MegatronTokens, {len(self):,} samples, {self._client!r}>"


@dataclass(frozen=True, slots=True)
class _File:
    """A pair of files, by the header of its index."""

    tokens: ObjectInfo
    index: ObjectInfo
    code: int
    counts: tuple[int, int, int, int]
    """Length of each column of the index."""

    @property
    def token_bytes(self) -> int:
        return np.dtype(_DTYPES[self.code]).itemsize

    def page_of(self, column: int, page: int) -> tuple[ObjectInfo, int, int]:
        """Return where a page of a column is, in bytes."""
        sizes = [kind.itemsize for kind in _COLUMN_TYPES]
        start = _HEADER.size + sum(count * size for count, size in zip(self.counts[:column], sizes, strict=False))
        first = page * _PAGE
        return self.index, start + first * sizes[column], min(_PAGE, self.counts[column] - first) * sizes[column]

    def damaged(self, why: str) -> ArchiveDamaged:
        return ArchiveDamaged(f"{place(self.index)}: {why}")


def _files(client: Client, objects: Sequence[ObjectInfo], timeout_s: float) -> list[_File]:
    known: dict[tuple[str, str], ObjectInfo] = {}
    for info in objects:
        if not info.name.endswith((".bin", ".idx")):
            raise InvalidRequest(
                f"{place(info)}: need files of Megatron, x.bin or x.idx; leave it out with "
                "Bucket.entries(prefix, pattern='*.bin')"
            )
        known[info.bucket, info.name] = info
    stems = list(dict.fromkeys((info.bucket, info.name[:-4]) for info in objects))
    names = [(bucket, stem + end) for bucket, stem in stems for end in (".bin", ".idx")]
    absent = [one for one in names if one not in known]
    known |= zip(absent, described(client, [Entry(*one) for one in absent], None), strict=True)
    pairs = [(known[bucket, f"{stem}.bin"], known[bucket, f"{stem}.idx"]) for bucket, stem in stems]
    heads = read_ranges(client, [(one, 0, min(_HEADER.size, one.size_bytes)) for _, one in pairs], timeout_s)
    files = [_file(tokens, index, head) for (tokens, index), head in zip(pairs, heads, strict=True)]
    for file in files:
        if file.code != files[0].code:
            raise InvalidRequest(
                f"{place(file.index)}: tokens of {_DTYPES[file.code]}, and "
                f"{_DTYPES[files[0].code]} in {files[0].index.name}: make a dataset of each, and `concat` them"
            )
    return files


def _file(tokens: ObjectInfo, index: ObjectInfo, head: bytes) -> _File:
    if not head.startswith(_MAGIC) or len(head) < _HEADER.size:
        raise InvalidRequest(f"{place(index)}: not an index of Megatron, which begins with {_MAGIC!r}")
    _, version, code, sequences, bounds = _HEADER.unpack(head)
    if version != 1 or code not in _DTYPES:
        raise InvalidRequest(
            f"{place(index)}: version {version}, type {code}; need version 1, and tokens that are integers"
        )
    modes = index.size_bytes - _HEADER.size - 12 * sequences - 8 * bounds
    file = _File(tokens, index, code, (sequences, sequences, bounds, modes))
    if modes not in (0, sequences):
        raise file.damaged(f"{index.size_bytes:,} bytes, not what {sequences:,} sequences take: truncated or damaged")
    return file


class _IndexedTable(RangeTable):
    """Samples whose places are in indexes. What is read of these is kept until it takes too much memory."""

    def __init__(self, files: Sequence[_File], counts: Sequence[int], timeout_s: float, *parameters: int) -> None:
        """`parameters`: what else the samples depend on."""
        super().__init__([file.tokens for file in files], counts)
        self._files, self._parameters = files, parameters
        self._timeout_s = timeout_s
        self._kept: dict[Any, Any] = {}
        self._kept_bytes = 0
        self.client: ProcessClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": {}, "_kept_bytes": 0}  # not to be copied to each worker

    def columns(self) -> Iterable[npt.NDArray[np.integer[Any]]]:
        return self._stops, np.array(self._parameters), text_column([pin_of(file.index) for file in self._files])

    def _read(self, ranges: Sequence[tuple[ObjectInfo, int, int]]) -> list[bytes]:
        assert self.client is not None
        return read_ranges(self.client.get(), ranges, self._timeout_s)

    def _keep(self, found: dict[Any, Any], size_bytes: int) -> None:
        # Threads that come here together lose no more than what one of them has read.
        if self._kept_bytes + size_bytes > _MOST_BYTES:
            self._kept, self._kept_bytes = {}, 0
        self._kept |= found
        self._kept_bytes += size_bytes

    def _within(self, file: _File, start: int, stop: int) -> int:
        """Return the length in bytes of a range of a file's tokens."""
        if not 0 <= start <= stop <= file.tokens.size_bytes:
            raise file.damaged(f"bytes {start:,} to {stop:,} are not in its tokens, {file.tokens.size_bytes:,} bytes")
        return stop - start


class _SequenceTable(_IndexedTable):
    """Sequences or documents."""

    def __init__(self, files: Sequence[_File], of_documents: bool, timeout_s: float) -> None:
        column = _DOCUMENTS if of_documents else _LENGTHS
        super().__init__(files, [max(0, file.counts[column] - of_documents) for file in files], timeout_s, of_documents)
        self._of_documents = of_documents

    def load(self, indices: Sequence[int]) -> None:
        places = [self.place_of(at) for at in indices]
        if self._of_documents:
            self._fetch((number, _DOCUMENTS, bound // _PAGE) for number, at in places for bound in (at, at + 1))
            spans = [(number, *self._sequences(number, at)) for number, at in places]
            places = [(number, at) for number, first, stop in spans if first < stop for at in (first, stop - 1)]
        columns = (_LENGTHS, _POINTERS, _MODES)
        self._fetch((number, column, at // _PAGE) for number, at in places for column in columns)

    def entry_of(self, number: int, within: int) -> Entry:
        file, (first, stop) = self._files[number], self._sequences(number, within)
        start = end = 0
        if first < stop:
            start = self._at(number, _POINTERS, first)
            end = self._at(number, _POINTERS, stop - 1) + self._at(number, _LENGTHS, stop - 1) * file.token_bytes
        mode = self._at(number, _MODES, first) if file.counts[_MODES] else None
        bucket, name, version = self._objects[number]
        return Entry(bucket, name, None, start, self._within(file, start, end), version, mode)

    def _sequences(self, number: int, at: int) -> tuple[int, int]:
        """Return the first sequence of a sample, and the one behind its last."""
        if not self._of_documents:
            return at, at + 1
        first, stop = (self._at(number, _DOCUMENTS, bound) for bound in (at, at + 1))
        file = self._files[number]
        if not 0 <= first <= stop <= file.counts[_LENGTHS]:
            raise file.damaged(f"document {at} has sequences {first:,} to {stop:,}")
        return first, stop

    def _at(self, number: int, column: int, at: int) -> int:
        key = (number, column, at // _PAGE)
        while (page := self._kept.get(key)) is None:  # another thread may have it forgotten at once
            self._fetch([key])
        return int(page[at % _PAGE])

    def _fetch(self, keys: Iterable[tuple[int, int, int]]) -> None:
        """Read the pages of (file, column, page) that are not kept, with one request."""
        missing = [key for key in dict.fromkeys(keys) if key not in self._kept and self._files[key[0]].counts[key[1]]]
        data = self._read([self._files[number].page_of(column, page) for number, column, page in missing])
        read = {key: np.frombuffer(one, _COLUMN_TYPES[key[1]]) for key, one in zip(missing, data, strict=True)}
        self._keep(read, sum(map(len, data)))


class _Order(NamedTuple):
    """The order of one file's documents over all epochs, and of its samples."""

    samples: Array
    documents: Array
    stops: Array
    """Number of tokens up to the end of each document, in their order."""
    pointers: Array
    """Where each document begins, in bytes, in the file's order."""


class _WindowTable(_IndexedTable):
    """Windows over documents that are shuffled, as GPTDataset makes them."""

    def __init__(self, files: Sequence[_File], length: int, seed: int, epochs: int, timeout_s: float) -> None:
        self._length, self._seed, self._epochs = length, seed, epochs
        tokens = [file.tokens.size_bytes // file.token_bytes for file in files]
        super().__init__(
            files, [max(0, (epochs * one - 1) // length) for one in tokens], timeout_s, length, seed, epochs
        )

    def load(self, indices: Sequence[int]) -> None:
        missing = sorted({self.place_of(at)[0] for at in indices} - self._kept.keys())
        if missing:
            spans = [(self._files[number], self._files[number].counts[_LENGTHS]) for number in missing]
            # Lengths and pointers follow each other.
            data = self._read([(file.index, _HEADER.size, 12 * count) for file, count in spans])
            read = {number: self._order(number, one) for number, one in zip(missing, data, strict=True)}
            self._keep(read, sum(column.nbytes for order in read.values() for column in order))

    def entry_of(self, number: int, within: int) -> Entry:
        while (order := self._kept.get(number)) is None:
            self.load([self.first_of(number)])
        size = self._files[number].token_bytes
        first = order.samples.item(within) * self._length
        stop = first + self._length + 1
        ranges: list[tuple[int, int]] = []
        for at in range(int(order.stops.searchsorted(first, "right")), int(order.stops.searchsorted(stop)) + 1):
            begin = order.stops.item(at - 1) if at else 0
            start = order.pointers.item(order.documents.item(at)) + max(0, first - begin) * size
            length = (min(stop, order.stops.item(at)) - max(first, begin)) * size
            if ranges and sum(ranges[-1]) == start:
                start, length = ranges[-1][0], ranges.pop()[1] + length
            if length:
                ranges.append((start, length))
        bucket, name, version = self._objects[number]
        if len(ranges) == 1:
            return Entry(bucket, name, None, *ranges[0], version)
        return Entry(bucket, name, version=version, ranges=tuple(ranges))

    def _order(self, number: int, data: bytes) -> _Order:
        file = self._files[number]
        count = file.counts[_LENGTHS]
        lengths, pointers = np.frombuffer(data, "<i4", count), np.frombuffer(data, "<i8", count, 4 * count)
        size = file.token_bytes
        ends = pointers + lengths.astype(np.int64) * size
        self._within(file, 0, int(ends.max(initial=0)))
        if (
            min(lengths.min(initial=0), pointers.min(initial=0), ends.min(initial=0)) < 0
            or int(lengths.sum(dtype=np.int64)) * size != file.tokens.size_bytes
        ):
            raise file.damaged(f"its lengths are not those of {file.tokens.size_bytes:,} bytes of tokens")
        # Megatron's order depends on numpy's old generator, and on drawing in this sequence.
        random = np.random.RandomState(self._seed)
        documents = np.tile(np.arange(count, dtype=np.int32), self._epochs)
        random.shuffle(documents)
        samples = np.arange(self._stops.item(number) - self.first_of(number), dtype=np.int64)
        random.shuffle(samples)
        return _Order(samples, documents, lengths[documents].cumsum(dtype=np.int64), pointers)


class _MegatronTokens(Tokens):
    """Decoder of tokens, with the mode that its entry has of a multimodal file."""

    def read(self, item: Item) -> Any:
        tokens, mode = super().read(item), item.entry.opaque
        return tokens if mode is None else (tokens, mode)
