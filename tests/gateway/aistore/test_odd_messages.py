"""Messages of AIStore's API that no client of its sends: each is refused in its format, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.aistore.conftest import Ais
from tests.gateway.conftest import Served
from tests.table import table

HALF = "\ud800"
"""Half of a surrogate pair, which JSON can name and UTF-8 cannot."""
TO = {"name": "to"}
TARGET = {"name": "b", "provider": 1}


@pytest.fixture
def begun(served: Served, bucket: str) -> Any:
    """An upload that has a part, in a bucket that has an object."""
    client_bucket = served.client.bucket(bucket)
    client_bucket.put("k", b"hello")
    upload = client_bucket.multipart("later")
    upload.put_part(1, b"part")
    return upload


@table(
    ("method", "action", "value"),
    [
        ("DELETE", "delete-listrange", {"template": "/"}),
        ("DELETE", "delete-listrange", {"template": "/.parts/"}),
        ("POST", "copy-listrange", {"template": "/", "tobck": {"name": "BUCKET"}, "prepend": "got"}),
        ("POST", "copy-bck", {"prefix": "/", "prepend": "got"}),
        ("POST", "copy-bck", {"prepend": "/.parts/"}),
        ("PUT", "archive", {"template": "/", "archname": "a.tar", "isbn": True}),
        ("GET", "summary-bck", {"prefix": "/", "uuid": "x"}),
    ],
)
def test_parts_of_uploads_are_in_no_group(
    ais: Ais, served: Served, bucket: str, begun: Any, method: str, action: str, value: dict[str, Any]
) -> None:
    value = json.loads(json.dumps(value).replace("BUCKET", bucket))
    query = {"bck_to": f"ais/@#/{bucket}/"} if action == "copy-bck" else {}
    answer = ais(method, f"buckets/{bucket}", {"action": action, "value": value}, **query)
    assert (answer.status, "begins with '/'" in answer.message()) == (400, True)
    assert [part.number for part in begun.parts()] == [1]
    assert list(served.client.bucket(bucket)) == ["k"]
    assert ais("GET", f"buckets/{bucket}", {"action": "list", "value": {"prefix": "/"}}).json()["entries"] == []


@table(
    ("method", "path", "message"),
    [
        ("POST", "buckets/{}", {"action": "copy-listrange", "value": {"objnames": ["k"], "tobck": TARGET}}),
        ("PUT", "buckets/{}", {"action": "archive", "value": {"objnames": ["k"], "archname": "a", "tobck": TARGET}}),
        ("POST", "buckets/{}", {"action": "copy-listrange", "value": {"objnames": ["k"], "tobck": TO, "dry_run": 0}}),
        ("POST", "buckets/{}", {"action": "copy-listrange", "value": {"objnames": ["k"], "tobck": TO, "prepend": 0}}),
        ("POST", "objects/{}/later?uploadId=ID", {"action": "mpt-complete", "value": 1}),
        ("POST", "objects/{}/later?uploadId=ID", {"action": "mpt-complete", "value": True}),
        ("POST", "objects/{}/later?uploadId=ID", {"action": "mpt-complete", "value": {"part-number": 1}}),
        ("GET", "buckets/{}", {"action": "list", "value": {"prefix": HALF}}),
        ("POST", "buckets/{}?bck_to=ais/@%23/b/", {"action": "etl-bck", "value": {"id": HALF}}),
        ("GET", "ml/moss/{}", {"in": [{"objname": HALF}]}),
        ("GET", "ml/moss/{}", {"in": [{"objname": "k", "start": float("nan")}]}),
        ("GET", "buckets/{}", '{"action": "list"}'.encode("utf-16")),
        ("GET", "buckets/{}", b'{"action": "list", "value": {"prefix": "\xed\xa0\x80"}}'),
    ],
)  # fmt: skip
def test_values_of_another_type(
    ais: Ais, served: Served, bucket: str, begun: Any, method: str, path: str, message: Any
) -> None:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    answer = ais(method, path.format(bucket).replace("ID", begun.id), body)
    assert (answer.status, bool(answer.message())) == (400, True)
    assert [part.number for part in begun.parts()] == [1]
    assert list(served.client.bucket(bucket)) == ["k"]


def test_an_id_of_a_job_that_is_much_too_long(ais: Ais) -> None:
    known = "g0mx0hd5dx-12-2-1z-7p"
    for id, status in ((f"g0zzzzzzzzz-1-1-{'z' * 3500}-1", 404), (known, 200), ("0" * 20_000 + known, 200)):
        answer = ais("GET", "cluster", {"ID": id}, what="qryxstats")
        assert answer.status == status, answer.body[:200]


@table("host", ["x:abc", "[::1", "x:99999"])
def test_a_host_that_is_none(ais: Ais, host: str) -> None:
    answer = ais("GET", "daemon", headers={"Host": host}, what="smap")
    assert (answer.status, "Host" in answer.message()) == (400, True)
