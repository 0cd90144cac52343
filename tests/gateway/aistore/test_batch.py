"""GetBatch: archives in the order of the request, what they say of missing entries, and which requests are refused."""

from __future__ import annotations

import base64
import io
import json
import re
import tarfile
import zipfile
from collections.abc import Callable
from typing import Any

import lz4.frame
import pytest

from ais_loader.objects import archive as archive_module
from tests.gateway.aistore.calls import call, connection, succeeded
from tests.gateway.aistore.conftest import Answer
from tests.gateway.conftest import Served
from tests.gateway.test_boto3 import data
from tests.gateway.test_bundle import members
from tests.table import table
from tests.tar_kit import packed_tar


def batch(served: Served, entries: list[Any], path: str = "ml/moss", query: Any = None, **fields: Any) -> Answer:
    return call(served, "GET", path, {"in": entries, "strm": True, **fields}, **(query or {}))


def entry(bucket: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"objname": name, "bucket": bucket, "provider": "ais", **fields}


@pytest.fixture
def filled(served: Served, bucket: str) -> dict[str, bytes]:
    """Objects `o0` to `o19` of a bucket, and a tar `s.tar` with the member `d/m`."""
    objects = {f"o{number}": data(number, 1000 * number) for number in range(20)}
    served.client.bucket(bucket).put_many(objects.items())
    served.client.bucket(bucket).put("s.tar", packed_tar({"d/m": b"member"}))
    return objects


def parts(answer: Answer) -> tuple[dict[str, Any], bytes]:
    """Return the document and the archive of an answer that is not streamed."""
    boundary = re.fullmatch(r"multipart/mixed; boundary=(\w+)", answer.headers["content-type"])
    assert boundary is not None
    assert int(answer.headers["content-length"]) == len(answer.body)
    mark = f"--{boundary[1]}".encode()
    before, first, second, end = answer.body.split(mark)
    assert (before, end) == (b"", b"--\r\n")
    document = first.removeprefix(b'\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n')
    headers, _, archive = second.partition(b"\r\n\r\n")
    assert b'name="archive"; filename=' in headers
    assert archive.endswith(b"\r\n")
    return json.loads(document), archive[:-2]


