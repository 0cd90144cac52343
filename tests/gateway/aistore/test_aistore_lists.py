"""Lists: pages, order, properties, flags, folders and members of archives, in both encodings."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.gateway.aistore.conftest import Ais
from tests.table import table
from tests.tar_kit import packed_tar

MSGPACK = {"Accept": "application/msgpack"}
NAMES = sorted(["a", "a.tar", "a-b", "d/x", "d/y/z", "d-e", "é", "z" * 300, "%2F", "x y+#?"])


def page(ais: Ais, bucket: str, **value: Any) -> dict[str, Any]:
    answer = ais("GET", f"buckets/{bucket}", {"action": "list", "value": value}, MSGPACK)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/msgpack"), answer
    found: dict[str, Any] = msgpack.unpackb(answer.body)
    assert found["UUID"] and found["Flags"] == 0
    return found


def names(ais: Ais, bucket: str, **value: Any) -> list[str]:
    """The names on all pages."""
    found: list[str] = []
    token = ""
    while True:
        one = page(ais, bucket, continuation_token=token, **value)
        found += [entry["n"] for entry in one["Entries"]]
        token = one["ContinuationToken"]
        if not token:
            return found
        assert 0 < len(one["Entries"]) <= value["pagesize"]


@pytest.fixture
def listed(ais: Ais, bucket: str) -> str:
    for at, name in enumerate(NAMES):
        data = packed_tar({"m/b": b"bb", "m/a": b"a", "n": b""}) if name == "a.tar" else bytes(at)
        ais.put(bucket, name, data)
    return bucket


@table("size", [0, 1, 3, len(NAMES), 50_000])
def test_pages(ais: Ais, listed: str, size: int) -> None:
    assert names(ais, listed, pagesize=size) == NAMES
    assert names(ais, listed, pagesize=size, prefix="d") == ["d-e", "d/x", "d/y/z"]
    assert names(ais, listed, pagesize=size, prefix="none") == []


def test_a_page_follows_a_name(ais: Ais, listed: str) -> None:
    one = page(ais, listed, pagesize=2, start_after="a-b")
    assert [entry["n"] for entry in one["Entries"]] == ["a.tar", "d-e"]
    assert one["ContinuationToken"] == "d-e"
    ais("DELETE", f"objects/{listed}/d-e")
    two = page(ais, listed, pagesize=2, start_after="a-b", continuation_token="d-e", uuid=one["UUID"])
    assert [entry["n"] for entry in two["Entries"]] == ["d/x", "d/y/z"]
    assert two["UUID"] == one["UUID"]


def test_properties(ais: Ais, bucket: str) -> None:
    version = ais.put(bucket, "x", b"123").headers["ais-version"]
    first, version = version, ais.put(bucket, "x", b"123").headers["ais-version"]
    assert 0 < int(first) < int(version)
    ais("PATCH", f"objects/{bucket}/x", {"action": "", "value": {"k": "v"}})
    version = ais.head(bucket, "x", props="version").headers["ais-version"]
    everything = "name,size,checksum,atime,version,cached,status,copies,ec,custom,location"
    (entry,) = page(ais, bucket, props=everything)["Entries"]
    assert len(entry.pop("a")) == len("20 Nov 26 10:32 UTC")
    crc32c = {"cs": "107b2fb2"}
    assert entry == {"n": "x", "s": 3, "v": version, "t": "t[store]", "m": "[k:v]", "c": 1, "f": 64, **crc32c}
    assert page(ais, bucket)["Entries"] == [{"n": "x", "s": 3, "f": 64}]
    assert page(ais, bucket, props="name")["Entries"] == [{"n": "x", "f": 64}]
    assert page(ais, bucket, flags="16", props=everything)["Entries"] == [{"n": "x", "f": 64}]
    assert page(ais, bucket, flags="32", props=everything)["Entries"] == [{"n": "x", "s": 3, "f": 64}]
    shown = ais("GET", f"buckets/{bucket}", {"action": "list", "value": {"uuid": "u"}})
    assert shown.headers["content-type"] == "application/json"
    assert shown.json() == {
        "uuid": "u",
        "continuation_token": "",
        "entries": [{"name": "x", "size": "3", "flags": 64}],
        "flags": 0,
    }


@table("size", [0, 1, 2])
def test_folders(ais: Ais, listed: str, size: int) -> None:
    assert names(ais, listed, flags="2048", pagesize=size, prefix="d") == ["d-e", "d/"]
    assert names(ais, listed, flags="10240", pagesize=size, prefix="d/") == ["d/x", "d/y/"]
    entries = page(ais, listed, flags="2048", prefix="d")["Entries"]
    assert entries == [{"n": "d-e", "s": NAMES.index("d-e"), "f": 64}, {"n": "d/", "f": 256}]


@table("size", [0, 1, 2, 3])
def test_members_of_archives(ais: Ais, listed: str, size: int) -> None:
    ais.put(listed, "b.tar", b"no archive")
    shard = ["a.tar", "a.tar/m/a", "a.tar/m/b", "a.tar/n"]
    expected = [name for one in sorted([*NAMES, "b.tar"]) for name in (shard if one == "a.tar" else [one])]
    assert names(ais, listed, flags="8", pagesize=size) == expected
    assert names(ais, listed, flags="8", pagesize=size, prefix="a.tar") == shard
    assert names(ais, listed, flags="8", pagesize=size, prefix="a.tar/m/") == ["a.tar/m/a", "a.tar/m/b"]
    assert page(ais, listed, flags="8", prefix="a.tar")["Entries"] == [
        {"n": "a.tar", "s": 10240, "f": 576},
        {"n": "a.tar/m/a", "s": 1, "f": 192},
        {"n": "a.tar/m/b", "s": 2, "f": 192},
        {"n": "a.tar/n", "f": 192},
    ]
    assert page(ais, listed, flags="8", prefix="b.tar")["Entries"] == [{"n": "b.tar", "s": 10, "f": 64}]


def test_what_is_refused(ais: Ais, bucket: str) -> None:
    wrong: list[dict[str, Any]] = [
        *({"flags": 16}, {"flags": "x"}, {"pagesize": -1}, {"pagesize": "many"}, {"pagesize": 1.5}),
        *({"prefix": 1}, {"props": "strange"}, {"continuation_token": []}),
    ]
    for value in wrong:
        answer = ais("GET", f"buckets/{bucket}", {"action": "list", "value": value}, MSGPACK)
        assert answer.status == 400 and answer.message(), value
    missing = ais("GET", "buckets/none", {"action": "list", "value": {"prefix": "/x"}}, MSGPACK)
    assert (missing.status, missing.message()) == (404, 'bucket "ais://none" does not exist')


def test_uploads_are_not_listed(ais: Ais, bucket: str) -> None:
    upload = ais("POST", f"objects/{bucket}/x", {"action": "mpt-upload"}).body.decode()
    ais.put(bucket, "x", b"part", uploadId=upload, partNumber="1")
    for prefix in ("", "/", "/.parts/"):
        assert page(ais, bucket, prefix=prefix)["Entries"] == []
