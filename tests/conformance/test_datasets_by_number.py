"""Datasets of parts of objects over every transport: samples in shards, tokens, lines, and files of other programs."""

from __future__ import annotations

import io

import numpy as np
import pytest

from ais_loader import Bucket, Client, errors
from tests.formats_kit import array_record, megatron, tf_record, zstd
from tests.tar_kit import packed_tar

TOKENS = np.arange(1000, dtype=np.uint16)
TEXT = b"".join(b"line %d\n" % at for at in range(100))


def test_samples_windows_and_lines(client: Client, bucket: Bucket) -> None:
    from ais_loader import Lines, MapDataset, TokenWindows

    for number in range(4):
        bucket.put(f"s-{number}.tar", packed_tar({f"{number}{at}.{ext}": ext.encode() for at in "ab" for ext in "xy"}))
        bucket.put(f"t-{number}.bin", (TOKENS + number).tobytes())
        bucket.put(f"l-{number}.txt", TEXT)
    samples = bucket.samples("s-")
    assert samples.keys() == [f"{number}{at}" for number in range(4) for at in "ab"]
    assert MapDataset(client, samples).__getitems__([7, 0]) == [{"x": b"x", "y": b"y"}] * 2
    windows = TokenWindows(client, bucket.entries("t-"), 100, dtype="uint16")
    assert [window[0] for window in windows.__getitems__([39, 0, 12])] == [903, 0, 201]
    for _ in range(2):  # the second one reads the indexes
        lines = Lines(client, bucket.entries("l-"))
        assert lines.__getitems__([399, 0, 150]) == [b"line 99", b"line 0", b"line 50"]
    bucket.put("l-1.txt", TEXT[1:])
    with pytest.raises(errors.ObjectNotFound):
        lines[150]
    assert Lines(client, bucket.entries("l-"))[100] == b"ine 0"


def test_files_of_other_programs(client: Client, bucket: Bucket) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ais_loader import MegatronTokens, ParquetRows, Records, concat

    sequences = [np.arange(start, start + 70) for start in range(0, 4000, 100)]
    records = [b"%d" % at * at for at in range(60)]
    table = io.BytesIO()
    pq.write_table(pa.table({"at": range(90), "text": [str(at) for at in range(90)]}), table, row_group_size=20)
    for number in range(3):
        tokens, index = megatron([sequences[number : number + 1], sequences[number:]])
        bucket.put_many([(f"m-{number}.bin", tokens), (f"m-{number}.idx", index)])
        bucket.put(f"r-{number}.tfrecord", b"".join(map(tf_record, records)))
        bucket.put(f"s-{number}.array_record", array_record(records, 1 + number, b"z", zstd))
        bucket.put(f"p-{number}.parquet", table.getvalue())
    tokens = MegatronTokens(client, bucket.entries("m-"))
    assert [one.tolist() for one in tokens.__getitems__([0, 41])] == [sequences[0].tolist(), sequences[1].tolist()]
    documents = MegatronTokens(client, bucket.entries("m-"), "document")
    assert documents[-1].tolist() == np.concatenate(sequences[2:]).tolist()
    windows = MegatronTokens(client, bucket.entries("m-"), sequence_length=150)
    assert sorted({len(window) for window in windows[:]}) == [151]
    for _ in range(2):  # the second one reads the indexes
        framed = Records(client, bucket.entries("r-"))
        assert framed.__getitems__([179, 60, 3]) == [records[59], records[0], records[3]]
    chunks = Records(client, bucket.entries("s-"))
    assert chunks.__getitems__([62, 63, 179, 0]) == [records[2], records[3], records[59], records[0]]
    rows = ParquetRows(client, bucket.entries("p-"), ["at"])
    assert concat([chunks, rows]).__getitems__([180 + 95, 180 + 96, 61]) == [{"at": 5}, {"at": 6}, records[1]]
    for name in ("m-0.bin", "r-0.tfrecord", "s-0.array_record", "p-0.parquet"):
        bucket.put(name, b"other")
    for dataset in (tokens, windows, framed, chunks, rows):
        with pytest.raises(errors.ObjectNotFound):
            dataset[0]
