"""Listing: every object once, in the order of the names' bytes, page by page."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from conformance_kit import fill

from ais_loader import Bucket, ObjectInfo, errors
from ais_loader.objects.bucket import one_level
from ais_loader.transport.listings import level_of_objects, name_of_item

NAMES = ["a", "a/b", "a/b/c", "a b", "a-b", "a.b", "ab", "b", "B", "é", "e\u0301", "音声/1", "🎧", "z" * 1024, "\x01"]
NAMES += ["0/1", "0/10", "0/2"]
PREFIXES = ["a", "a/", "a/b", "0/1", "é", "e", "音", "z" * 1024, "nope", "B", "b", "\x01", "a//", "/", "🎧"]


def names_of(bucket: Bucket, prefix: str = "", page_size: int = 1000) -> list[str]:
    found = [info.name for info in bucket.objects(prefix, page_size=page_size)]
    alone = bucket.client._transport.names(bucket.name, prefix=prefix)
    assert [name.decode() for block in alone for name in block.to_list()] == found
    return found


def in_byte_order(names: list[str]) -> list[str]:
    return sorted(names, key=str.encode)


def test_an_empty_bucket_lists_nothing(bucket: Bucket) -> None:
    assert names_of(bucket) == []


@pytest.mark.parametrize("page_size", [1, 2, 17, 18, 19, 1000, 2**40])
def test_all_names_come_once_in_byte_order_whatever_the_page(bucket: Bucket, page_size: int) -> None:
    shuffled = random.Random(page_size).sample(NAMES, len(NAMES))
    fill(bucket, {name: name.encode() for name in shuffled})
    assert names_of(bucket, page_size=page_size) == in_byte_order(NAMES)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_prefix_selects_names_by_their_beginning(bucket: Bucket, prefix: str) -> None:
    fill(bucket, dict.fromkeys(NAMES, b""))
    assert names_of(bucket, prefix, page_size=2) == in_byte_order([name for name in NAMES if name.startswith(prefix)])


@pytest.mark.slow
def test_names_alone_come_in_blocks(bucket: Bucket) -> None:
    names = [f"{at:05}" + "n" * 900 for at in range(2500)]
    fill(bucket, dict.fromkeys(names, b""))
    blocks = list(bucket.client._transport.names(bucket.name, prefix=""))
    assert sum(len(block.lengths) for block in blocks) == len(names)
    assert list(bucket) == [entry.name for entry in bucket.entries()] == names
    assert bucket.entries(pattern="*7n*").names(range(250)) == [name for name in names if name[4] == "7"]
    assert bucket.entries("0001").names(range(10)) == names[10:20]


def test_infos_in_a_list_are_those_of_head(bucket: Bucket) -> None:
    bucket.put("a", b"12345", metadata={"text": "hello"})
    bucket.put("b", b"")
    assert list(bucket.objects()) == [bucket.head("a"), bucket.head("b")]


def test_a_list_sees_neither_other_buckets_nor_deleted_objects(bucket: Bucket) -> None:
    other = bucket.client.create_bucket(bucket.name + "x")
    fill(bucket, {"a": b"", "b": b"", "c": b""})
    fill(other, {"d": b""})
    bucket.delete("b")
    assert names_of(bucket) == ["a", "c"]
    assert names_of(other) == ["d"]


def test_a_list_can_be_left_half_read_and_changed_under(bucket: Bucket) -> None:
    fill(bucket, {f"{at:03d}": b"" for at in range(100)})
    listing = bucket.objects(page_size=10)
    assert [info.name for info in itertools.islice(listing, 5)] == ["000", "001", "002", "003", "004"]
    bucket.delete("099")
    bucket.delete("005")
    seen = [info.name for info in listing]
    assert seen[-1] == "098"
    assert set(seen) >= {f"{at:03d}" for at in range(6, 99)}


@pytest.mark.parametrize(
    "start_after", ["", "\x00", "0/10", "a", "a/\U0010ffff", "a\U0010ffff", "b", "e", "\U0010ffff"]
)
def test_a_listing_goes_on_behind_any_name_that_there_need_not_be(bucket: Bucket, start_after: str) -> None:
    fill(bucket, dict.fromkeys(NAMES, b""))
    for prefix in ("", "a", "a/", "b"):
        listed = [info.name for info in bucket.objects(prefix, start_after=start_after, page_size=2)]
        behind = [name for name in NAMES if name.startswith(prefix) and name.encode() > start_after.encode()]
        assert listed == in_byte_order(behind)


def level_of(names: list[str], prefix: str) -> list[str]:
    """What one level has, by definition."""
    top = prefix.rfind("/") + 1
    begin = [name for name in names if name.startswith(prefix)]
    return in_byte_order(list({name[: name.find("/", top) + 1] or name for name in begin}))


def listed_level(bucket: Bucket, prefix: str = "", page_size: int = 1000) -> list[str]:
    found = list(one_level(bucket, prefix, page_size=page_size))
    infos = [one for one in found if not isinstance(one, str)]
    assert infos == [bucket.head(one.name) for one in infos]
    return [one if isinstance(one, str) else one.name for one in found]


@pytest.mark.parametrize("page_size", [1, 2, 5, 1000, 2**40])
def test_one_level_has_objects_and_folders_in_byte_order_whatever_the_page(bucket: Bucket, page_size: int) -> None:
    deep = [f"deep/{at}/{of}" for at in range(4) for of in range(3)]
    fill(bucket, dict.fromkeys([*NAMES, *deep], b""))
    for prefix in ["", *PREFIXES, "deep", "deep/", "deep/2", "deep/2/"]:
        assert listed_level(bucket, prefix, page_size) == level_of([*NAMES, *deep], prefix)
    bucket.delete_many(deep)
    assert listed_level(bucket, "", page_size) == level_of(NAMES, "")
    with pytest.raises(errors.BucketNotFound):
        list(one_level(bucket.client.bucket("none-" + bucket.name)))
    with pytest.raises(errors.InvalidRequest):
        list(one_level(bucket, "\ud800"))


@pytest.mark.slow
def test_one_level_of_large_folders(bucket: Bucket) -> None:
    inside = [f"{folder}/{at:03d}" for folder in ("large", "large-too", "p/x", "p/y") for at in range(250)]
    names = [*inside, "large/\U0010ffff~", "large0", "large", "m", "p/m", "small/1", "small/2", "z"]
    fill(bucket, dict.fromkeys(names, b""))
    for prefix in ("", "p/", "lar", "large", "large/", "none/"):
        assert listed_level(bucket, prefix, 3) == level_of(names, prefix)


def test_one_level_of_a_listing_reads_a_page_of_a_folder_and_not_all_that_is_in_it(bucket: Bucket) -> None:
    """As of remote storage, which has no such listing of its own here."""
    inside = [f"{folder}/{at:03d}" for folder in ("large", "large-too", "p/x", "p/y") for at in range(100)]
    last = "large/\U0010ffff~"
    fill(bucket, dict.fromkeys([*inside, last, "large", "m", "p/m", "small/1", "small/2", "z"], b""))
    read: list[str] = []

    def level(prefix: str) -> list[str]:
        def listed(after: str) -> Iterator[ObjectInfo]:
            for info in bucket.objects(prefix, start_after=after, page_size=10):
                read.append(info.name)
                yield info

        return [name_of_item(one) for one in level_of_objects(listed, prefix, 10)]

    assert level("") == ["large", "large-too/", "large/", "m", "p/", "small/", "z"]
    assert len(read) == 3 * 10 + len(["large", "m", "small/1", "small/2", "z"])
    assert level("p/") == ["p/m", "p/x/", "p/y/"]
    assert level("lar") == ["large", "large-too/", "large/"]
    assert level("none/") == []


@pytest.mark.parametrize("page_size", [0, -1])
def test_a_page_of_nothing_is_refused(bucket: Bucket, page_size: int) -> None:
    with pytest.raises(errors.InvalidRequest):
        bucket.objects(page_size=page_size)


def test_a_prefix_without_a_utf8_form_is_refused(bucket: Bucket) -> None:
    with pytest.raises(errors.InvalidRequest):
        list(bucket.objects("\ud800"))
    with pytest.raises(errors.InvalidRequest):
        list(bucket.objects(start_after="\ud800"))
