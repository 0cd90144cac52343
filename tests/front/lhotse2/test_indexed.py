"""Lhotse 2's indexes over `ais://`: made in the store, kept by version, and read at any place with few requests."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, MonoCut, Recording, serialization
from lhotse.indexing import IndexedJsonlReader, create_jsonl_index, create_tar_index, read_index
from lhotse.shar import SharWriter
from lhotse.shar.readers.indexed import LazyIndexedSharIterator

import ais_loader
from ais_loader import Bucket, Client, Entry
from ais_loader.integrations.lhotse.io_backend import ObjectMissing, install_io_backend
from ais_loader.integrations.lhotse.range_reader import AISRangeReader, install_range_reader
from ais_loader.objects.object_file import FIRST_BYTES
from ais_loader.testing import NodeProcess, seeded_bytes, throwaway_folder

RATE = 8000
SHARDS = 2


def utterance(number: int) -> MonoCut:
    samples = np.random.default_rng(number).integers(-9000, 9000, RATE // 4 + number, dtype=np.int16)
    packed = io.BytesIO()
    soundfile.write(packed, samples, RATE, format="WAV", subtype="PCM_16")
    return Recording.from_bytes(packed.getvalue(), f"r{number}").to_cut()


@pytest.fixture(scope="module", params=["embedded", "grpc"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with throwaway_folder() as folder:
        if request.param == "embedded":
            yield str(folder / "store")
        else:
            with NodeProcess(folder / "drive") as node:
                yield node.url


@pytest.fixture(autouse=True)
def installed(url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("AIS_LOADER_URL", url)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where Lhotse keeps indexes
    default = serialization.get_default_io_backend()
    backends = list(default.backends)
    install_io_backend()
    install_range_reader()
    yield
    default.backends = backends


@pytest.fixture
def bucket(url: str) -> Iterator[Bucket]:
    with ais_loader.connect(url) as client:
        yield client.create_bucket("b", exist_ok=True)


@pytest.fixture
def shar(bucket: Bucket) -> dict[str, list[str]]:
    """Shards of Shar, ten cuts each, written by Lhotse into the store."""
    options = {"shard_size": 10, "compress_jsonl": False, "create_index": False}
    with SharWriter("ais://b/shar", fields={"recording": "wav"}, **options) as writer:
        for number in range(10 * SHARDS):
            writer.write(utterance(number))
    return {
        "cuts": [f"ais://b/shar/cuts.{shard:06d}.jsonl" for shard in range(SHARDS)],
        "recording": [f"ais://b/shar/recording.{shard:06d}.tar" for shard in range(SHARDS)],
    }


class Asked:
    """What was asked for through clients of this process: batches, and bytes of their ranges."""

    def __init__(self) -> None:
        self.batches = self.bytes = 0

    def __enter__(self) -> Asked:
        self._get_batch = Client.get_batch

        def counting(client: Client, entries: Sequence[Entry], **options: Any) -> Any:
            self.batches += 1
            self.bytes += sum(entry.length or 0 for entry in entries)
            return self._get_batch(client, entries, **options)

        Client.get_batch = counting  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        Client.get_batch = self._get_batch  # type: ignore[method-assign]


def manifest(bucket: Bucket, name: str, count: int) -> list[str]:
    """Writes a manifest of so many cuts. Returns their ids."""
    cuts = [MonoCut(f"cut-{number}", 0, 1 + number, 0, custom={"text": "x" * 500}) for number in range(count)]
    CutSet.from_cuts(cuts).to_file(f"ais://{bucket.name}/{name}")
    return [cut.id for cut in cuts]


def test_indexes_made_in_the_store_are_those_of_the_same_files_on_disk(
    bucket: Bucket, shar: dict[str, list[str]], tmp_path: Path
) -> None:
    for url, create in ((shar["cuts"][0], create_jsonl_index), (shar["recording"][1], create_tar_index)):
        assert create(url) == f"{url}.idx"
        name = url.removeprefix("ais://b/")
        local = tmp_path / Path(name).name
        local.write_bytes(bucket.get(name))
        create(local)
        assert bucket.get(f"{name}.idx") == Path(f"{local}.idx").read_bytes()


def test_any_line_of_an_indexed_manifest_takes_one_small_request(bucket: Bucket) -> None:
    ids = manifest(bucket, "long.jsonl", 3000)
    cuts = CutSet.from_file("ais://b/long.jsonl", indexed=True)
    assert len(cuts) == 3000
    with Asked() as asked:
        places = random.Random(1).sample(range(3000), 20)
        assert [cuts[place].id for place in places] == [ids[place] for place in places]
    assert asked.batches <= 20
    assert asked.bytes <= 20 * FIRST_BYTES
    with Asked() as asked:
        assert [cut.id for cut in cuts] == ids
    assert asked.batches <= 20, "what is read straight on is read ahead"


def test_a_manifest_with_an_index_beside_it_is_read_by_it_unasked(bucket: Bucket) -> None:
    manifest(bucket, "beside.jsonl", 10)
    assert not CutSet.from_file("ais://b/beside.jsonl").data.is_indexed
    create_jsonl_index("ais://b/beside.jsonl")
    assert CutSet.from_file("ais://b/beside.jsonl").data.is_indexed


def test_indexed_shards_give_the_cuts_and_the_audio_that_were_written(
    bucket: Bucket, shar: dict[str, list[str]]
) -> None:
    cuts = CutSet.from_shar(fields=shar, indexed=True)
    assert len(cuts) == 10 * SHARDS
    for number in (13, 2, 19, 0):
        np.testing.assert_array_equal(cuts[number].load_audio(), utterance(number).load_audio())
    with Asked() as asked:
        cuts[7].load_audio()
    assert asked.batches <= 4


def test_pointers_into_shards_are_read_without_a_batch_loader_too(bucket: Bucket, shar: dict[str, list[str]]) -> None:
    cuts = list(LazyIndexedSharIterator(fields=shar, lazy=True))
    assert {cut.recording.sources[0].type for cut in cuts} == {"shar_ptr"}
    for number in (13, 2, 19, 0):
        np.testing.assert_array_equal(cuts[number].load_audio(), utterance(number).load_audio())


def test_a_shard_written_anew_is_read_by_its_new_index(bucket: Bucket) -> None:
    for count in (30, 5):
        ids = manifest(bucket, "again.jsonl", count)
        create_jsonl_index("ais://b/again.jsonl")
        assert len(read_index("ais://b/again.jsonl.idx")) == count + 1
        assert [cut.id for cut in CutSet.from_file("ais://b/again.jsonl", indexed=True)] == ids


def test_two_stores_may_have_indexes_of_the_same_name(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest(bucket, "same.jsonl", 8)
    assert len(CutSet.from_file("ais://b/same.jsonl", indexed=True)) == 8
    monkeypatch.setenv("AIS_LOADER_URL", str(tmp_path / "other"))
    with ais_loader.connect(tmp_path / "other") as client:
        manifest(client.create_bucket("b"), "same.jsonl", 3)
        assert len(CutSet.from_file("ais://b/same.jsonl", indexed=True)) == 3


def test_a_missing_manifest_or_index_is_named(bucket: Bucket) -> None:
    with pytest.raises(ObjectMissing, match=r"ais://b/gone\.jsonl"):
        CutSet.from_file("ais://b/gone.jsonl", indexed=True)
    manifest(bucket, "unindexed.jsonl", 2)
    with pytest.raises(FileNotFoundError, match=r"unindexed\.jsonl\.idx"):
        IndexedJsonlReader("ais://b/unindexed.jsonl", auto_create_index=False)
    with pytest.raises(ObjectMissing, match=r"gone\.jsonl\.idx"):
        read_index("ais://b/gone.jsonl.idx")


def test_a_range_reader_is_a_seekable_file_that_pickles(bucket: Bucket) -> None:
    data = seeded_bytes(500_000, seed=3)
    bucket.put("data.tar", data)
    reader = AISRangeReader("ais://b/data.tar")
    assert (reader.seek(-10, os.SEEK_END), reader.size) == (499_990, 500_000)
    assert reader.read() == data[-10:]
    assert reader.read(5) == b""
    reader.seek(1000)
    other = pickle.loads(pickle.dumps(reader))
    assert other.read(7) == reader.read(7) == data[1000:1007]
    assert other.seek(3, os.SEEK_CUR) == other.tell() == 1010
    with pytest.raises(ValueError, match="before the beginning"):
        reader.seek(-1)
    with pytest.raises(ValueError, match="whence"):
        reader.seek(0, 5)
    reader.close()
    reader.seek(0)
    assert reader.read(3) == data[:3], "closed, it opens anew, as Lhotse's does"


def test_a_range_reader_never_mixes_two_versions(bucket: Bucket) -> None:
    bucket.put("changing.tar", seeded_bytes(5_000_000, seed=1))
    reader = AISRangeReader("ais://b/changing.tar")
    assert reader.read(10) == seeded_bytes(5_000_000, seed=1)[:10]
    bucket.put("changing.tar", seeded_bytes(5_000_000, seed=2))
    reader.seek(4_000_000)
    with pytest.raises(ais_loader.errors.ObjectNotFound):
        reader.read(10)


def test_a_range_reader_that_was_opened_before_a_fork_reads_on_both_sides(bucket: Bucket) -> None:
    bucket.put("forked.tar", seeded_bytes(300_000, seed=4))
    reader = AISRangeReader("ais://b/forked.tar")
    reader.read(10)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        there = pool.apply_async(reader.read, (20,)).get(timeout=180)
    assert there == reader.read(20) == seeded_bytes(300_000, seed=4)[10:30]
