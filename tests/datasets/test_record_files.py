"""Records: TFRecord and array_record files by record number, one request per batch, and damage that is told."""

from __future__ import annotations

import random
import re
import resource
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from datasets_kit import RecordingTransport
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, Bucket, Client, Lines, Records, concat, decoders, errors
from ais_loader.objects import array_records as array_records_module
from ais_loader.objects import kept_index
from ais_loader.plans import ShufflePlan
from ais_loader.values.entry import Item
from tests.formats_kit import array_record, riegeli_chunk, tf_record, varint, zstd
from tests.table import table

_draw = random.Random(5)


def drawn(count: int, *sizes: int) -> list[bytes]:
    return [_draw.randbytes(_draw.choice(sizes)) for _ in range(count)]


RECORDS = {
    "a.tfrecord": drawn(80, 0, 1, 12, 300),
    "b.array_record": drawn(50, 0, 1, 12, 300, 40_000),
    "c.tfrecord": [],
    "d.array_record": drawn(60, 0, 5, 1000, 20_000),  # in chunks of 7
    "e.tfrecord-00000-of-00001": drawn(3, 200_000),
    "f.array_record": [],
}
FILES = {
    name: b"".join(map(tf_record, records)) if "tfrecord" in name else array_record(records)
    for name, records in RECORDS.items()
} | {"d.array_record": array_record(RECORDS["d.array_record"], 7, b"z", zstd)}
SHORT = [b"%d" % at * 9 for at in range(12)]
EXPECTED = [record for records in RECORDS.values() for record in records]


@pytest.fixture
def bucket(store: Client) -> Iterator[Bucket]:
    bucket = store.create_bucket("records")
    bucket.put_many((f"train/{name}", data) for name, data in FILES.items())
    yield bucket
    store.delete_bucket("records", force=True)


def first_two(item: Item) -> bytes:
    return item.open().read(2)


def test_records_by_number(bucket: Bucket) -> None:
    records = Records(bucket.client, "ais://records/train/")
    assert len(records) == len(EXPECTED)
    drawn = _draw.choices(range(-len(EXPECTED), len(EXPECTED)), k=300)  # also some of one chunk, and some twice
    assert records.__getitems__(drawn) == [EXPECTED[at] for at in drawn]
    assert records[75:140] == EXPECTED[75:140]
    with pytest.raises(IndexError):
        records[len(EXPECTED)]
    decoded = Records(bucket.client, ["train/d.array_record", "train/a.tfrecord"], first_two, bucket="records")
    two = [one[:2] for name in ("d.array_record", "a.tfrecord") for one in RECORDS[name]]
    assert decoded[:] == two
    both = concat([decoded, Records(bucket.client, ["ais://records/train/b.array_record"])])
    assert both.__getitems__([0, 141, 1, 139, 0]) == [two[0], RECORDS["b.array_record"][1], two[1], two[139], two[0]]


def test_a_batch_is_one_request_and_chunks_are_fetched_once(local_store: Client) -> None:
    bucket = local_store.create_bucket("records")
    bucket.put_many(FILES.items())
    transport = RecordingTransport(local_store.url.removeprefix("file://"))
    try:
        Records(local_store, "ais://records/")  # keeps the indexes
        records = Records(Client(transport), "ais://records/")
        assert transport.requests == [6, 3, 3, 3]  # heads, ends and footers of array_record files, kept indexes
        transport.requests.clear()
        chunk = range(130, 144)  # of d: two chunks
        assert records.__getitems__([*chunk, 0, 81]) == [EXPECTED[at] for at in [*chunk, 0, 81]]
        assert transport.requests == [4]
    finally:
        transport.close()
        local_store.delete_bucket("records", force=True)


def test_an_index_of_records_is_kept_and_is_none_of_lines(bucket: Bucket) -> None:
    bucket.put("train/a.tfrecord", FILES["a.tfrecord"])
    Lines(bucket.client, ["train/a.tfrecord"], bucket="records")
    records = Records(bucket.client, ["train/a.tfrecord"], bucket="records")
    assert records[:] == RECORDS["a.tfrecord"]
    lines = Lines(bucket.client, ["train/a.tfrecord"], bucket="records")
    assert b"\n".join(lines[:]).replace(b"\n", b"") == FILES["a.tfrecord"].replace(b"\r\n", b"\n").replace(b"\n", b"")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@table("context", ["fork", "spawn"])
def test_workers_read_records(bucket: Bucket, context: str) -> None:
    records = Records(bucket.client.url, "ais://records/train/", first_two)
    loader = DataLoader(
        records, batch_size=30, num_workers=2, collate_fn=list, multiprocessing_context=context, timeout=180
    )
    assert [one for batch in loader for one in batch] == [one[:2] for one in EXPECTED]


