"""Bucket.samples: members of shards by key, in flat buffers, as the entries of a dataset."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from datasets_kit import RecordingTransport
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, Bucket, Client, MapDataset, MemberInfo, errors
from ais_loader.objects.sample_table import SampleTable, Shard
from ais_loader.plans import ShufflePlan
from tests.store.archives.archive_kit import in_zip
from tests.tar_kit import packed_tar


def members_of(shard: int) -> dict[str, bytes]:
    members = {"__meta__/about.txt": b"skipped", "README": b"skipped", ".hidden": b"skipped"}
    for at in range(10):
        key = f"part.0/{shard:02d}{at}" if at % 2 else f"{shard:02d}{at}"
        members[f"{key}.TXT"] = f"text {shard} {at}".encode()
        members[f"{key}.target.cls"] = str(at).encode()
    return members


SAMPLES = [
    {"txt": f"text {shard} {at}".encode(), "target.cls": str(at).encode()} for shard in range(3) for at in range(10)
]


@pytest.fixture
def shards(store: Client) -> Iterator[Bucket]:
    bucket = store.create_bucket("shards")
    for number in range(3):
        bucket.put(f"train/s-{number}.tar", packed_tar(members_of(number)))
    bucket.put("train/notes.txt", b"no shard")
    bucket.put("other.tar", packed_tar({"x.txt": b"other"}))
    yield bucket
    store.delete_bucket("shards", force=True)


def test_samples_are_the_members_by_key(shards: Bucket) -> None:
    table = shards.samples("train/")
    assert len(table) == 30
    assert table.keys()[:4] == ["000", "part.0/001", "002", "part.0/003"]
    assert list(table[1]) == ["txt", "target.cls"]
    version = shards.head("train/s-0.tar").version
    assert [(entry.name, entry.member, entry.version) for entry in table[1].values()] == [
        ("train/s-0.tar", "part.0/001.TXT", version),
        ("train/s-0.tar", "part.0/001.target.cls", version),
    ]
    assert table[-1] == table[29] == table[28:][1]
    with pytest.raises(IndexError):
        table[30]
    assert table.sizes_bytes().tolist() == [sum(map(len, sample.values())) for sample in SAMPLES]
    assert table.sizes_bytes("txt").tolist() == [len(sample["txt"]) for sample in SAMPLES]
    assert table.sizes_bytes("none").tolist() == [-1] * 30
    dataset = MapDataset(shards.client, table)
    drawn = random.Random(3).choices(range(30), k=50)
    assert dataset.__getitems__(np.array(drawn)) == [SAMPLES[at] for at in drawn]
    assert repr(table) == "<SampleTable of 30 samples in 3 shards>"


def test_shards_are_chosen_by_prefix_and_pattern(shards: Bucket) -> None:
    assert len(shards.samples()) == 31
    assert len(shards.samples("train/", pattern="*-[12].tar")) == 20
    assert len(shards.samples("nothing/")) == 0
    assert shards.samples("nothing/").sizes_bytes().tolist() == []
    with pytest.raises(errors.BucketNotFound):
        shards.client.bucket("none").samples()


@pytest.mark.parametrize("store", ["embedded"], indirect=True)  # the transport that counts requests is one
def test_a_batch_is_one_request(shards: Bucket) -> None:
    transport = RecordingTransport(shards.client.url.removeprefix("file://"))
    try:
        client = Client(transport)
        dataset = MapDataset(client, client.bucket("shards").samples("train/"))
        batches = list(DataLoader(dataset, batch_size=12, collate_fn=list))
        assert [sample for batch in batches for sample in batch] == SAMPLES
        assert transport.requests == [24, 24, 12]
    finally:
        transport.close()


def test_a_plan_over_samples_resumes_and_notices_a_replaced_shard(shards: Bucket) -> None:
    def loader() -> BatchLoader:
        plan = ShufflePlan(30, 7, seed=2)
        return BatchLoader(MapDataset(shards.client, shards.samples("train/")), plan)

    first = loader()
    running = iter(first)
    head = [next(running), next(running)]
    state = first.state_dict()
    again = loader()
    again.load_state_dict(state)
    order = [at for step in range(5) for at in ShufflePlan(30, 7, seed=2).batch(0, step)]
    assert [sample for batch in [*head, *again] for sample in batch] == [SAMPLES[at] for at in order]
    shards.put("train/s-1.tar", packed_tar(members_of(1)))
    with pytest.raises(errors.ObjectNotFound):
        list(first)
    with pytest.raises(errors.InvalidRequest, match="belongs to another plan"):
        loader().load_state_dict(state)


def test_what_has_no_samples_is_told(shards: Bucket) -> None:
    shards.put("bad/twice.tar", packed_tar({"k.txt": b"one", "k.TXT": b"two"}))
    with pytest.raises(errors.InvalidRequest, match=r"twice\.tar: k\.TXT: duplicate file name"):
        shards.samples("bad/twice")
    shards.put("bad/hidden.tar", packed_tar([("k.txt", b"one"), ("l.txt", b"two"), ("k.txt", b"three")]))
    with pytest.raises(errors.ArchiveError, match=r"hidden\.tar: 1 of its files have the name of a later one"):
        shards.samples("bad/hidden")
    shards.put("bad/plain.tar", b"no archive at all")
    with pytest.raises(errors.ArchiveError):
        shards.samples("bad/plain")
    shards.put("apart.tar", packed_tar([("k.txt", b"one"), ("l.txt", b"two"), ("k.cls", b"3")]))
    assert shards.samples("apart").keys() == ["k", "l"]
    shards.put("empty.tar", packed_tar({}))
    assert len(shards.samples("empty")) == 0
    shards.put("bad/joined.tar", packed_tar({"k.txt": b"one"}) + packed_tar({"l.txt": b"two", "l.cls": b"2"}))
    with pytest.raises(errors.ArchiveError, match=r"joined\.tar: 2 of its files .* in a tar behind the first.*not cat"):
        shards.samples("bad/joined")


def test_a_zip_of_the_finder_has_its_samples_alone(shards: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    finder = {"d/a.JPG": b"1234", "__MACOSX/d/._a.JPG": b"x", "d/.DS_Store": b"x", ".DS_Store": b"x", "d/._b.txt": b"x"}
    shards.put("finder.zip", in_zip({**finder, "d/b.JPG": b"12", "d/a.txt": b"a", "d/b.txt": b"b"}))
    table = shards.samples("finder")
    assert table.keys() == ["d/a", "d/b"]
    assert MapDataset(shards.client, table)[:] == [{"jpg": b"1234", "txt": b"a"}, {"jpg": b"12", "txt": b"b"}]
    assert table.sizes_bytes("JPG").tolist() == table.sizes_bytes("jpg").tolist() == [4, 2]
    assert not caplog.records
    assert table.sizes_bytes("png").tolist() == [-1, -1]
    assert [record.getMessage() for record in caplog.records] == [
        "no sample has a field 'png'; the fields are jpg, txt"
    ]


@pytest.mark.slow
def test_a_million_samples_would_take_their_names_and_little_more() -> None:
    count = 20_000

    def members(shard: int) -> list[Any]:
        return [
            MemberInfo("b", f"s-{shard}.tar", f"{shard:03d}{at:06d}.{field}", 1000, 0, "v")
            for at in range(count // 10)
            for field in ("flac", "json")
        ]

    table = SampleTable(
        (Shard(f"ais://b/s-{shard}.tar", "b", f"s-{shard}.tar", "v"), members(shard)) for shard in range(10)
    )
    assert len(table) == count
    names = 2 * 14
    assert len(pickle.dumps(table)) < count * (names + 2 * 16 + 12) + 10_000
    assert pickle.loads(pickle.dumps(table))[count - 1]["json"].member == "009001999.json"
