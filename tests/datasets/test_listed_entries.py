"""Datasets of what is in a bucket: a prefix, a bucket, a listing or plain names, in place of a list of entries."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from datasets_kit import BUCKET, CORPUS, URLS, EntryPlan, contents
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, Client, EntryTable, Item, MapDataset, errors
from ais_loader.testing import throwaway_store

NAMES = sorted(CORPUS)
EXPECTED = [CORPUS[name] for name in NAMES]


def test_a_prefix_a_bucket_a_listing_and_names_are_the_same_dataset(store: Client) -> None:
    bucket = store.bucket(BUCKET)
    given: list[Any] = [f"ais://{BUCKET}/", f"ais://{BUCKET}", f"ais://{BUCKET}/en/", bucket, bucket.objects("en/")]
    for entries in [*given, bucket.entries(), list(bucket.objects()), iter(sorted(URLS))]:
        dataset = MapDataset(store, entries)
        assert len(dataset) == len(EXPECTED)
        assert dataset[:] == EXPECTED
    assert MapDataset(store, NAMES, bucket=BUCKET)[:] == EXPECTED
    assert MapDataset(store, tuple(NAMES), bytes_of, bucket=BUCKET)[:] == EXPECTED


def bytes_of(item: Item) -> bytes:
    return item.tobytes()


@pytest.mark.slow
def test_a_prefix_is_listed_by_a_store_s_address_too_and_in_spawned_workers_read(local_store: Client) -> None:
    dataset = MapDataset(local_store.url, f"ais://{BUCKET}/en/00")
    assert [len(sample) for sample in dataset[:]] == [len(CORPUS[f"en/{at:03d}.wav"]) for at in range(10)]
    loader = DataLoader(
        MapDataset(local_store.url, f"ais://{BUCKET}/en/00", transform=len),
        batch_size=4,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=list,
    )
    assert [length for batch in loader for length in batch] == [len(sample) for sample in dataset[:]]


def test_a_slice_is_a_list_by_one_request(recording: Any) -> None:
    dataset = MapDataset(Client(recording), URLS)
    assert dataset[2:5] == contents(URLS[2:5])
    assert dataset[-3:] == contents(URLS[-3:])
    assert dataset[10:2:-3] == contents(URLS[10:2:-3])
    assert dataset[100:] == []
    assert recording.requests[:3] == [3, 3, 3]


def test_a_transform_follows_the_decoder_and_leaves_what_failed_alone(store: Client) -> None:
    missing = f"ais://{BUCKET}/none"
    assert MapDataset(store, [URLS[3]], transform=len)[0] == len(contents([URLS[3]])[0])
    decoded = MapDataset(store, [URLS[3], missing], say_ok, transform=str.upper, on_error="placeholder")
    assert decoded[:] == ["CAME", "failed"]
    assert MapDataset(store, [missing], transform=len, on_error="placeholder")[:] == [None]
    again = pickle.loads(pickle.dumps(decoded))
    assert again[:] == ["CAME", "failed"]
    plan = EntryPlan(URLS[:4], 2, shuffle=False)
    sizes = [len(data) for data in contents(URLS[:4])]
    assert list(BatchLoader(MapDataset(store, transform=len), plan)) == [sizes[:2], sizes[2:]]
    with pytest.raises(TypeError, match="transform is a int: need a function"):
        MapDataset(store, URLS, transform=5)  # type: ignore[arg-type]  # the point


def say_ok(item: Item) -> str:
    return "came" if item.ok else "failed"


def test_pinned_entries_are_of_the_versions_that_were_listed() -> None:
    with throwaway_store({"a": b"1", "b": b"2"}, bucket="b") as client:
        bucket = client.bucket("b")
        given: list[Any] = ["ais://b/", bucket, list(bucket.objects()), bucket.objects()]
        pinned = [MapDataset(client, entries, pinned=True) for entries in given]
        free = MapDataset(client, "ais://b/")
        bucket.put("a", b"new")
        assert free[:] == [b"new", b"2"]
        for dataset in pinned:
            assert dataset[1] == b"2"
            with pytest.raises(errors.ObjectNotFound):
                dataset[0]


def test_raw_samples_of_a_pinned_table_come_without_an_entry_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = {f"o{at}": b"%d" % at for at in range(9)}
    with throwaway_store(objects, bucket="b") as client:
        dataset = MapDataset(client, "ais://b/", pinned=True)
        placeholders = MapDataset(client, "ais://b/", pinned=True, on_error="placeholder")
        with monkeypatch.context() as patch:
            patch.setattr(EntryTable, "__getitem__", None)
            assert dataset.__getitems__([3, 1, 3]) == [b"3", b"1", b"3"]
            assert dataset.begin([2, 8]).packed().values.tobytes() == b"28"
        client.bucket("b").put("o3", b"new")
        assert placeholders.__getitems__([1, 3, 5]) == [b"1", None, b"5"]
        with pytest.raises(errors.ObjectNotFound, match=r"'o3': version .* is gone") as raised:
            dataset.__getitems__([1, 3, 5])
        assert raised.value.__notes__ == ["sample 3 of its dataset, ais://b/o3"]


def test_what_cannot_be_meant_is_told_at_once(store: Client) -> None:
    for wrong, told in (
        (NAMES, r"'en/000.wav': need an Entry.*bucket="),
        (f"ais://{BUCKET}/none", "no object of bucket 'speech' has a name that begins with 'none'"),
        ("en/", "need a list of entries, or the URL of a prefix"),
        ("ais://", "need a list of entries, or the URL of a prefix"),
    ):
        with pytest.raises(errors.InvalidRequest, match=told):
            MapDataset(store, wrong)
    with pytest.raises(errors.BucketNotFound):
        MapDataset(store, "ais://no-such-bucket/")