def test_a_plan_draws_records_and_resumes(bucket: Bucket) -> None:
    def loader() -> BatchLoader:
        records = Records(bucket.client.url, "ais://records/train/")
        return BatchLoader(records, ShufflePlan(len(records), 30, seed=3))

    plan, first = ShufflePlan(len(EXPECTED), 30, seed=3), loader()
    running = iter(first)
    head = [next(running), next(running)]
    again = loader()
    again.load_state_dict(first.state_dict())
    assert [*head, *again] == [[EXPECTED[at] for at in plan.batch(0, step)] for step in range(plan.steps(0) or 0)]


@pytest.mark.parametrize("name", ["a.tfrecord", "b.array_record"])
def test_a_replaced_file_is_never_other_records(bucket: Bucket, name: str) -> None:
    records = Records(bucket.client, [f"train/{name}"], bucket="records")
    bucket.put(f"train/{name}", FILES[name])
    with pytest.raises(errors.ObjectNotFound, match=re.escape(name)):
        records[1]
    absent = Records(bucket.client, [f"train/{name}"], first_two, bucket="records", on_error="placeholder")
    bucket.put(f"train/{name}", b"other")
    assert absent[1] is None


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


TF, AR, ZS = FILES["a.tfrecord"], FILES["b.array_record"], FILES["d.array_record"]
_CHUNK = riegeli_chunk([b"a", b"bc"])


def _wrapped(start: int, count: int) -> tuple[int, int]:
    """Counts whose sum is 4 in 64 bits."""
    return start, {64: 2**63 - 1, 107: 2**63 - 1}.get(start, 3)


@table(
    ("data", "message"),
    [
        (TF[:-1], "InvalidOrDamaged: truncated: record 79"),
        (TF + b"x", "InvalidOrDamaged: truncated: record 79"),
        (TF[:7], "InvalidOrDamaged: truncated: record 0"),
        (_flipped(TF, 3), "InvalidOrDamaged: no record at byte 0"),
        (TF + bytes(50), "InvalidOrDamaged: no record at byte"),
        (b"text that is no record\n" * 9, "InvalidOrDamaged: no record at byte 0"),
        (b"PAR1" + TF, "InvalidRequest: Parquet, and not a TFRecord or array_record file"),
        (AR[:-1], "InvalidOrDamaged: its end is missing"),
        (AR[:65_536], "InvalidOrDamaged: its end is missing or damaged"),
        (_flipped(AR, len(AR) - 65_536 + 24 + 40 + 3), "InvalidOrDamaged: its end is missing or damaged"),
        (AR[:40], "InvalidOrDamaged: its end is missing"),
        (array_record([b"a"], footer_of=lambda start, _: (start, 2**64 - 1)), "InvalidOrDamaged: its footer"),
        (array_record([b"a"], footer_of=lambda *_: (2**64 - 5, 1)), "InvalidOrDamaged: its footer"),
        (
            array_record([b"", b"a", b"aa", b"aaa"], footer_of=_wrapped),
            "InvalidOrDamaged: its footer lists other chunks",
        ),
    ],
)
def test_a_damaged_file_is_refused(local_store: Client, data: bytes, message: str) -> None:
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    bucket.put("x", data)
    kind = errors.InvalidRequest if message.startswith("InvalidRequest") else errors.ArchiveDamaged
    with pytest.raises(kind, match=re.escape(message.partition(": ")[2])) as raised:
        Records(local_store, ["ais://damaged/x"])
    assert "ais://damaged/x" in str(raised.value)


def test_a_record_whose_length_looks_like_gzip(local_store: Client) -> None:
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    record = bytes(0x088B1F)
    bucket.put("x", tf_record(record))
    assert Records(local_store, ["ais://damaged/x"])[:] == [record]


def test_a_chunk_takes_no_more_memory_than_it_says() -> None:
    packed = varint(1) + zstandard.ZstdCompressor().compress(bytes(300 << 20))
    chunk = riegeli_chunk([b"a"], b"z", lambda data: packed if data == b"a" else zstd(data))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(errors.ArchiveDamaged, match="another size"):
        array_records_module.array_records(memoryview(chunk), 64)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_damaged_record_is_told_where_it_is(local_store: Client) -> None:
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    frame = len(tf_record(b"first"))
    bucket.put("x", tf_record(b"first") + _flipped(tf_record(b"second"), 14))
    records = Records(local_store, ["ais://damaged/x"])
    assert records[0] == b"first"
    with pytest.raises(errors.ArchiveDamaged, match="do not match their checksum") as raised:
        records[1]
    assert any(f"sample 1 of its dataset, ais://damaged/x, bytes {frame}" in note for note in raised.value.__notes__)