def test_entries_in_order(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    entries = [entry(bucket, name) for name in reversed(filled)]
    entries += [
        entry(bucket, "s.tar", archpath="d/m"),
        entry(bucket, "s.tar", archpath="/d/m", start=1, length=3),
        entry(bucket, "o9", start=5, length=7),
        entry(bucket, "o9", start=8000, length=-1),
        entry(bucket, "o9", start=0, length=0),
        entry(bucket, "o1"),
        entry(bucket, "o1"),
    ]
    answer = succeeded(batch(served, entries, mime=".tar", coer=True, onob=False))
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert members(answer.body) == [
        *((f"{bucket}/{name}", filled[name]) for name in reversed(filled)),
        (f"{bucket}/s.tar/d/m", b"member"),
        (f"{bucket}/s.tar/d/m", b"emb"),
        (f"{bucket}/o9", filled["o9"][5:12]),
        (f"{bucket}/o9", filled["o9"][8000:]),
        (f"{bucket}/o9", filled["o9"]),
        (f"{bucket}/o1", filled["o1"]),
        (f"{bucket}/o1", filled["o1"]),
    ]


def test_members_are_plain_files(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    answer = succeeded(batch(served, [entry(bucket, "o3")]))
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        (member,) = archive.getmembers()
    assert (member.isreg(), member.mode, member.uid, member.gid) == (True, 0o644, 0, 0)


def test_the_bucket_of_the_path_and_names_without_it(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    other = f"{bucket}-other"
    served.client.create_bucket(other).put("x", b"other")
    entries = [{"objname": "o2"}, entry(other, "x"), {"objname": "o3", "provider": ""}]
    answer = batch(served, entries, f"ml/moss/{bucket}", {"provider": "ais", "coloc": "1"}, coloc=1, onob=True)
    assert members(succeeded(answer).body) == [("o2", filled["o2"]), ("x", b"other"), ("o3", filled["o3"])]


def test_placeholders(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    entries = [entry(bucket, f"none{number}") for number in range(20)]
    entries += [
        entry(bucket, "s.tar", archpath="d/none"),
        entry(bucket, "none.tar", archpath="d/m"),
        entry(bucket, "o5", start=9_000_000, length=1),
        entry(bucket, "o5", archpath="d/m"),
        entry(bucket, "o5"),
    ]
    expected = [
        *((f"__404__/{bucket}/none{number}", b"") for number in range(20)),
        (f"__404__/{bucket}/s.tar/d/none", b""),
        (f"__404__/{bucket}/none.tar", b""),
        (f"__404__/{bucket}/o5", b""),
        (f"__404__/{bucket}/o5/d/m", b""),
        (f"{bucket}/o5", filled["o5"]),
    ]
    assert members(succeeded(batch(served, entries, coer=True)).body) == expected
    document, archive = parts(succeeded(batch(served, entries, coer=True, strm=False)))
    assert members(archive) == expected
    assert [bool(row.get("err_msg")) for row in document["out"]] == [True] * 24 + [False]


def test_a_strict_batch_with_a_missing_entry_is_refused(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    for streamed in (True, False):
        answer = batch(served, [entry(bucket, "o1"), entry(bucket, "none")], strm=streamed)
        assert answer.status == 404
        assert f"ais://{bucket}/none" in answer.json()["message"]
        answer = batch(served, [entry(bucket, "s.tar", archpath="none")], strm=streamed)
        assert answer.status == 404
        answer = batch(served, [entry(bucket, "o1", start=5000, length=10)], strm=streamed)
        assert answer.status == 416
        answer = batch(served, [entry(bucket, "o1", archpath="m")], strm=streamed)
        assert answer.status == 400


def test_a_bucket_that_is_missing(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    for streamed in (True, False):
        answer = batch(served, [entry(bucket, "o1"), entry("no-such", "x")], coer=True, strm=streamed)
        assert answer.status == 404
        assert answer.json()["message"] == 'bucket "ais://no-such" does not exist'
    answer = batch(served, [{"objname": "o1", "bucket": bucket, "provider": "s3"}], coer=True)
    assert answer.status == 404
    assert f"aws://{bucket}" in answer.json()["message"]


def test_the_document_in_front(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    opaque = base64.b64encode(b"\xff\xfe mine").decode()
    entries = [
        entry(bucket, "o7", opaque=opaque),
        entry(bucket, "s.tar", archpath="d/m"),
        entry(bucket, "o7", start=1, length=10),
    ]
    document, archive = parts(succeeded(batch(served, entries, strm=False)))
    assert document["uuid"]
    assert document["out"] == [
        {"objname": "o7", "bucket": bucket, "provider": "ais", "size": 7000, "opaque": opaque},
        {"objname": "s.tar", "archpath": "d/m", "bucket": bucket, "provider": "ais", "size": 6},
        {"objname": "o7", "bucket": bucket, "provider": "ais", "size": 10},
    ]
    assert [content for _, content in members(archive)] == [filled["o7"], b"member", filled["o7"][1:11]]


def unzipped(packed: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return [(one.filename, archive.read(one)) for one in archive.infolist()]


@table(
    ("mime", "content_type", "read"),
    [
        ("", "application/x-tar", members),
        ("tar", "application/x-tar", members),
        ("application/x-tar", "application/x-tar", members),
        (".tgz", "application/gzip", members),
        (".tar.gz", "application/gzip", members),
        (".zip", "application/zip", unzipped),
        (".tar.lz4", "application/x-lz4", lambda packed: members(lz4.frame.decompress(packed))),
    ],
)
def test_formats(
    served: Served,
    bucket: str,
    filled: dict[str, bytes],
    mime: str,
    content_type: str,
    read: Callable[[bytes], list[tuple[str, bytes]]],
) -> None:
    entries = [entry(bucket, "o4"), entry(bucket, "s.tar", archpath="d/m"), entry(bucket, "none")]
    expected = [(f"{bucket}/o4", filled["o4"]), (f"{bucket}/s.tar/d/m", b"member"), (f"__404__/{bucket}/none", b"")]
    answer = succeeded(batch(served, entries, mime=mime, coer=True))
    assert answer.headers["content-type"] == content_type
    assert read(answer.body) == expected
    assert read(parts(succeeded(batch(served, entries, mime=mime, coer=True, strm=False)))[1]) == expected


@table(
    "message",
    [
        b"{",
        b"",
        [],
        {},
        {"in": []},
        {"in": {}},
        {"in": ["a"]},
        {"in": [{}]},
        {"in": [{"objname": ""}]},
        {"in": [{"objname": 1}]},
        {"in": [{"objname": "../a"}]},
        {"in": [{"objname": "a", "bucket": "a/b"}]},
        {"in": [{"objname": "a", "bucket": "b", "provider": "x"}]},
        {"in": [{"objname": "a", "archpath": "../m"}]},
        {"in": [{"objname": "a", "archpath": 1}]},
        {"in": [{"objname": "a", "start": 1}]},
        {"in": [{"objname": "a", "start": -1, "length": 1}]},
        {"in": [{"objname": "a", "start": 1, "length": -2}]},
        {"in": [{"objname": "a", "start": 1.5, "length": 2}]},
        {"in": [{"objname": "a", "start": True, "length": 2}]},
        {"in": [{"objname": "a", "start": 1 << 70, "length": 2}]},
        {"in": [{"objname": "a", "opaque": "_-_-"}]},
        {"in": [{"objname": "a", "opaque": "a"}]},
        {"in": [{"objname": "a"}], "mime": ".TAR"},
        {"in": [{"objname": "a"}], "mime": "tar.bz2"},
        {"in": [{"objname": "a"}], "mime": 1},
        {"in": [{"objname": "a"}], "strm": "yes"},
        {"in": [{"objname": "a"}], "coloc": 3},
    ],
)
def test_requests_that_are_not_valid(served: Served, bucket: str, message: Any) -> None:
    answer = call(served, "GET", f"ml/moss/{bucket}", message)
    assert answer.status == 400
    assert answer.json()["status"] == 400


def test_other_refusals(served: Served, bucket: str) -> None:
    assert call(served, "GET", "ml/moss", {"in": [{"objname": "a"}]}).status == 400
    assert call(served, "GET", f"ml/moss/{bucket}", {"in": [{"objname": "a"}]}, coloc="3").status == 400
    assert call(served, "GET", f"ml/moss/{bucket}", {"in": [{"objname": "a"}]}, provider="x").status == 400
    answer = call(served, "POST", f"ml/moss/{bucket}", {"in": [{"objname": "a"}]})
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    with_token = connection(served)
    with_token.request("GET", f"/v1/ml/moss/{bucket}", json.dumps({"in": [{"objname": "a"}]}))
    assert with_token.getresponse().status == 401
    with_token.close()


def test_unknown_fields_are_ignored(served: Served, bucket: str, filled: dict[str, bytes]) -> None:
    answer = batch(served, [entry(bucket, "o2", uname="x", later=1)], more={"a": 1})
    assert members(succeeded(answer).body) == [(f"{bucket}/o2", filled["o2"])]


@table("size_bytes", [0, 1, 512, 10_240, (1 << 33) - 1, 1 << 33])
@table("name", ["a", "b/c d.txt", "~!", "x" * 100, "x" * 101, "d/é", "n" * 300])
def test_headers_are_those_of_the_standard_library(name: str, size_bytes: int) -> None:
    plain = archive_module._plain_header(name, size_bytes)
    assert (plain is None) == (len(name) > 100 or not name.isascii() or size_bytes >= 1 << 33)
    assert plain in (None, archive_module._full_header(name, size_bytes))
