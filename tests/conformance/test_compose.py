"""Objects made of parts of others by the store: copies, renames, appends; verified on the way, whole or not at all."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import google_crc32c
import pytest
from conformance_kit import MiB, fill

from ais_loader import Bucket, Client, errors
from ais_loader.composing import make_range, make_request
from ais_loader.testing import seeded_bytes
from protos import ais_compose_pb2 as pb

DATA = seeded_bytes(2 * MiB + 4321)


@pytest.fixture
def other(client: Client) -> Iterator[Bucket]:
    bucket = client.create_bucket(f"o-{uuid.uuid4().hex[:16]}")
    yield bucket
    client.delete_bucket(bucket.name, force=True)


def test_an_object_is_made_of_ranges_and_bytes_in_their_order(bucket: Bucket, other: Bucket) -> None:
    first, second = bucket.put("first", DATA), other.put("second", b"0123456789")
    request = make_request(
        bucket.name, "made",
        [
            make_range(bucket.name, "first", first.version, 300_000, 1_500_000), pb.ComposePart(data=b"-between-"),
            make_range(other.name, "second", second.version, 4), make_range(other.name, "second", start=10),
            pb.ComposePart(data=b""), make_range(bucket.name, "first", start=0, length=1),
        ],
        metadata={"of": "parts"},
    )  # fmt: skip
    moved: list[int] = []
    info = bucket._transport.compose(request, moved.append)
    made = DATA[300_000:1_800_000] + b"-between-" + b"456789" + DATA[:1]
    assert bucket.get("made") == made
    assert (info.size_bytes, info.checksum, info.metadata) == (len(made), google_crc32c.value(made), {"of": "parts"})
    assert bucket.head("made") == info
    assert moved[-1] == len(made) and moved == sorted(moved)


def test_what_cannot_be_made_leaves_the_old_object(bucket: Bucket) -> None:
    bucket.put("made", b"old")
    source = bucket.put("source", DATA)
    wrong: list[tuple[type[errors.LoaderError], list[pb.ComposePart]]] = [
        (errors.ObjectNotFound, [make_range(bucket.name, "source"), make_range(bucket.name, "nobody")]),
        (errors.ObjectNotFound, [make_range(bucket.name, "source", "1.999999.0")]),
        (errors.BucketNotFound, [make_range("no-such-bucket", "source")]),
        (errors.RangeError, [make_range(bucket.name, "source", start=0, length=len(DATA) + 1)]),
        (errors.InvalidRequest, [pb.ComposePart()]),
    ]
    for error, parts in wrong:
        with pytest.raises(error):
            bucket._transport.compose(make_request(bucket.name, "made", parts, metadata={}))
    request = make_request(bucket.name, "made", [make_range(bucket.name, "source")])
    request.object.checksum = source.checksum ^ 1
    with pytest.raises(errors.ContentMismatch):
        bucket._transport.compose(request)
    with pytest.raises(errors.InvalidRequest):
        bucket._transport.compose(make_request(bucket.name, "made", [pb.ComposePart(data=b"x")]))
    assert bucket.get("made") == b"old"
    assert [info.name for info in bucket.objects()] == ["made", "source"]


@pytest.mark.parametrize("size", [0, 1, len(DATA)])
def test_a_copy_has_the_same_bytes_and_metadata(bucket: Bucket, other: Bucket, size: int) -> None:
    before = bucket.put("a", DATA[:size], metadata={"text": "Käse"})
    here, there = bucket.copy("a", "b/c"), bucket.copy("a", "a", to_bucket=other.name)
    assert bucket.get("a") == bucket.get("b/c") == other.get("a") == DATA[:size]
    for made in (here, there):
        assert (made.size_bytes, made.checksum, made.metadata) == (size, before.checksum, before.metadata)
    assert (bucket.head("b/c"), other.head("a"), bucket.head("a")) == (here, there, before)


def test_copies_that_cannot_be_are_refused(bucket: Bucket) -> None:
    bucket.put("a", b"x")
    with pytest.raises(errors.InvalidRequest, match="itself"):
        bucket.copy("a", "a")
    with pytest.raises(errors.InvalidName):
        bucket.copy("a", "a//b")
    with pytest.raises(errors.BucketNotFound):
        bucket.copy("a", "b", to_bucket="no-such-bucket")
    with pytest.raises(errors.ObjectNotFound):
        bucket.copy("nobody", "b")
    for prefix, to in [("a", "a/b"), ("a/b/", "a/"), ("", "x/"), ("x/", "x/")]:
        with pytest.raises(errors.InvalidRequest, match="overlap"):
            list(bucket.copy_prefix(prefix, to))
    assert [info.name for info in bucket.objects()] == ["a"]


def test_a_prefix_is_copied_and_done_again_copies_only_the_rest(bucket: Bucket, other: Bucket) -> None:
    objects = {f"en/{at:03d}": seeded_bytes(100 + at, seed=at) for at in range(30)}
    fill(bucket, {**objects, "end": b"not below", "em/x": b"nor this"})
    copies = bucket.copy_prefix("en/", "de/")
    assert [next(copies).name for _ in range(5)] == [f"de/{at:03d}" for at in range(5)]  # type: ignore[union-attr]
    copies.close()  # type: ignore[attr-defined]
    there = {info.name: info for info in bucket.objects("de/")}
    assert 5 <= len(there) < 30
    bucket.put("de/002", b"another")
    again = [info.name for info in bucket.copy_prefix("en/", "de/")]  # type: ignore[union-attr]
    assert again == ["de/002", *sorted(f"de/{at:03d}" for at in range(30) if f"de/{at:03d}" not in there)]
    assert {name: bucket.get("de" + name[2:]) for name in objects} == objects
    for name, info in there.items():
        assert name == "de/002" or bucket.head(name) == info
    assert list(bucket.copy_prefix("en/", "de/")) == []
    assert len(list(bucket.copy_prefix("", "", to_bucket=other.name))) == 62
    assert other.get("end") == b"not below"
