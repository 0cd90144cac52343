"""Objects made of parts of others by the store: copies, renames, appends; verified on the way, whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import pytest
from conformance_kit import Heard, MiB, fill, names_in

from ais_loader import Bucket, Client, CopySummary, ObjectInfo, Progress, RenameSummary, errors
from ais_loader.objects.put_spec import INLINE_BYTES, PARTS_PREFIX, make_range, make_request
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
    with pytest.raises(errors.InvalidRequest, match="both the source and the target"):
        bucket.copy("a", "a")
    with pytest.raises(errors.InvalidName):
        bucket.copy("a", "a//b")
    with pytest.raises(errors.BucketNotFound):
        bucket.copy("a", "b", to_bucket="no-such-bucket")
    with pytest.raises(errors.ObjectNotFound):
        bucket.copy("nobody", "b")
    for prefix, to in [("a", "a/b"), ("a/b/", "a/"), ("", "x/"), ("x/", "x/")]:
        with pytest.raises(errors.InvalidRequest, match="overlap"):
            bucket.copy_prefix(prefix, to)
    assert [info.name for info in bucket.objects()] == ["a"]


@pytest.mark.slow
def test_a_prefix_is_copied_when_the_call_returns_and_done_again_copies_only_the_rest(
    bucket: Bucket, other: Bucket
) -> None:
    objects = {f"en/{at:03d}": seeded_bytes(100 + at, seed=at) for at in range(30)}
    fill(bucket, {**objects, "end": b"not below", "em/x": b"nor this"})
    bucket.copy("en/004", "de/004"), bucket.put("de/007", b"another")
    there, heard = bucket.head("de/004"), Heard()
    size_bytes = sum(map(len, objects.values())) - there.size_bytes
    assert bucket.copy_prefix("en/", "de/", progress=heard) == CopySummary(copied=29, skipped=1, size_bytes=size_bytes)
    assert {name: bucket.get("de" + name[2:]) for name in objects} == objects
    assert bucket.head("de/004") == there
    assert [(step.done, step.skipped) for step in heard.steps] == [
        (at + 1 - (at >= 4), int(at >= 4)) for at in range(30)
    ]
    assert heard.steps[-1] == Progress(done=29, skipped=1, size_bytes=size_bytes)
    assert bucket.copy_prefix("en/", "de/") == CopySummary(skipped=30)
    assert bucket.copy_prefix("nobody/", "de/") == CopySummary()
    assert bucket.copy_prefix("", "", to_bucket=other.name).copied == 62
    assert other.get("end") == b"not below"


@pytest.mark.slow
def test_copying_step_by_step_yields_what_was_copied_and_may_be_left(bucket: Bucket) -> None:
    objects = {f"en/{at:03d}": seeded_bytes(100 + at, seed=at) for at in range(30)}
    fill(bucket, objects)
    copies = bucket.iter_copy_prefix("en/", "de/")
    assert names_in(bucket.client, bucket.name) == list(objects)  # lazy
    assert [next(copies).name for _ in range(5)] == [f"de/{at:03d}" for at in range(5)]
    copies.close()
    there = {info.name: info for info in bucket.objects("de/")}
    assert 5 <= len(there) < 30
    bucket.put("de/002", b"another")
    again = [info.name for info in bucket.iter_copy_prefix("en/", "de/")]
    assert again == ["de/002", *sorted(f"de/{at:03d}" for at in range(30) if f"de/{at:03d}" not in there)]
    assert {name: bucket.get("de" + name[2:]) for name in objects} == objects
    assert all(name == "de/002" or bucket.head(name) == info for name, info in there.items())
    assert list(bucket.iter_copy_prefix("en/", "de/")) == []


# Below "de/" the object in the middle would have a name that none can have: "de//b".
IN_THE_MIDDLE = {"en-a": b"1", "en/b": b"2", "en0c": b"3"}


@pytest.mark.parametrize("rename", [False, True])
def test_an_object_of_a_prefix_that_fails_is_raised_returned_or_yielded(bucket: Bucket, rename: bool) -> None:
    change = bucket.rename_prefix if rename else bucket.copy_prefix
    step_by_step = bucket.iter_rename_prefix if rename else bucket.iter_copy_prefix
    left, made = ["en/b"] if rename else list(IN_THE_MIDDLE), ["de/-a", "de/0c"]
    fill(bucket, IN_THE_MIDDLE)
    with pytest.raises(errors.InvalidName, match="de//b") as caught:
        change("en", "de/")
    assert caught.value.__notes__ == ["before this error: 1 done, 0 skipped, 0 failed"]
    assert (bucket.get("de/-a"), bucket.get("en/b")) == (b"1", b"2")
    bucket.delete_prefix("de/"), fill(bucket, IN_THE_MIDDLE)
    heard = Heard()
    summary = change("en", "de/", on_error="return", progress=heard)
    assert [(one.name, type(one.error)) for one in summary.failures] == [("en/b", errors.InvalidName)]
    done = summary.renamed if isinstance(summary, RenameSummary) else summary.copied
    assert (done, summary.size_bytes, summary.failed, summary.complete) == (2, 2, 1, False)
    assert [(step.done, step.failed) for step in heard.steps] == [(1, 0), (1, 1), (2, 1)]
    assert names_in(bucket.client, bucket.name) == [*made, *left]
    bucket.delete_prefix("de/"), fill(bucket, IN_THE_MIDDLE)
    first, failed, last = step_by_step("en", "de/", on_error="yield")
    assert isinstance(failed, errors.InvalidName)
    assert [one.name for one in (first, last) if isinstance(one, ObjectInfo)] == made
    assert names_in(bucket.client, bucket.name) == [*made, *left]
    bucket.delete_prefix("de/"), fill(bucket, IN_THE_MIDDLE)
    yielding = step_by_step("en", "de/")
    assert next(yielding).name == "de/-a"
    with pytest.raises(errors.InvalidName):
        next(yielding)


@pytest.mark.parametrize("rename", [False, True])
def test_an_error_of_progress_ends_the_copying_and_what_was_told_is_done(bucket: Bucket, rename: bool) -> None:
    objects = {f"en/{at:03d}": b"%d" % at for at in range(40)}
    fill(bucket, objects)
    heard = Heard(until=10)
    with pytest.raises(RuntimeError, match="enough: 10"):
        (bucket.rename_prefix if rename else bucket.copy_prefix)("en/", "de/", progress=heard)
    assert [step.done for step in heard.steps] == list(range(1, 11))
    made = [info.name for info in bucket.objects("de/")]
    assert made[:10] == [f"de/{at:03d}" for at in range(10)] and len(made) <= 18
    assert [info.name for info in bucket.objects("en/")] == list(objects)[len(made) if rename else 0 :]
    for call in (bucket.copy_prefix, bucket.rename_prefix):
        with pytest.raises(errors.BucketNotFound):
            call("de/", "", to_bucket="no-such-bucket")


@pytest.mark.slow
def test_appending_keeps_what_was_there_and_its_metadata(bucket: Bucket) -> None:
    assert bucket.get(bucket.append("new", b"first").name) == b"first"
    bucket.put("a", b"", metadata={"k": "v"})
    large = seeded_bytes(INLINE_BYTES + 1)
    for data, whole in [(b"one", b"one"), (b"", b"one"), (large, b"one" + large), (b"end", b"one" + large + b"end")]:
        info = bucket.append("a", data)
        assert bucket.get("a") == whole
        assert (info.checksum, info.metadata) == (google_crc32c.value(whole), {"k": "v"})
        assert bucket.head("a") == info
    assert list(bucket.objects(PARTS_PREFIX)) == []
    with pytest.raises(errors.BucketNotFound):
        bucket.client.bucket("no-such-bucket").append("a", b"x")
    with pytest.raises(errors.InvalidName):
        bucket.append("a//b", b"x")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_prefix_is_renamed_and_done_again_ends_it(bucket: Bucket, other: Bucket) -> None:
    objects = {f"en/{at:03d}": seeded_bytes(100 + at, seed=at) for at in range(20)}
    fill(bucket, objects)
    bucket.copy("en/003", "en/003", to_bucket=other.name)
    renaming = bucket.iter_rename_prefix("en/", "en/", to_bucket=other.name)
    assert names_in(bucket.client, bucket.name) == list(objects)  # lazy
    assert next(renaming).name == "en/000"
    renaming.close()
    left = [info.name for info in bucket.objects()]
    assert 0 < len(left) < 20
    assert next(bucket.iter_rename_prefix("en/", "en/", to_bucket=other.name)).name == left[0]
    rest = [info.name for info in bucket.objects()]
    renamed = bucket.rename_prefix("en/", "en/", to_bucket=other.name)
    assert renamed == RenameSummary(renamed=len(rest), size_bytes=sum(len(objects[name]) for name in rest))
    assert list(bucket.objects()) == []
    assert {info.name: other.get(info.name) for info in other.objects()} == objects
    assert bucket.rename_prefix("en/", "en/", to_bucket=other.name) == RenameSummary()


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
                request.object.condition.write_id = os.urandom(16)  # as a store whose catalog was made anew forgets
                how.pop("tries", None)
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