@table(
    ("chunk", "message"),
    [
        (_CHUNK[:39], "truncated"),
        (_CHUNK[:-1], "header is damaged"),
        (_CHUNK[:24] + b"m" + _CHUNK[25:], "header is damaged"),
        (riegeli_chunk([b"a"], chunk_type=b"t"), "transposed"),
        (riegeli_chunk([b"a"], b"s", lambda data: varint(len(data)) + data), "packed by 's'"),
        (riegeli_chunk([b"a"], b"z", lambda data: varint(len(data)) + data), "cannot be unpacked"),
        (riegeli_chunk([b"a"], b"z", lambda data: varint(1 << 60) + data), "bytes"),
        (riegeli_chunk([b"aaa"], b"z", lambda data: varint(len(data) + 5) + zstd(data)[1:]), "another size"),
        (_CHUNK[:25] + b"\3" + _CHUNK[26:], "sizes do not match"),
        (_CHUNK[:32] + struct.pack("<Q", 9) + _CHUNK[40:], "sizes do not match"),
        (_CHUNK[:42] + b"\xff" * 11, "header is damaged|damaged number"),
    ],
)
def test_a_damaged_chunk_is_refused(chunk: bytes, message: str) -> None:
    with pytest.raises(errors.ArchiveError, match=message):
        array_records_module.array_records(memoryview(chunk), 64)


@pytest.mark.slow
@table(("data", "size"), [(b"".join(map(tf_record, SHORT)), 0), (array_record(SHORT, 4, b"z", zstd), 4)])
def test_a_flipped_bit_is_told_or_stays_in_its_chunk(local_store: Client, data: bytes, size: int) -> None:
    # TFRecord has checksums of all that it stores. Hashes of array_record's chunks are not compared.
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    for _ in range(200):
        bucket.put("x", _flipped(data, _draw.randrange(min(len(data), 700))))
        wrong = set()
        with suppress(errors.ArchiveError):
            records = Records(local_store, ["ais://damaged/x"])
            assert len(records) == len(SHORT)
            for at in range(len(SHORT)):
                with suppress(errors.ArchiveError):
                    if records[at] != SHORT[at]:
                        wrong.add(at // max(1, size))
        assert len(wrong) <= (1 if size else 0)


class _Unbounded:
    """`brotli.Decompressor` before version 1.2."""

    def process(self, data: bytes) -> bytes:
        raise AssertionError("it takes any memory")


@table("module", [None, SimpleNamespace(Decompressor=_Unbounded)])
def test_brotli_is_told_if_it_is_missing_or_old(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    monkeypatch.setitem(sys.modules, "brotli", module)
    with pytest.raises(errors.LibraryMissing, match=re.escape("pip install 'brotli>=1.2'")):
        array_records_module.array_records(memoryview(riegeli_chunk([b"a"], b"b", zstd)), 64)


def test_an_index_does_not_depend_on_the_pieces_that_are_read(
    local_store: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_index, "_READ_BYTES", 13)
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    records = drawn(40, 0, 1, 5, 60)
    bucket.put("pieces", b"".join(map(tf_record, records)))
    assert Records(local_store, ["ais://damaged/pieces"])[:] == records


def test_an_example_becomes_arrays(local_store: Client) -> None:
    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2]) + varint(len(data)) + data

    features = {
        "floats": field(2, field(1, struct.pack("<2f", 0.5, -1.0))),
        "ints": field(3, b"\x08\x07\x08" + varint(2**64 - 3)),  # not packed, as old writers do
        "raw": field(1, field(1, b"\xff\0") + field(1, b"")),
        "none": b"",
    }
    message = b"".join(field(1, field(1, name.encode()) + field(2, one)) for name, one in features.items())
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    bucket.put("examples", tf_record(field(1, message)) + tf_record(b"\xff\xff"))
    records = Records(local_store, ["ais://damaged/examples"], decoders.example)
    sample = records[0]
    assert {name: one.dtype for name, one in sample.items()} == {
        "floats": np.float32,
        "ints": np.int64,
        "raw": np.dtype(object),
        "none": np.dtype(object),
    }
    assert {name: one.tolist() for name, one in sample.items()} == {
        "floats": [0.5, -1.0],
        "ints": [7, -3],
        "raw": [b"\xff\0", b""],
        "none": [],
    }
    with pytest.raises(ValueError, match=r"not a tf\.train\.Example"):
        records[1]
