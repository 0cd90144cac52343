"""Objects made of parts of others by the store: copies, renames, appends; verified on the way, whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import pytest
from conformance_kit import MiB, fill

from ais_loader import Bucket, Client, errors
from ais_loader.objects.compose_request import INLINE_BYTES, make_range, make_request
from ais_loader.objects.parts import PREFIX
from ais_loader.testing import seeded_bytes
from ais_loader.wire.generated import ais_compose_pb2 as pb

DATA = seeded_bytes(2 * MiB + 4321)


@pytest.fixture
def other(client: Client) -> Iterator[Bucket]:
    bucket = client.create_bucket(f"o-{uuid.uuid4().hex[:16]}")
    yield bucket
    client.delete_bucket(bucket.name, force=True)


def test_an_object_is_made_of_ranges_and_bytes_in_their_order(bucket: Bucket, other: Bucket) -> None:
    first, second = bucket.put("first", DATA), other.put("second", b"0123456789")
    request = make_request(
        bucket.name,
        "made",
        [
            make_range(bucket.name, "first", first.version, 300_000, 1_500_000),
            pb.ComposePart(data=b"-between-"),
            make_range(other.name, "second", second.version, 4),
            make_range(other.name, "second", start=10),
            pb.ComposePart(data=b""),
            make_range(bucket.name, "first", start=0, length=1),
        ],
        metadata={"of": "parts"},
    )
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
    with pytest.raises(errors.InvalidRequest, match="already where"):
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


def test_appending_keeps_what_was_there_and_its_metadata(bucket: Bucket) -> None:
    assert bucket.get(bucket.append("new", b"first").name) == b"first"
    bucket.put("a", b"", metadata={"k": "v"})
    large = seeded_bytes(INLINE_BYTES + 1)
    for data, whole in [(b"one", b"one"), (b"", b"one"), (large, b"one" + large), (b"end", b"one" + large + b"end")]:
        info = bucket.append("a", data)
        assert bucket.get("a") == whole
        assert (info.checksum, info.metadata) == (google_crc32c.value(whole), {"k": "v"})
        assert bucket.head("a") == info
    assert list(bucket.objects(PREFIX)) == []
    with pytest.raises(errors.BucketNotFound):
        bucket.client.bucket("no-such-bucket").append("a", b"x")
    with pytest.raises(errors.InvalidName):
        bucket.append("a//b", b"x")


def test_of_several_who_append_at_once_nobody_loses_anything(bucket: Bucket) -> None:
    def write(writer: int) -> list[str]:
        return [bucket.append("log", b"%d.%d\n" % (writer, at), timeout_s=300).version for at in range(5)]

    with ThreadPoolExecutor(4) as pool:
        versions = [version for made in pool.map(write, range(4)) for version in made]
    lines = bucket.get("log").decode().splitlines()
    assert sorted(lines) == sorted(f"{writer}.{at}" for writer in range(4) for at in range(5))
    for writer in range(4):
        assert [line for line in lines if line[0] == str(writer)] == [f"{writer}.{at}" for at in range(5)]
    assert len(set(versions)) == 20


def test_a_reader_beside_appends_sees_whole_appends(bucket: Bucket) -> None:
    record = seeded_bytes(1000)
    bucket.put("log", record)
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(lambda: [bucket.append("log", record) for _ in range(10)])
        while not appending.done():
            seen = bucket.get("log")
            assert seen == record * (len(seen) // len(record))
        appending.result()
    assert bucket.get("log") == record * 11


def test_a_rename_leaves_the_new_name_alone(bucket: Bucket, other: Bucket) -> None:
    bucket.put("a", DATA, metadata={"k": "v"})
    there = bucket.rename("a", "b")
    assert (bucket.get("b"), there.metadata) == (DATA, {"k": "v"})
    assert [info.name for info in bucket.objects()] == ["b"]
    assert other.get(bucket.rename("b", "c", to_bucket=other.name).name) == DATA
    assert list(bucket.objects()) == []
    with pytest.raises(errors.ObjectNotFound):
        bucket.rename("b", "c")
    with pytest.raises(errors.InvalidRequest):
        other.rename("c", "c")
    assert other.get("c") == DATA


def test_if_absent_keeps_what_is_there_and_lets_a_rename_end(bucket: Bucket) -> None:
    bucket.put("a", b"source")
    bucket.put("b", b"another")
    for call in (bucket.copy, bucket.rename):
        with pytest.raises(errors.VersionConflict):
            call("a", "b", if_absent=True)
    assert (bucket.get("a"), bucket.get("b")) == (b"source", b"another")
    bucket.copy("a", "c", if_absent=True)  # what a rename leaves that was interrupted after its copy
    assert bucket.rename("a", "c", if_absent=True).name == "c"
    assert [info.name for info in bucket.objects()] == ["b", "c"]


def test_a_prefix_is_renamed_and_done_again_ends_it(bucket: Bucket, other: Bucket) -> None:
    objects = {f"en/{at:03d}": seeded_bytes(100 + at, seed=at) for at in range(20)}
    fill(bucket, objects)
    bucket.copy("en/003", "en/003", to_bucket=other.name)
    renaming = bucket.rename_prefix("en/", "en/", to_bucket=other.name)
    next(renaming)
    renaming.close()  # type: ignore[attr-defined]
    left = [info.name for info in bucket.objects()]
    assert 0 < len(left) < 20
    assert [info.name for info in bucket.rename_prefix("en/", "en/", to_bucket=other.name)] == left  # type: ignore[union-attr]
    assert list(bucket.objects()) == []
    assert {info.name: other.get(info.name) for info in other.objects()} == objects


def test_a_second_try_of_an_append_whose_answer_was_lost_appends_nothing(bucket: Bucket) -> None:
    before = bucket.put("log", b"old")
    parts = [make_range(bucket.name, "log", before.version, 0, 3), pb.ComposePart(data=b"new")]
    request = make_request(bucket.name, "log", parts)
    request.object.condition.if_version, request.object.condition.write_id = before.version, os.urandom(16)
    first = bucket._transport.compose(request)
    second = bucket._transport.compose(request)
    assert bucket.get("log") == b"oldnew"
    assert (second.size_bytes, second.checksum) == (first.size_bytes, first.checksum)
    bucket.append("log", b"er")
    assert bucket._transport.compose(request).version in (first.version, second.version)
    assert bucket.get("log") == b"oldnewer"


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize("remembered", [False, True])
def test_an_append_whose_answer_is_lost_appends_once_or_says_that_it_may_have(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, stored: bool, overtaken: bool, remembered: bool
) -> None:
    bucket.put("log", b"old")
    transport = bucket.client._transport
    compose = type(transport).compose
    tries: list[bytes] = []

    def answer_lost(self: object, request: pb.ComposeRequest, *more: Any, **how: Any) -> object:
        tries.append(request.object.condition.write_id)
        if len(tries) > 1:
            if len(tries) == 2 and not remembered:
                request.object.condition.write_id = os.urandom(16)  # as a node forgets whose process has ended
            return compose(transport, request, *more, **how)
        if stored:
            compose(transport, request, *more, **how)
        if overtaken:
            bucket.put("log", bucket.get("log") + b"other")
        raise errors.NodeUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(transport), "compose", answer_lost)
        if stored and not remembered:
            with pytest.raises(errors.NodeUnavailable, match="may have been appended"):
                bucket.append("log", b"ours")
        else:
            bucket.append("log", b"ours")
    assert tries[0] == tries[1]
    others = b"other" if overtaken else b""
    assert bucket.get("log") == b"old" + (b"ours" + others if stored else others + b"ours")


def test_a_rename_goes_on_when_the_answer_to_its_deletion_is_lost(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("a", DATA)
    transport = bucket.client._transport
    delete = type(transport).delete
    tries: list[str | None] = []

    def answer_lost(self: object, bucket: str, name: str, *, if_version: str | None = None) -> None:
        tries.append(if_version)
        if len(tries) > 1:
            delete(transport, bucket, name, if_version=if_version)
        if len(tries) < 3:
            raise errors.NodeUnavailable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(transport), "delete", answer_lost)
        bucket.rename("a", "b")
    assert len(tries) == 3 and len(set(tries)) == 1
    assert [info.name for info in bucket.objects()] == ["b"] and bucket.get("b") == DATA


def test_what_is_written_while_its_old_version_is_renamed_stays(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put("a", b"old")
    transport = bucket.client._transport
    compose = type(transport).compose

    def overtaken(self: object, request: pb.ComposeRequest, *more: object) -> object:
        made = compose(transport, request, *more)  # type: ignore[arg-type]
        bucket.put("a", b"new")
        return made

    with monkeypatch.context() as patched, pytest.raises(errors.VersionConflict):
        patched.setattr(type(transport), "compose", overtaken)
        bucket.rename("a", "b")
    assert {info.name: bucket.get(info.name) for info in bucket.objects()} == {"a": b"new", "b": b"old"}
