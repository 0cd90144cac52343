"""ParquetRows: rows and row groups of Parquet files, one request per batch, of the columns that are needed."""

from __future__ import annotations

import io
import pickle
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets_kit import RecordingTransport
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, Bucket, Client, ParquetRows, concat, errors
from ais_loader.plans import ShufflePlan
from tests.table import table

_draw = random.Random(4)


def drawn(rows: int) -> pa.Table:
    return pa.table(
        {
            "id": range(rows),
            "text": [None if at % 7 == 3 else "word " * _draw.randrange(20) for at in range(rows)],
            "kind": pa.array([_draw.choice(["a", "b"]) for _ in range(rows)]).dictionary_encode(),
            "raw": [_draw.randbytes(_draw.randrange(2000)) for _ in range(rows)],
            "list": [[_draw.random() for _ in range(_draw.randrange(4))] for _ in range(rows)],
            "pair": [{"x": at, "y": {"z": str(at)}} for at in range(rows)],
        }
    )


TABLES = {"a": drawn(500), "b": drawn(0), "c": drawn(90), "d": drawn(1)}
OPTIONS: dict[str, dict[str, Any]] = {
    "a": {"row_group_size": 100, "compression": "zstd"},
    "b": {},
    "c": {"row_group_size": 13, "use_dictionary": False, "data_page_version": "2.0", "write_page_index": True},
    "d": {"compression": "none", "write_page_checksum": True},
}
ROWS = [row for one in TABLES.values() for row in one.to_pylist()]


def parquet(table: pa.Table, **options: Any) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target, **options)
    return target.getvalue()


@pytest.fixture
def bucket(store: Client) -> Iterator[Bucket]:
    bucket = store.create_bucket("tables")
    for name, one in TABLES.items():
        bucket.put(f"train/{name}.parquet", parquet(one, **OPTIONS[name]))
    yield bucket
    store.delete_bucket("tables", force=True)


def groups_of() -> list[pa.Table]:
    return [
        one.slice(first, OPTIONS[name].get("row_group_size", 10**6))
        for name, one in TABLES.items()
        for first in range(0, one.num_rows, OPTIONS[name].get("row_group_size", 10**6))
    ]


def test_rows_by_number(bucket: Bucket) -> None:
    rows = ParquetRows(bucket.client, "ais://tables/train/")
    assert len(rows) == len(ROWS)
    numbers = [*_draw.choices(range(-len(ROWS), len(ROWS)), k=60), 499, 500, len(ROWS) - 1]
    assert rows.__getitems__(numbers) == [ROWS[at] for at in numbers]
    assert rows[490:600] == ROWS[490:600]
    with pytest.raises(IndexError):
        rows[len(ROWS)]
    some = ParquetRows(bucket.client, ["train/c.parquet"], ["pair.y", "id"], bucket="tables", transform=lambda row: row)
    assert some[20] == {"id": 20, "pair": {"y": {"z": "20"}}}
    both = concat([some, rows])
    assert both.__getitems__([90 + 499, 3, 4]) == [ROWS[499], some[3], some[4]]


def test_row_groups_by_number(bucket: Bucket) -> None:
    groups = ParquetRows(bucket.client, "ais://tables/train/", unit="row_group")
    assert [one.to_pylist() for one in groups[:]] == [one.to_pylist() for one in groups_of()]
    texts = ParquetRows(bucket.client, "ais://tables/train/", ["text"], unit="row_group")
    assert [one.column_names for one in texts.__getitems__([0, 0, 5])] == [["text"]] * 3
    assert texts[5].column("text").to_pylist() == groups_of()[5].column("text").to_pylist()


def test_a_batch_is_one_request_for_the_columns_alone(local_store: Client) -> None:
    bucket = local_store.create_bucket("tables")
    transport = RecordingTransport(local_store.url.removeprefix("file://"))
    try:
        for name, one in TABLES.items():
            bucket.put(f"{name}.parquet", parquet(one, **OPTIONS[name]))
        rows = ParquetRows(Client(transport), "ais://tables/", ["id", "raw"])
        assert transport.requests == [4]  # the footers
        transport.requests.clear()
        assert [one["id"] for one in rows.__getitems__([5, 99, 100, 5, 501])] == [5, 99, 100, 5, 1]
        assert transport.requests == [6]  # two columns, which are apart, of three groups
        footer = pq.read_metadata(pa.BufferReader(bucket.get("a.parquet"))).row_group(0)
        needed = sum(footer.column(at).total_compressed_size for at in (0, 3))
        assert sum(length or 0 for _, length in rows._entries[5].ranges) == needed
    finally:
        transport.close()
        local_store.delete_bucket("tables", force=True)


