"""Heads of many objects with one request: in order, each as a single head has it, None for what is not there."""

from __future__ import annotations

import pytest

from ais_loader import Bucket, Client, errors


@pytest.mark.slow
def test_heads_of_many_are_those_of_each_in_order(bucket: Bucket) -> None:
    names = [f"n/{at}" for at in range(1200)]  # more than one request
    bucket.put_many((name, name.encode(), {"of": name}) for name in names)
    asked = [*reversed(names), "missing", names[3], "not valid \ud800", "a//b", names[3]]
    found = bucket.head_many(asked)
    assert [None if info is None else (info.name, info.size_bytes, info.metadata) for info in found] == [
        (name, len(name), {"of": name}) if name in names else None for name in asked
    ]
    assert found[0] == bucket.head(asked[0])
    assert bucket.exists_many(iter(asked)) == [name in names for name in asked]
    assert bucket.head_many([]) == []


def test_heads_of_many_say_what_is_wrong(client: Client, bucket: Bucket) -> None:
    with pytest.raises(errors.BucketNotFound):
        client.bucket("no-such-bucket").head_many(["a"])
    with pytest.raises(TypeError, match="list of names"):
        bucket.head_many("a")
    with pytest.raises(errors.InvalidRequest, match="need a str"):
        bucket.head_many([b"a"])  # type: ignore[list-item]


def test_a_deleted_object_is_not_there(bucket: Bucket) -> None:
    bucket.put_many([("a", b"1"), ("b", b"2")])
    bucket.delete("a")
    assert bucket.exists_many(["a", "b"]) == [False, True]
