"""Every verdict about the names of buckets and objects, and that no name reaches outside its drive."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.errors import InvalidName, ObjectNotFound
from storage_node.store.names import check_bucket_name, check_object_name, object_name_fault
from tests.store.store_kit import contents, object_files, put, read, store_at
from tests.table import table

GOOD_NAMES = (
    "a",
    "a/b",
    "a/b/c.wav",
    ".hidden",
    "..data/x",
    "a/...",
    "a/.b/c..",
    " ",
    "a b\tc\nd",
    "-rf",
    "*?[",
    "C:\\x",
    "größe/名前/🎙.flac",
    "e\u0301 is not \u00e9",
    "ä" * 512,
    "x" * 1024,
    "\u0001",
)
BAD_NAMES = {
    "": "this one has 0",
    "x" * 1025: "this one has 1,025",
    "ä" * 513: "this one has 1,026",
    "a\0b": "NUL",
    "/a": "begins or ends with '/'",
    "a/": "begins or ends with '/'",
    "/": "begins or ends with '/'",
    "a//b": "'//'",
    ".": "component '.'",
    "..": "component '..'",
    "a/./b": "component '.'",
    "../a": "component '..'",
    "a/..": "component '..'",
    "a/../../etc/passwd": "component '..'",
    "\ud800": "lone surrogate",
    "/.lines/": "this one has 0",
    "/.lines//a": "begins or ends with '/'",
    "/.lines/../a": "component '..'",
    "/.lines/" * 50_000: "begins or ends with '/'|names have 1 to 1,024 bytes",
}
GOOD_BUCKETS = ("a", "A-b_c.9", "x" * 63, "9", "a..b", "-", "_")
BAD_BUCKETS = ("", "x" * 64, ".hidden", "a/b", "a b", "ä", "a\n", "a\0", "..")


@table("name", GOOD_NAMES)
def test_a_good_object_name_has_no_fault(name: str) -> None:
    check_object_name(name)
    assert object_name_fault(name) is None


@table("name", BAD_NAMES)
def test_a_bad_object_name_is_refused_with_its_fault(name: str) -> None:
    with pytest.raises(InvalidName, match=BAD_NAMES[name]):
        check_object_name(name)


def test_an_index_of_lines_has_the_name_of_its_object() -> None:
    for name in GOOD_NAMES:
        check_object_name(f"/.lines/{name}")


def test_a_long_name_is_not_repeated_in_full_in_the_message() -> None:
    with pytest.raises(InvalidName) as caught:
        check_object_name("x" * 100_000)
    assert len(str(caught.value)) < 250


@table("name", GOOD_BUCKETS)
def test_a_good_bucket_name_passes(name: str) -> None:
    check_bucket_name(name)


@table("name", BAD_BUCKETS)
def test_a_bad_bucket_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="1 to 63"):
        check_bucket_name(name)


def test_every_good_name_comes_back_with_its_bytes_and_stays_inside_the_drive(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        wanted = {name: name.encode() + b" is here" for name in GOOD_NAMES}
        for name, data in wanted.items():
            put(store, name, data)
        assert contents(store) == wanted
    assert {path.name for path in tmp_path.iterdir()} == {"drive"}
    assert len(object_files(tmp_path / "drive")) == len(GOOD_NAMES)


@table("name", BAD_NAMES)
def test_a_bad_name_stores_nothing_and_names_no_object(tmp_path: Path, name: str) -> None:
    with store_at(tmp_path / "drive") as store:
        with pytest.raises(InvalidName):
            put(store, name, b"x")
        with pytest.raises(ObjectNotFound, match="and there can be none"):
            read(store, name)
        with pytest.raises(ObjectNotFound, match="and there can be none"):
            store.delete("speech", name)
        assert contents(store) == {}
    assert not list((tmp_path / "drive" / "staging").iterdir())