def test_a_long_footer_is_read_whole(local_store: Client) -> None:
    bucket = local_store.create_bucket("wide", exist_ok=True)
    wide = pa.table({f"column {at}": [at, at + 1] for at in range(1500)})
    data = parquet(wide)
    assert int.from_bytes(data[-8:-4], "little") > 64 << 10
    bucket.put_many([("wide", data), ("d", parquet(TABLES["d"]))])
    rows = ParquetRows(local_store, ["ais://wide/wide", "ais://wide/d"], None)
    assert (len(rows), rows[1], rows[2]) == (3, wide.to_pylist()[1], TABLES["d"].to_pylist()[0])
    assert ParquetRows(local_store, ["ais://wide/wide"], ["column 1400"])[1] == {"column 1400": 1401}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_a_plan_draws_rows_and_resumes(bucket: Bucket) -> None:
    def loader(columns: list[str]) -> BatchLoader:
        rows = ParquetRows(bucket.client.url, "ais://tables/train/", columns)
        return BatchLoader(rows, ShufflePlan(len(rows), 50, seed=3))

    plan, first = ShufflePlan(len(ROWS), 50, seed=3), loader(["id"])
    running = iter(first)
    head = [next(running), next(running)]
    again, state = loader(["id"]), first.state_dict()
    again.load_state_dict(state)
    expected = [[{"id": ROWS[at]["id"]} for at in plan.batch(0, step)] for step in range(plan.steps(0) or 0)]
    assert [*head, *again] == expected
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        loader(["text"]).load_state_dict(state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_read_rows(bucket: Bucket) -> None:
    rows = ParquetRows(bucket.client.url, "ais://tables/train/")
    loader = DataLoader(
        rows, batch_size=100, num_workers=2, collate_fn=list, multiprocessing_context="spawn", timeout=180
    )
    assert [one for batch in loader for one in batch] == ROWS


@pytest.mark.slow
def test_any_table_comes_back(local_store: Client) -> None:
    bucket = local_store.create_bucket("wide", exist_ok=True)
    random = np.random.default_rng(3)
    for turn in range(40):
        one = drawn(int(random.integers(1, 300)))
        options = {
            "row_group_size": int(random.integers(1, 120)),
            "compression": str(random.choice(["none", "snappy", "gzip", "zstd", "lz4"])),
            "use_dictionary": bool(random.integers(2)),
            "data_page_size": int(random.integers(100, 5000)),
            "write_page_index": bool(random.integers(2)),
            "version": str(random.choice(["1.0", "2.6"])),
        }
        columns = random.permutation(one.column_names)[: random.integers(1, 7)].tolist()
        bucket.put("any", parquet(one, **options))
        expected = pq.read_table(pa.BufferReader(parquet(one, **options)), columns=columns).to_pylist()
        assert ParquetRows(local_store, ["ais://wide/any"], columns)[:] == expected, (turn, options, columns)


def test_a_replaced_file_is_never_other_rows(bucket: Bucket) -> None:
    rows = ParquetRows(bucket.client.url, ["train/a.parquet"], bucket="tables")
    patient = ParquetRows(bucket.client, ["train/a.parquet"], bucket="tables", on_error="placeholder")
    assert pickle.loads(pickle.dumps(rows))[7] == ROWS[7]
    bucket.put("train/a.parquet", parquet(TABLES["a"], **OPTIONS["a"]))
    with pytest.raises(errors.ObjectNotFound, match=r"a\.parquet"):
        rows[1]
    assert patient.__getitems__([1, 2]) == [None, None]


DATA = parquet(TABLES["a"], **OPTIONS["a"])


@table(
    ("data", "message"),
    [
        (b"", "InvalidRequest: ais://damaged/x: no Parquet file, or a truncated one"),
        (DATA[:-1], "InvalidRequest: ais://damaged/x: no Parquet file, or a truncated one"),
        (DATA[-500:], "InvalidRequest: ais://damaged/x: no Parquet file, or a truncated one"),
        (DATA[:-8] + b"\xff" * 4 + b"PAR1", "InvalidRequest: ais://damaged/x: no Parquet file, or a truncated one"),
        (DATA[:-4] + b"PARE", "InvalidRequest: ais://damaged/x: an encrypted Parquet file"),
        (b"{}\n" * 50, "InvalidRequest: ais://damaged/x: no Parquet file"),
        (DATA[:-300] + b"\xff" * 200 + DATA[-100:], "ArchiveDamaged: ais://damaged/x: a footer that cannot be read"),
    ],
)
def test_a_damaged_file_is_refused(local_store: Client, data: bytes, message: str) -> None:
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    bucket.put("x", data)
    kind, _, text = message.partition(": ")
    with pytest.raises(errors.LoaderError, match=re.escape(text)) as raised:
        ParquetRows(local_store, ["ais://damaged/x"])
    assert type(raised.value).__name__ == kind


def test_damaged_pages_are_told_where_they_are(local_store: Client) -> None:
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    footer = pq.read_metadata(pa.BufferReader(DATA)).row_group(1).column(0)
    at = footer.dictionary_page_offset or footer.data_page_offset
    bucket.put("x", DATA[:at] + b"\xff" * 60 + DATA[at + 60 :])
    rows = ParquetRows(local_store, ["ais://damaged/x"])
    assert rows[99] == ROWS[99]
    with pytest.raises(errors.ArchiveDamaged, match="row group 1, which cannot be decoded") as raised:
        rows.__getitems__([0, 100])
    assert any("sample 100 of its dataset, ais://damaged/x" in note for note in raised.value.__notes__)


def test_a_page_that_does_not_match_its_checksum_is_refused(local_store: Client) -> None:
    bucket = local_store.create_bucket("damaged", exist_ok=True)
    data = parquet(
        pa.table({"id": range(9)}), row_group_size=3, compression="none", use_dictionary=False, write_page_checksum=True
    )
    value = data.index((4).to_bytes(8, "little") + (5).to_bytes(8, "little"))  # only in the page of the second group
    bucket.put("x", data[:value] + b"\7" + data[value + 1 :])
    rows = ParquetRows(local_store, ["ais://damaged/x"])
    assert [rows[at]["id"] for at in (0, 2, 6)] == [0, 2, 6]
    with pytest.raises(errors.ArchiveDamaged, match=r"row group 1, which cannot be decoded: .*checksum"):
        rows[4]


@table(
    ("call", "message"),
    [
        ("ParquetRows(client, ['ais://tables/none'])", "ObjectNotFound: tables/none"),
        (
            "ParquetRows(client, 'ais://tables/train/', ['no'])",
            "InvalidRequest: ais://tables/train/a.parquet: no column",
        ),
        (
            "ParquetRows(client, 'ais://tables/train/', ['pair.x.z'])",
            "InvalidRequest: ais://tables/train/a.parquet: no",
        ),
        ("ParquetRows(client, 'ais://tables/train/', 'text')", "InvalidRequest: columns='text'"),
        ("ParquetRows(client, 'ais://tables/train/', [])", "InvalidRequest: columns=[]"),
        ("ParquetRows(client, [], unit='page')", "InvalidRequest: unit='page'"),
        ("ParquetRows(client, [], decode=print)", "TypeError: decode: ParquetRows decodes by itself"),
        ("ParquetRows(client, [], shuffle=True)", "TypeError: shuffle"),
    ],
)
def test_bad_arguments(bucket: Bucket, call: str, message: str) -> None:
    kind, _, text = message.partition(": ")
    with pytest.raises((errors.LoaderError, TypeError), match=re.escape(text)) as raised:
        eval(call, {"ParquetRows": ParquetRows, "client": bucket.client})
    assert type(raised.value).__name__ == kind


@table(("code", "rows"), [(9, -5), (12, 6)])
def test_groups_of_other_numbers_of_rows_are_refused(local_store: Client, code: int, rows: int) -> None:
    bucket = local_store.create_bucket("tables", exist_ok=True)
    data = parquet(pa.table({"a": range(10)}), row_group_size=5, use_dictionary=False, write_statistics=False)
    before, mark, behind = data.rpartition(b"\x16\x0a\x26")  # the number, and the field behind it, in Thrift's code
    changed = before + bytes([mark[0], code, mark[2]]) + behind
    assert pq.ParquetFile(io.BytesIO(changed)).metadata.row_group(1).num_rows == rows
    bucket.put("x.parquet", changed)
    with pytest.raises(errors.ArchiveDamaged, match=f"{rows} rows|not those of the footer"):
        ParquetRows(local_store, ["ais://tables/x.parquet"]).__getitems__([0, 5])


def test_sizes_of_a_footer_that_are_damaged_are_an_error_and_do_not_end_the_process(local_store: Client) -> None:
    bucket = local_store.create_bucket("tables", exist_ok=True)
    data = parquet(pa.table({"a": range(10)}), use_dictionary=False, store_schema=False)
    before, mark, behind = data.rpartition(b"\x26\x00\x14")  # how many values are null, and are not, in Thrift's code
    assert mark
    size = int.from_bytes(behind[-8:-4], "little") + 1
    bucket.put("x", before + b"\x36\x00\x14\x00" + behind[:-8] + size.to_bytes(4, "little") + b"PAR1")  # and a third
    rows = ParquetRows(local_store, ["ais://tables/x"])
    with pytest.raises(errors.ArchiveDamaged, match=r"ais://tables/x: a footer that cannot be read: .* histogram size"):
        rows[0]
