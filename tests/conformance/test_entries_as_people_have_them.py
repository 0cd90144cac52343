"""Entries as people have them: what is listed, plain names, and whole prefixes, in place of Entry values."""

from __future__ import annotations

import pytest
from conformance_kit import contents, fill

from ais_loader import Bucket, Client, Entry, errors
from tests.tar_kit import packed_tar

OBJECTS = {"a": b"1", "t/b.wav": b"22", "t/c.txt": b"333", "t/u/d.wav": b"4444", "train.wav": b"5"}


def test_what_is_listed_is_fetched(client: Client, bucket: Bucket) -> None:
    fill(bucket, OBJECTS)
    assert contents(client.get_batch(bucket.objects("t/"))) == [b"22", b"333", b"4444"]
    info = bucket.head("a")
    assert info.entry() == Entry(bucket.name, "a")
    assert info.entry(pinned=True) == Entry(bucket.name, "a", version=info.version)
    bucket.put("a", b"new")
    assert contents(client.get_batch([info])) == [b"new"]
    with pytest.raises(errors.ObjectNotFound):
        list(client.get_batch([info.entry(pinned=True)]))


def test_a_bucket_takes_what_it_lists_in_place_of_names(bucket: Bucket) -> None:
    fill(bucket, OBJECTS)
    bucket.put("t/s.tar", packed_tar({"m": b"member"}))
    wanted = [b"22", b"333"]
    for listed in (bucket.objects("t/"), bucket.entries("t/"), [bucket.head("t/b.wav"), "t/c.txt"]):
        assert contents(bucket.get_batch(listed))[:2] == wanted
    assert contents(bucket.get_batch(bucket.members("t/s.tar"))) == [b"member"]
    assert contents(bucket.get_batch(bucket.objects("none"))) == []


def test_members_that_are_listed_are_fetched_in_the_archive_that_was_listed(client: Client, bucket: Bucket) -> None:
    bucket.put("s.tar", packed_tar({"m/1": b"one", "m/2": b"two"}))
    members = list(bucket.members("s.tar"))
    assert contents(client.get_batch(reversed(members))) == [b"two", b"one"]
    bucket.put("s.tar", packed_tar({"m/1": b"other"}))
    with pytest.raises(errors.ObjectNotFound):
        list(client.get_batch(members[:1]))


def test_names_are_taken_where_their_bucket_is_said(client: Client, bucket: Bucket) -> None:
    fill(bucket, OBJECTS)
    wanted = ["t/c.txt", f"ais://{bucket.name}/a", Entry(bucket.name, "t/b.wav", start=1)]
    assert contents(client.get_batch(wanted, bucket=bucket.name)) == [b"333", b"1", b"2"]
    lists = [["a"], ["t/b.wav", "a"]]
    assert [contents(batch) for batch in client.get_batches(lists, bucket=bucket.name)] == [[b"1"], [b"22", b"1"]]
    with pytest.raises(errors.InvalidRequest, match=r"'t/c.txt': need an Entry.*bucket=\.\.\."):
        client.get_batch(["t/c.txt"])


def test_the_entries_of_a_prefix_are_chosen_by_a_pattern(client: Client, bucket: Bucket) -> None:
    fill(bucket, OBJECTS)
    assert list(bucket.entries()) == [Entry(bucket.name, name) for name in sorted(OBJECTS)]
    assert [entry.name for entry in bucket.entries("t")] == ["t/b.wav", "t/c.txt", "t/u/d.wav", "train.wav"]
    assert [entry.name for entry in bucket.entries("t/", pattern="*.wav")] == ["t/b.wav", "t/u/d.wav"]
    assert [entry.name for entry in bucket.entries(pattern="t/*.txt")] == ["t/c.txt"]
    assert [entry.name for entry in bucket.entries(pattern=["a", "*.txt"])] == ["a", "t/c.txt"]
    assert len(bucket.entries("none")) == 0
    assert contents(client.get_batch(bucket.entries("t/"))) == [b"22", b"333", b"4444"]
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket").entries()


def test_pinned_entries_are_of_the_versions_that_were_listed(client: Client, bucket: Bucket) -> None:
    fill(bucket, OBJECTS)
    free, pinned = bucket.entries("t/"), bucket.entries("t/", pinned=True)
    assert [entry.version for entry in pinned] == [bucket.head(entry.name).version for entry in free]
    bucket.put("t/c.txt", b"new")
    assert contents(client.get_batch(free)) == [b"22", b"new", b"4444"]
    assert [item.ok for item in client.get_batch(pinned, on_error="placeholder")] == [True, False, True]


def test_a_bucket_is_a_container_of_names(client: Client, bucket: Bucket) -> None:
    fill(bucket, OBJECTS)
    assert list(bucket) == sorted(OBJECTS)
    assert all(name in bucket and bucket.exists(name) for name in bucket)
    assert "t" not in bucket and not bucket.exists("t/") and 5 not in bucket
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket").exists("a")
    with pytest.raises(errors.BucketNotFound):
        list(client.bucket("no-such-bucket"))


def test_a_batch_that_has_been_read_says_so_when_it_is_asked_again(bucket: Bucket) -> None:
    fill(bucket, OBJECTS)
    batch = bucket.get_batch(["a", "train.wav"])
    for item in batch:
        assert item.data == b"1"
        break
    assert contents(batch) == [b"5"]  # from where the last loop stopped
    with pytest.raises(errors.InvalidRequest, match="this batch has been read already: each item is delivered once"):
        iter(batch)
    with pytest.raises(errors.InvalidRequest, match="this batch has been read"):
        batch.tobytes()
    taken = bucket.get_batch(["a"])
    assert taken.tobytes() == [b"1"]
    with pytest.raises(errors.InvalidRequest, match="this batch has been read"):
        list(taken)


def test_an_item_is_a_file(bucket: Bucket) -> None:
    fill(bucket, OBJECTS)
    came, failed = bucket.get_batch(["t/u/d.wav", "none"], on_error="placeholder")
    with came.open() as file:
        assert (file.read(1), file.seek(2), file.read()) == (b"4", 2, b"44")
    with pytest.raises(errors.ObjectNotFound):
        failed.open()
