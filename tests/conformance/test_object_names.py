"""Which object names a store takes, and that it takes them literally."""

from __future__ import annotations

import pytest
from conformance_kit import contents

from ais_loader import Bucket, Client, Entry, Status, errors

ACCEPTED = [
    "a",
    "a" * 1024,
    "é" * 512,
    "a/b/c.wav",
    "音声/サンプル.flac",
    "🎧",
    "with space and\ttab\nnewline",
    " ",
    "#?%20&=+;",
    "%2e%2e/x",
    "a\\b",
    "...",
    ".hidden",
    "a./.b/..c",
    "-rf",
    "shard.tar/member",
    "a/" * 500 + "x",
    "\x01\x7f",
    "\u202egnirts",
    "e\u0301",  # not the same bytes as é: names are not normalized
]
REFUSED = [
    "",
    "a" * 1025,
    "é" * 512 + "a",
    "a\0b",
    "\0",
    "/a",
    "a/",
    "/",
    "a//b",
    "ais://other/name",
    ".",
    "..",
    "./a",
    "a/.",
    "a/./b",
    "../a",
    "a/..",
    "a/../b",
    "\ud800",
    "a\udfffb",
]


def shown(name: str) -> str:
    return ascii(name if len(name) < 20 else f"{name[:8]}...{len(name)}")


@pytest.mark.parametrize("name", ACCEPTED, ids=shown)
def test_accepted_names_come_back_literally(client: Client, bucket: Bucket, name: str) -> None:
    data = name.encode()
    assert bucket.put(name, data).name == name
    assert bucket.head(name).name == name
    assert bucket.get(name) == data
    assert [info.name for info in bucket.objects()] == [name]
    assert [info.name for info in bucket.objects(prefix=name)] == [name]
    assert contents(bucket.get_batch([name])) == [data]
    assert contents(client.get_batch([Entry(bucket.name, name)])) == [data]
    bucket.delete(name)
    assert list(bucket.objects()) == []


@pytest.mark.parametrize("name", REFUSED, ids=shown)
def test_refused_names_are_refused_by_put_and_leave_nothing_behind(bucket: Bucket, name: str) -> None:
    with pytest.raises(errors.InvalidName):
        bucket.put(name, b"data")
    with pytest.raises(errors.InvalidName):
        bucket.put_many([(name, b"data")])
    assert list(bucket.objects()) == []


@pytest.mark.parametrize("name", REFUSED, ids=shown)
def test_refused_names_are_not_found_by_reads(bucket: Bucket, name: str) -> None:
    for call in (bucket.get, bucket.head, bucket.delete):
        with pytest.raises(errors.ObjectNotFound):
            call(name)


@pytest.mark.parametrize("name", [name for name in REFUSED if name.isprintable()], ids=shown)
def test_refused_names_are_not_found_in_a_batch(bucket: Bucket, name: str) -> None:
    bucket.put("good", b"1")
    items = list(bucket.get_batch(["good", name, "good"], on_error="placeholder"))
    assert [item.status for item in items] == [Status.OK, Status.NOT_FOUND, Status.OK]


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb"], ids=shown)
def test_a_batch_refuses_a_name_that_has_no_utf8_form_before_it_is_sent(
    client: Client, bucket: Bucket, name: str
) -> None:
    with pytest.raises(errors.InvalidRequest, match="UTF-8"):
        bucket.get_batch([name])
    with pytest.raises(errors.InvalidRequest, match="UTF-8"):
        client.get_batch([Entry(bucket.name, name)])


def test_a_name_and_names_below_it_live_together(bucket: Bucket) -> None:
    bucket.put("a/b", b"below")
    bucket.put("a", b"above")
    bucket.put("a/b/c", b"deep")
    assert contents(bucket.get_batch(["a", "a/b", "a/b/c"])) == [b"above", b"below", b"deep"]
    bucket.delete("a")
    assert bucket.get("a/b") == b"below"


def test_names_that_differ_only_in_case_or_normalization_are_different(bucket: Bucket) -> None:
    names = ["a", "A", "\u00e9", "e\u0301", "a ", " a"]
    for name in names:
        bucket.put(name, ascii(name).encode())
    assert contents(bucket.get_batch(names)) == [ascii(name).encode() for name in names]


@pytest.mark.parametrize("name", [None, 5, b"a"])
def test_a_name_that_is_no_string_is_a_type_error(bucket: Bucket, name: object) -> None:
    with pytest.raises(TypeError):
        bucket.put(name, b"")  # type: ignore[arg-type]
