"""Listings over the gateway: order, folders and pages, compared with a model; and while objects change."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from tests.every_value import every_value_once
from tests.gateway.conftest import Served
from tests.gateway.test_boto3 import code
from tests.table import table

KEYS = sorted(
    {"a", "b/", "b/1", "b/2", "b/c/3", "b/c/4", "b!", "b0", "z", "é/1", "é/2", *(f"many/{n:04d}" for n in range(12))},
    key=str.encode,
)


def model(prefix: str, delimiter: str, after: str) -> list[str]:
    """Keys and folders of a listing, by S3's rules."""
    found: list[str] = []
    for key in KEYS:
        if not key.startswith(prefix):
            continue
        rest, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
        shown = prefix + rest + cut if cut else key
        if shown.encode() > after.encode() and shown not in found and not (cut and after.startswith(shown)):
            found.append(shown)
    return found


@pytest.fixture(scope="module")
def filled(served: Served) -> str:
    bucket = served.client.create_bucket("listed", exist_ok=True)
    for key in KEYS:
        bucket.put(key + "\x01" if key.endswith("/") else key, key.encode())
    return "listed"


PREFIXES = ["", "b", "b/", "many/", "é/", "none"]
DELIMITERS = ["", "/", "c", "0"]
PAGES = [3, 1, 1000]


@table("prefix, delimiter, page", every_value_once(PREFIXES, DELIMITERS, PAGES))
def test_pages(s3: Any, filled: str, prefix: str, delimiter: str, page: int) -> None:
    follow_pages(s3, filled, prefix, delimiter, page)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@table("prefix", PREFIXES)
@table("delimiter", DELIMITERS)
def test_pages_of_any_size_have_all_prefixes_and_delimiters(
    s3: Any, filled: str, prefix: str, delimiter: str, page: int
) -> None:
    follow_pages(s3, filled, prefix, delimiter, page)


def follow_pages(s3: Any, filled: str, prefix: str, delimiter: str, page: int) -> None:
    for call, after in (("list_objects_v2", "StartAfter"), ("list_objects", "Marker")):
        for start in ("", "b/", "b/1", "many/0005", "zz") if page == 3 else ("",):
            arguments = {"Bucket": filled, "Prefix": prefix, "Delimiter": delimiter, "MaxKeys": page, after: start}
            found: list[str] = []
            while True:
                answer = getattr(s3, call)(**arguments)
                objects = [row["Key"] for row in answer.get("Contents", [])]
                folders = [row["Prefix"] for row in answer.get("CommonPrefixes", [])]
                assert len(objects) + len(folders) <= page
                found += sorted(objects + folders, key=str.encode)
                if not answer["IsTruncated"]:
                    break
                if call == "list_objects":
                    arguments["Marker"] = answer["NextMarker"]
                else:
                    arguments["ContinuationToken"] = answer["NextContinuationToken"]
            assert found == model(prefix, delimiter, start), (call, start)


def test_arguments(s3: Any, filled: str) -> None:
    assert s3.list_objects_v2(Bucket=filled, MaxKeys=0)["KeyCount"] == 0
    assert code(s3.list_objects_v2, Bucket=filled, MaxKeys=-1)[0] == "InvalidArgument"
    assert code(s3.list_objects_v2, Bucket=filled, ContinuationToken="%%")[0] == "InvalidArgument"
    row = s3.list_objects_v2(Bucket=filled, MaxKeys=1, FetchOwner=True)["Contents"][0]
    assert (row["Owner"]["ID"], row["StorageClass"], row["Size"]) == ("the-key", "STANDARD", 1)
    versions = s3.list_object_versions(Bucket=filled, Prefix="b/c/")["Versions"]
    assert [(row["Key"], row["VersionId"]) for row in versions] == [("b/c/3", "null"), ("b/c/4", "null")]


def test_a_folder_of_many_objects_is_passed_over(served: Served, s3: Any, bucket: str) -> None:
    served.client.bucket(bucket).put_many((f"d/{number:05d}", b"") for number in range(2500))
    served.client.bucket(bucket).put_many([("c", b""), ("e", b"")])
    answer = s3.list_objects_v2(Bucket=bucket, Delimiter="/")
    assert [row["Key"] for row in answer["Contents"]] == ["c", "e"]
    assert [row["Prefix"] for row in answer["CommonPrefixes"]] == ["d/"]


def test_objects_that_stay_are_listed_once_while_others_change(served: Served, s3: Any, bucket: str) -> None:
    handle = served.client.bucket(bucket)
    stay = [f"k{number:03d}" for number in range(0, 200, 2)]
    handle.put_many((key, b"") for key in stay)
    stopping = threading.Event()

    def change() -> None:
        while not stopping.is_set():
            names = [f"k{os.urandom(1)[0] % 100 * 2 + 1:03d}" for _ in range(10)]
            handle.put_many((name, b"") for name in names)
            handle.delete_many(set(names))

    changing = threading.Thread(target=change)
    changing.start()
    try:
        for _ in range(5):
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
            keys = [row["Key"] for page in pages for row in page.get("Contents", [])]
            assert keys == sorted(set(keys))
            assert [key for key in keys if int(key[1:]) % 2 == 0] == stay
    finally:
        stopping.set()
        changing.join(180)
