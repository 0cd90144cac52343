"""array_record files that its own library has written, by number, and as a source of Grain."""

from __future__ import annotations

import random
import resource
from collections.abc import Iterator
from pathlib import Path

import brotli
import grain
import pytest
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

from ais_loader import Client, Records, errors
from ais_loader.integrations.grain import Source
from ais_loader.objects.array_records import array_records
from ais_loader.testing import throwaway_store
from tests.formats_kit import riegeli_chunk, varint

_draw = random.Random(3)
RECORDS = [_draw.randbytes(_draw.choice([0, 1, 10, 100, 3000, 70_000, 200_000])) for _ in range(60)]
OPTIONS = (
    "",
    "group_size:1,uncompressed",
    "group_size:7,brotli:4",
    "group_size:16,zstd:9",
    "group_size:65536",
    "group_size:1,pad_to_block_boundary:true",
)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with throwaway_store({"other": b""}, bucket="b") as client:
        yield client


def written(client: Client, folder: Path, options: str, records: list[bytes] = RECORDS) -> list[str]:
    path = folder / "x.array_record"
    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    assert ArrayRecordReader(str(path)).read_all() == records
    client.bucket("b").put("x.array_record", path)
    return ["ais://b/x.array_record"]


@pytest.mark.parametrize("options", OPTIONS)
def test_records_are_those_that_were_written(client: Client, tmp_path: Path, options: str) -> None:
    records = Records(client, written(client, tmp_path, options))
    assert records[:] == RECORDS
    numbers = _draw.choices(range(len(RECORDS)), k=40)
    assert records.__getitems__(numbers) == [RECORDS[at] for at in numbers]


def test_a_file_without_records(client: Client, tmp_path: Path) -> None:
    assert len(Records(client, written(client, tmp_path, "", []))) == 0


@pytest.mark.parametrize(("options", "why"), [("transpose:true", "transposed"), ("snappy", "packed by 's'")])
def test_what_cannot_be_read_is_told(client: Client, tmp_path: Path, options: str, why: str) -> None:
    names = written(client, tmp_path, options)
    with pytest.raises(errors.ArchiveUnsupported, match=why):
        Records(client, names)[0]


def test_a_chunk_packed_by_brotli_takes_no_more_memory_than_it_says() -> None:
    def packed(data: bytes) -> bytes:
        return varint(1) + brotli.compress(data if data == b"\1" else bytes(300 << 20), quality=5)

    chunk = riegeli_chunk([b"a"], b"b", packed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(errors.ArchiveDamaged, match="another size"):
        array_records(memoryview(chunk), 64)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_grain_shuffles_records(client: Client, tmp_path: Path) -> None:
    source = Source(Records(client, written(client, tmp_path, "")))
    read = list(grain.MapDataset.source(source).shuffle(seed=3).to_iter_dataset())
    assert read == list(grain.MapDataset.source(RECORDS).shuffle(seed=3).to_iter_dataset())
