"""What callers get wrong is told by an error that they expect, on all transports alike, and nothing is done."""

from __future__ import annotations

import array
import datetime
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ais_loader import Bucket, Client, ClusterOptions, EmbeddedOptions, Entry, connect, errors


@pytest.mark.parametrize(
    "data",
    [
        bytearray(b"abcdef"),
        memoryview(b"xaxbxcxdxexf")[1::2],
        memoryview(b"fedcba")[::-1],
        memoryview(b"abcdef").cast("B", (2, 3)),
        np.frombuffer(b"abcdef", np.uint8).reshape(3, 2),
        np.frombuffer(b"a.b.c.d.e.f.", np.uint8)[::2],
        array.array("h", [25185, 25699, 26213]),
        np.frombuffer(b"abcdef", [("Offset", "u1"), ("O", "u1")]),
    ],
)
def test_all_that_exports_bytes_is_stored_as_these_bytes(bucket: Bucket, data: Any) -> None:
    assert bucket.put("one", data).size_bytes == 6
    assert [info.size_bytes for info in bucket.put_many([("many", data)]).infos] == [6]
    assert bucket.get("one") == bucket.get("many") == b"abcdef"


def test_an_array_without_elements_is_an_empty_object(bucket: Bucket) -> None:
    for data in (np.zeros((0, 3), np.float32), np.zeros((2, 0), np.uint8), memoryview(b"")):
        assert bucket.put("empty", data).size_bytes == 0  # type: ignore[arg-type]  # any buffer is meant
        assert bucket.get("empty") == b""


@pytest.mark.parametrize(
    "data",
    [
        np.array([{}, []], dtype=object),
        np.array([(1, {})], dtype=[("a", "i4"), ("b", "O")]),
        np.array([datetime.date(2026, 1, 1)], dtype="M8[D]"),
        io.StringIO(""),
        "text",
        5,
        None,
        [b"a"],
    ],
)
def test_what_has_no_bytes_of_its_own_is_refused(bucket: Bucket, data: Any) -> None:
    with pytest.raises(TypeError):
        bucket.put("a", data)
    with pytest.raises(TypeError):
        bucket.put_many([("a", data)])
    assert list(bucket.objects()) == []


@pytest.mark.parametrize("buffering", [0, -1])
def test_a_pipe_without_bytes_at_the_moment_is_not_taken_for_one_that_has_ended(bucket: Bucket, buffering: int) -> None:
    into, out = os.pipe()
    os.set_blocking(into, False)
    with open(into, "rb", buffering=buffering) as file, open(out, "wb", buffering=0) as writer:
        writer.write(b"the beginning")
        with pytest.raises(errors.InvalidRequest, match="non-blocking"):
            bucket.put("a", file)
        assert list(bucket.objects()) == []
        writer.write(b"all")
        writer.close()
        assert bucket.put("a", file).size_bytes == 3


@pytest.mark.parametrize("name", [5, None, Path("a"), ("a",)])
def test_a_name_that_is_no_string_is_refused_by_every_call(bucket: Bucket, name: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: bucket.get(name),
        lambda: bucket.head(name),
        lambda: bucket.delete(name),
        lambda: bucket.open(name),
        lambda: list(bucket.objects(name)),
        lambda: list(bucket.members(name)),
        lambda: bucket.put(name, b""),
        lambda: bucket.get_batch([name]).tobytes(),
        lambda: bucket.delete_many([name]),
        lambda: bucket.snapshot(name),
        lambda: bucket.client.bucket(name).get("a"),
        lambda: bucket.client.create_bucket(name),
        lambda: bucket.client.delete_bucket(name),
    ]
    for call in calls:
        with pytest.raises((errors.InvalidRequest, TypeError), match=r"str|string"):
            call()


def test_one_string_is_no_list_of_names(client: Client, bucket: Bucket) -> None:
    bucket.put_many([("a", b"1"), ("b", b"2"), ("ab", b"3")])
    calls: list[Callable[[], object]] = [
        lambda: bucket.delete_many("ab"),
        lambda: bucket.get_batch("ab"),
        lambda: client.get_batch(f"ais://{bucket.name}/a"),
        lambda: client.get_batch(Entry(bucket.name, "a")),  # type: ignore[call-overload]  # the point
    ]
    for call in calls:
        with pytest.raises(TypeError, match="pass a list"):
            call()
    assert [info.name for info in bucket.objects()] == ["a", "ab", "b"]


