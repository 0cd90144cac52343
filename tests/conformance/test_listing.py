"""Listing: every object once, in the order of the names' bytes, page by page."""

from __future__ import annotations

import itertools
import random

import pytest
from conformance_kit import fill

from ais_loader import Bucket, errors

NAMES = ["a", "a/b", "a/b/c", "a b", "a-b", "a.b", "ab", "b", "B", "é", "e\u0301", "音声/1", "🎧", "z" * 1024, "\x01"]
NAMES += ["0/1", "0/10", "0/2"]
PREFIXES = ["a", "a/", "a/b", "0/1", "é", "e", "音", "z" * 1024, "nope", "B", "b", "\x01", "a//", "/", "🎧"]


def names_of(bucket: Bucket, prefix: str = "", page_size: int = 1000) -> list[str]:
    return [info.name for info in bucket.objects(prefix, page_size=page_size)]


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


@pytest.mark.parametrize("page_size", [0, -1])
def test_a_page_of_nothing_is_refused(bucket: Bucket, page_size: int) -> None:
    with pytest.raises(errors.InvalidRequest):
        bucket.objects(page_size=page_size)


def test_a_prefix_without_a_utf8_form_is_refused(bucket: Bucket) -> None:
    with pytest.raises(errors.InvalidRequest):
        list(bucket.objects("\ud800"))
