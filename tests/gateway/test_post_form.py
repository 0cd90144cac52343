"""Forms of browsers: what they store, what a policy refuses, and what is no form."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from ais_loader.integrations.gateway.post_form import PostForm
from ais_loader.integrations.gateway.request import S3Error
from ais_loader.wire.checksum import crc32c
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.table import table

Fields = dict[str, Any]
DATA = bytes(range(256)) * 40 + b"\r\n--boundar\r\n--"


def form(fields: Fields, data: bytes | None = DATA, filename: str = "f.bin", after: str = "") -> bytes:
    """Return the body of a form whose boundary is `boundary`."""
    parts = [f'--boundary\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    body = "".join(parts).encode()
    if data is not None:
        head = f'Content-Disposition: form-data; name="file"; filename="{filename}"\r\nContent-Type: x/y'
        body += f"--boundary\r\n{head}\r\n\r\n".encode() + data + b"\r\n"
    return body + after.encode() + b"--boundary--\r\n"


def posted(
    port: int, bucket: str, body: bytes, kind: str = "multipart/form-data; boundary=boundary"
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        connection.request("POST", f"/{bucket}", body, {"Content-Type": kind})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def policy(*conditions: Any, bucket: str, lives_s: float = 600, **changed: Any) -> str:
    """Return a policy that allows any key, with more conditions."""
    expiration = (datetime.now(UTC) + timedelta(seconds=lives_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    whole = [{"bucket": bucket}, ["starts-with", "$key", ""], *conditions]
    document = {"expiration": expiration, "conditions": whole, **changed}
    return base64.b64encode(json.dumps(document).encode()).decode()


def signed(text: str) -> Fields:
    """Return fields with a policy and its signature of version 2."""
    made = hmac.digest(ACCOUNT.secret_key.encode(), text.encode(), "sha1")
    own = {"AWSAccessKeyId": ACCOUNT.access_key, "signature": base64.b64encode(made).decode(), "policy": text}
    return {"key": "k", **own}


@table("version", ["s3", "s3v4"])
def test_forms_of_boto3(served: Served, bucket: str, version: str) -> None:
    fields = {"Content-Type": "text/plain", "x-amz-meta-a": "b", "success_action_status": "201"}
    conditions: list[Any] = [{name: value} for name, value in fields.items()]
    made = served.s3(signature_version=version).generate_presigned_post(
        bucket, "in/${filename}", fields, [*conditions, ["content-length-range", 1, 20_000]]
    )
    status, headers, document = posted(served.port, bucket, form(made["fields"], filename="C:\\x\\a b.bin"))
    assert status == 201 and b"<Key>in/a b.bin</Key>" in document and headers["location"] == f"/{bucket}/in/a%20b.bin"
    found = served.s3().get_object(Bucket=bucket, Key="in/a b.bin")
    assert found["Body"].read() == DATA and found["ETag"] == f'"{hashlib.md5(DATA).hexdigest()}"' == headers["etag"]
    assert (found["ContentType"], found["Metadata"]) == ("text/plain", {"a": "b"})
    for wrong in ({"signature": "x"}, {"x-amz-signature": "0" * 64}):
        if wrong.keys() <= made["fields"].keys():
            assert posted(served.port, bucket, form({**made["fields"], **wrong}))[0] == 403


def test_what_a_form_is_answered(served: Served, bucket: str) -> None:
    rules = (["starts-with", "$success_action_status", ""], ["starts-with", "$success_action_redirect", ""])
    text = policy(*rules, ["starts-with", "$tagging", ""], bucket=bucket)
    for status, expected in (("200", 200), ("201", 201), ("204", 204), ("404", 204), ("x", 204)):
        fields = signed(text) | {"success_action_status": status, "x-ignore-a": "b"}
        answered, headers, body = posted(served.port, bucket, form(fields, after="--boundary\r\nignored\r\n"))
        assert (answered, bool(body)) == (expected, expected == 201) and headers["etag"]
    for url in ("http://a.test/x", "https://a.test/x?y=z"):
        status, headers, _ = posted(served.port, bucket, form(signed(text) | {"success_action_redirect": url}))[:3]
        query = dict(parse_qsl(urlsplit(headers["location"]).query))
        assert status == 303 and headers["location"].startswith(url)
        assert {"bucket": bucket, "key": "k", "etag": headers["etag"]}.items() <= query.items()
    for url in ("javascript:x", "//a.test", "http://a.test/\r\nSet-Cookie: a=b", "http://a test", "http://ä.test"):
        assert posted(served.port, bucket, form(signed(text) | {"success_action_redirect": url}))[0] == 204
    tagging = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    assert posted(served.port, bucket, form(signed(text) | {"tagging": tagging}))[0] == 204
    assert served.s3().get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "a", "Value": "b"}]
    for crc, expected in (("NhCmhg==", 204), ("AAAAAA==", 400)):
        assert posted(served.port, bucket, form(signed(text) | {"x-amz-checksum-crc32": crc}, b"hello"))[0] == expected


@table(
    "fields, status, code",
    [
        ({"policy": None}, 403, "AccessDenied"),
        ({"signature": None}, 400, "InvalidArgument"),
        ({"AWSAccessKeyId": None}, 400, "InvalidArgument"),
        ({"AWSAccessKeyId": "other"}, 403, "InvalidAccessKeyId"),
        ({"signature": "\u00e4"}, 403, "SignatureDoesNotMatch"),
        ({"key": None}, 400, "InvalidArgument"),
        ({"key": "../x"}, 400, "InvalidArgument"),
        ({"acl": "private"}, 403, "AccessDenied"),
        ({"x-amz-meta-a": "b"}, 403, "AccessDenied"),
        ({"x-amz-algorithm": "x", "x-amz-signature": "x"}, 400, "InvalidArgument"),
        ({"a" * 30_000: "b"}, 400, "MaxPostPreDataLengthExceededError"),
        ({f"x-ignore-{at}": "" for at in range(1000)}, 400, "MaxPostPreDataLengthExceededError"),
    ],
    ids=str,
)
def test_fields_that_are_refused(served: Served, bucket: str, fields: Fields, status: int, code: str) -> None:
    given = signed(policy(bucket=bucket)) | fields
    body = form({name: value for name, value in given.items() if value is not None})
    answer = posted(served.port, bucket, body)
    assert (answer[0], f"<Code>{code}</Code>".encode() in answer[2]) == (status, True), answer
    assert list(served.client.bucket(bucket)) == []


@table(
    "rules, changed, code",
    [
        ([{"key": "other"}], {}, "AccessDenied"),
        ([["eq", "$key", "K"]], {}, "AccessDenied"),
        ([["starts-with", "$key", "x"]], {}, "AccessDenied"),
        ([["starts-with", "$x-amz-meta-foo", "bar"]], {}, "AccessDenied"),
        ([{"bucket": "other"}], {}, "AccessDenied"),
        ([["content-length-range", 0, 10]], {}, "EntityTooLarge"),
        ([["content-length-range", 100_000, 200_000]], {}, "EntityTooSmall"),
        ([["content-length-range", 0]], {}, "InvalidPolicyDocument"),
        ([["content-length-range", -1, 0]], {}, "InvalidPolicyDocument"),
        ([["content-length-range", 1e999, 0]], {}, "InvalidPolicyDocument"),
        ([["StArTs-WiTh", "$kEy", "x"]], {}, "AccessDenied"),
        ([["ends-with", "$key", ""]], {}, "InvalidPolicyDocument"),
        ([["eq", "key", ""]], {}, "InvalidPolicyDocument"),
        ([["eq", "$key", 1]], {}, "InvalidPolicyDocument"),
        ([{}], {}, "InvalidPolicyDocument"),
        ([{"a": "b", "c": "d"}], {}, "InvalidPolicyDocument"),
        ([1, None], {}, "InvalidPolicyDocument"),
        ([], {"expiration": "2030-01-01 00:00:00+00:00"}, "InvalidPolicyDocument"),
        ([], {"expiration": "2030-13-01T00:00:00Z"}, "InvalidPolicyDocument"),
        ([], {"expiration": None}, "InvalidPolicyDocument"),
        ([], {"conditions": None}, "InvalidPolicyDocument"),
        ([], {"conditions": []}, "AccessDenied"),
        ([], {"expiration": "2020-01-01T00:00:00.000Z"}, "AccessDenied"),
    ],
    ids=str,
)
def test_policies_that_are_refused(served: Served, bucket: str, rules: Any, changed: Any, code: str) -> None:
    answer = posted(served.port, bucket, form(signed(policy(*rules, bucket=bucket, **changed))))
    assert answer[0] == (403 if code == "AccessDenied" else 400) and f"<Code>{code}</Code>".encode() in answer[2], (
        answer
    )
    assert list(served.client.bucket(bucket)) == []


@table(
    "body",
    [
        b"",
        b"--boundary--",
        b"--boundary\r\n\r\n\r\n--boundary--",
        form({"key": "k"}, None),
        form({"key": "k"})[:-30],
        b'--boundary\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n--boundary--',
        form({"key": "k"}).replace(b'"key"', b'"KEY"\r\n\r\nk\r\n--boundary\r\nContent-Disposition: x; name="key"'),
    ],
    ids=lambda body: repr(body[:50]),
)
def test_what_is_no_form(served: Served, bucket: str, body: bytes) -> None:
    with GatewayThread(served.clients, None) as gateway:
        status, _, document = posted(gateway.port, bucket, body)
    assert status == 400 and b"MalformedPOSTRequest" in document
    assert list(served.client.bucket(bucket)) == []


def test_another_type_is_not_implemented(served: Served, bucket: str) -> None:
    with GatewayThread(served.clients, None) as gateway:
        for kind in ("text/plain", "multipart/form-data", "multipart/form-data; boundary=", "multipart/x; boundary=a"):
            assert posted(gateway.port, bucket, form({"key": "k"}), kind)[0] == 501
        quoted = 'multipart/form-data; boundary="boundary"'
        assert posted(gateway.port, bucket, form({"kEy": "k"}), quoted)[0] == 204
    assert posted(served.port, bucket, b"", "text/plain")[0] == 403


def splits(body: bytes) -> Iterator[list[bytes]]:
    for step in (1, 2, 3, 7, 100, 5000):
        yield [body[at : at + step] for at in range(0, len(body), step)]


def test_a_form_may_be_cut_anywhere() -> None:
    for data in (b"", b"\r\n", b"\r\n--boundary".replace(b"y", b""), DATA):
        for pieces in splits(form({"key": "a", "x-ignore-e": "", "x-amz-meta-b": "\r\n--\u00e4"}, data)):
            decoder = PostForm("boundary", "b", None)
            assert b"".join(one for piece in pieces for one in decoder.feed(piece)) == data
            assert decoder.finish() == {} and decoder.fields == {
                "key": "a",
                "x-ignore-e": "",
                "x-amz-meta-b": "\r\n--ä",
            }


def test_the_policy_is_verified_before_the_file_comes(served: Served, bucket: str) -> None:
    whole = form(signed(policy(bucket="other")))
    decoder = PostForm("boundary", bucket, {ACCOUNT.access_key: ACCOUNT})
    with pytest.raises(S3Error, match="does not allow"):
        decoder.feed(whole[: whole.index(bytes(range(256)))])


def test_no_field_adds_headers_to_answers(served: Served, bucket: str) -> None:
    evil = "text/x\r\nEvil: 1"
    with GatewayThread(served.clients, None) as gateway:
        for name in ("Content-Type", "Expires", "x-amz-meta-k"):
            status, _, document = posted(gateway.port, bucket, form({"key": "a", name: evil}))
            assert (status, b"<Code>InvalidArgument</Code>" in document) == (400, True)
        own = {"s3.content-type": evil, "s3.expires": "0", "k": evil}
        own["s3.etag"] = f"x\r\nEvil:1 {crc32c(DATA):08x} {len(DATA)}"
        served.client.bucket(bucket).put("a", DATA, metadata=own)
        for method in ("HEAD", "GET"):
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=180)) as connection:
                connection.request(method, f"/{bucket}/a")
                answer = connection.getresponse()
                assert answer.read() == (DATA if method == "GET" else b"")
            shown = [answer.getheader(name) for name in ("content-type", "expires", "evil", "x-amz-meta-k")]
            assert (answer.status, shown) == (200, ["binary/octet-stream", "0", None, None])