def test_names_come_from_any_iterable(bucket: Bucket) -> None:
    bucket.put_many([("a", b"1"), ("b", b"2")])
    names: list[Any] = [(name for name in "ba"), np.array(["b", "a"]), {"b": 0, "a": 0}, ("b", "a")]
    assert [bucket.get_batch(some).tobytes() for some in names] == [[b"2", b"1"]] * 4


@pytest.mark.parametrize("objects", ["ab", [("a",)], [("a", b"", {}, 4)], ["ab"], {"a": b"1"}, [5]])
def test_put_many_says_what_it_takes(bucket: Bucket, objects: Any) -> None:
    with pytest.raises(TypeError, match=r"\(name, data\)|items\(\)"):
        bucket.put_many(objects)
    assert list(bucket.objects()) == []


def test_what_is_done_on_an_error_is_one_of_two_things(bucket: Bucket) -> None:
    bucket.put("kept", b"1")
    calls: list[Callable[[Any], object]] = [
        lambda how: bucket.put_many([("never", b"")], on_error=how),
        lambda how: bucket.delete_many(["kept"], on_error=how),
        lambda how: bucket.delete_prefix("k", on_error=how),
        lambda how: bucket.copy_prefix("k", "c", on_error=how),
        lambda how: bucket.rename_prefix("k", "r", on_error=how),
        lambda how: bucket.promote("/", on_error=how),
    ]
    for call in calls:
        with pytest.raises(errors.InvalidRequest, match="on_error='yield': need 'raise' or 'return'"):
            call("yield")
    lazy: list[Callable[[Any], object]] = [
        lambda how: bucket.iter_put_many([("never", b"")], on_error=how),
        lambda how: bucket.iter_delete_many(["kept"], on_error=how),
        lambda how: bucket.iter_copy_prefix("k", "c", on_error=how),
        lambda how: bucket.iter_rename_prefix("k", "r", on_error=how),
    ]
    for call in lazy:
        with pytest.raises(errors.InvalidRequest, match="on_error='return': need 'raise' or 'yield'"):
            call("return")
        call("raise")  # and nothing is done
    assert [info.name for info in bucket.objects()] == ["kept"]


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), "1", None])
def test_a_time_that_nobody_can_wait_is_refused(client: Client, bucket: Bucket, timeout_s: Any) -> None:
    bucket.put("a", b"1")
    with pytest.raises(errors.InvalidRequest, match="timeout_s"):
        bucket.get("a", timeout_s=timeout_s)
    with pytest.raises(errors.InvalidRequest, match="timeout_s"):
        bucket.get_batch(["a"], timeout_s=timeout_s)


def test_numbers_of_numpy_are_numbers(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"0123456789")
    start, length, timeout_s = np.int64(2), np.int32(3), np.float32(20)
    assert bucket.get("a", start=start, length=length, timeout_s=timeout_s) == b"234"  # type: ignore[arg-type]
    entry = Entry(bucket.name, "a", start=start, length=length)  # type: ignore[arg-type]
    assert client.get_batch([entry], timeout_s=timeout_s).tobytes() == [b"234"]


@pytest.mark.parametrize("address", ["a\0b", "grpc://host:0", "grpc://host:65536", "grpc://host:٣", "grpc://:7480"])
def test_addresses_that_there_cannot_be_are_told_at_once(address: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        connect(address)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("localhost:7480", "grpc://localhost:7480"),
        ("localhost:7480/", "grpc://localhost:7480"),
        ("10.0.0.5:7480,10.0.0.6:7480", "grpc://10.0.0.5:7480,10.0.0.6:7480"),
        ("[::1]:7480", r"grpc://\[::1\]:7480"),
        ("localhost", "need grpc://localhost:PORT"),
        ("10.0.0.5", "need grpc://10.0.0.5:PORT"),
        ("[::1]", r"need grpc://\[::1\]:PORT"),
        ("grpc:/localhost:7480", "URL is grpc://localhost:7480"),
        ("GRPC://localhost:7480", "URL is grpc://localhost:7480"),
        ("http://localhost:7480/", "URL is grpc://localhost:7480"),
        ("file:/data/store", "need file:///data/store"),
        ("File:///data/store", "need file:///data/store"),
        (
            "/data/1,s3://pictures",
            "is storage outside, not a store: connect to a store, and then use client.create_bucket",
        ),
        ("ais://pictures/cat", r"connect to the store itself, .* and then use client.bucket\('pictures'\)"),
        ("~nobody-of-this-name/store", "no home folder '~nobody-of-this-name'"),
    ],
)
@pytest.mark.parametrize("mode", ["a", "r"])
def test_an_address_without_its_scheme_is_no_folder(
    address: str, told: str, mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AIS_LOADER_URL", address)
    for url in (address, None):
        with pytest.raises(errors.InvalidRequest, match=told):
            connect(url, mode=mode)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_named_like_an_address_can_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("localhost", "10.0.0.5:7480", "s3:"):
        with connect(f"./{name}") as client:
            assert client.url == f"file://{tmp_path / name}"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for number, address in enumerate(["~/0", "file://~/1", Path("~/2"), "~/3,~/4"]):
        with connect(address) as client:
            assert client.url.startswith(f"file://{tmp_path}/{number}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ClusterOptions, {"retry_s": -1}),
        (ClusterOptions, {"retry_s": "1"}),
        (ClusterOptions, {"retry_s": float("nan")}),
        (ClusterOptions, {"tenant": 5}),
        (ClusterOptions, {"tenant": "x" * 129}),
        (ClusterOptions, {"tenant": "\ud800"}),
        (ClusterOptions, {"hedge_budget": "1"}),
        (ClusterOptions, {"hedge_budget": 1.1}),
        (EmbeddedOptions, {"durability": "always"}),
        (EmbeddedOptions, {"open_shards": 0}),
        (EmbeddedOptions, {"open_shards": 1.5}),
        (EmbeddedOptions, {"shard_copy_bytes": -1}),
    ],
)
def test_options_that_mean_nothing_are_told_when_they_are_made(
    kind: Callable[..., object], options: dict[str, Any]
) -> None:
    with pytest.raises(errors.InvalidRequest, match=next(iter(options))):
        kind(**options)


def test_options_of_another_kind_of_store_are_refused_and_the_right_ones_named(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidRequest, match="storage nodes: it takes ClusterOptions, not EmbeddedOptions"):
        connect("grpc://127.0.0.1:7480", options=EmbeddedOptions())
    with pytest.raises(errors.InvalidRequest, match="an embedded store: it takes EmbeddedOptions, not ClusterOptions"):
        connect(tmp_path / "store", options=ClusterOptions())
    with pytest.raises(TypeError, match="options is a dict: need ClusterOptions"):
        connect("grpc://127.0.0.1:7480", options={"retry_s": 1})  # type: ignore[arg-type]  # the point
    with pytest.raises(errors.InvalidRequest, match="mode='w'"):
        connect("grpc://127.0.0.1:7480", mode="w")  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match="bytes"):
        connect(b"/data/store")  # type: ignore[arg-type]  # the point
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_told_with_the_one_that_may_be_meant(client: Client, bucket: Bucket) -> None:
    told = f"does not exist; create_bucket makes it; did you mean '{bucket.name}'"
    for wrong in (bucket.name[:-1], bucket.name.upper(), f"ais://{bucket.name}", f"{bucket.name}/en"):
        other = client.bucket(wrong)
        calls: list[Callable[[], object]] = [
            lambda: other.get("a"),  # noqa: B023 - called in this round
            lambda: other.head("a"),  # noqa: B023
            lambda: other.put("a", b""),  # noqa: B023
            lambda: list(other.objects()),  # noqa: B023
            lambda: other.get_batch(["a"]).tobytes(),  # noqa: B023
        ]
        for call in calls:
            with pytest.raises((errors.BucketNotFound, errors.InvalidName), match=told):
                call()
    with pytest.raises(errors.BucketNotFound, match=r"create_bucket makes it$"):
        client.bucket("none-like-it-zzz").info()


def test_a_name_with_its_bucket_is_told_without_it(bucket: Bucket) -> None:
    bucket.put("en/a", b"1")
    for begin in (f"ais://{bucket.name}/", f"/{bucket.name}/", f"{bucket.name}/"):
        calls: list[Callable[[], object]] = [
            lambda: bucket.get(f"{begin}en/a"),  # noqa: B023 - called in this round
            lambda: bucket.get_batch([f"{begin}en/a"]).tobytes(),  # noqa: B023
        ]
        for call in calls:
            with pytest.raises(errors.ObjectNotFound, match="did you mean 'en/a', without the bucket"):
                call()


def test_everything_that_a_person_may_look_at_says_what_it_is(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"1")
    batch = bucket.get_batch(["a", "a"])
    assert repr(batch) == "<Batch of 2 entries>"
    batch.close()
    assert repr(batch) == "<Batch of 2 entries, closed>"
