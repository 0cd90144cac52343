"""Requests that no honest client sends, over raw sockets: each is refused, and makes nothing visible."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import socket
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ais_loader import errors
from ais_loader.integrations.gateway.request import S3Error
from ais_loader.integrations.gateway.server.options import Limits
from ais_loader.integrations.gateway.xml import parse
from ais_loader.testing import eventually
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.table import table

STREAMING = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


class Auth(S3SigV4Auth):
    """Signs with the payload's word that the test chooses."""

    word = "UNSIGNED-PAYLOAD"

    def payload(self, request: Any) -> str:
        return self.word


def signed(
    served: Served,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    word: str = "UNSIGNED-PAYLOAD",
    secret: str = ACCOUNT.secret_key,
    key: str = ACCOUNT.access_key,
) -> tuple[dict[str, str], Auth, AWSRequest]:
    """Return the headers of a signed request, and what signs its chunks."""
    auth = Auth(Credentials(key, secret), "s3", "us-east-1")
    auth.word = word
    request = AWSRequest(method=method, url=served.url + path, headers=dict(headers or {}))
    auth.add_auth(request)
    return dict(request.headers.items()), auth, request


def send(served: Served, method: str, path: str, headers: Mapping[str, str], body: Any = b"") -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=180)) as connection:
        connection.request(method, path, body=body, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()


def refused(answer: tuple[int, bytes], code: str) -> None:
    assert f"<Code>{code}</Code>".encode() in answer[1], answer


def raw(served: Served, data: bytes, *, end: bool = False) -> bytes:
    """Send bytes and return the answer until the gateway ends the connection, or has sent a whole answer."""
    with socket.create_connection(("127.0.0.1", served.port), 180) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(data)
            if end:
                sock.shutdown(socket.SHUT_WR)
        found = b""
        with contextlib.suppress(OSError):
            while b"</Error>" not in found and (piece := sock.recv(65536)):
                found += piece
        return found


def status(answer: bytes) -> int:
    """Return the status of an answer. That to what is no request has version 1.0."""
    version, _, rest = answer.partition(b" ")
    assert version in (b"HTTP/1.0", b"HTTP/1.1"), answer[:100]
    return int(rest[:3])


def absent(served: Served, bucket: str) -> None:
    assert list(served.client.bucket(bucket)) == []


# -- signatures


def test_wrong_signatures(served: Served, bucket: str) -> None:
    path = f"/{bucket}/a"
    headers, _, _ = signed(served, "PUT", path, secret="other")
    refused(send(served, "PUT", path, headers, b"1"), "SignatureDoesNotMatch")
    headers, _, _ = signed(served, "PUT", path, key="other")
    refused(send(served, "PUT", path, headers, b"1"), "InvalidAccessKeyId")
    refused(send(served, "PUT", path, {}, b"1"), "AccessDenied")
    for text in ("AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=a", "Basic eDp5", "AWS4-HMAC-SHA256 " + "," * 999):
        bad = {"Authorization": text, "x-amz-date": "20260101T000000Z", "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
        assert send(served, "PUT", path, bad, b"1")[0] in (400, 403)
    absent(served, bucket)


def test_a_replayed_signature_fits_no_other_request(served: Served, bucket: str) -> None:
    headers, _, _ = signed(served, "PUT", f"/{bucket}/a", {"x-amz-meta-k": "v"})
    refused(send(served, "PUT", f"/{bucket}/b", headers, b"1"), "SignatureDoesNotMatch")
    refused(send(served, "DELETE", f"/{bucket}/a", headers), "SignatureDoesNotMatch")
    refused(send(served, "PUT", f"/{bucket}/a?uploads", headers, b"1"), "SignatureDoesNotMatch")
    refused(send(served, "PUT", f"/{bucket}/a", {**headers, "x-amz-meta-k": "w"}, b"1"), "SignatureDoesNotMatch")
    refused(send(served, "PUT", f"/{bucket}/a", {**headers, "x-amz-copy-source": "b/x"}, b"1"), "AccessDenied")
    word = hashlib.sha256(b"1").hexdigest()
    headers, _, _ = signed(served, "PUT", f"/{bucket}/a", word=word)
    refused(send(served, "PUT", f"/{bucket}/a", headers, b"2"), "XAmzContentSHA256Mismatch")
    absent(served, bucket)


def test_old_signatures(served: Served, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datetime

    import botocore.auth

    old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=16)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda **_: old)
    headers, _, _ = signed(served, "PUT", f"/{bucket}/a")
    refused(send(served, "PUT", f"/{bucket}/a", headers, b"1"), "RequestTimeTooSkewed")
    for expires, code in ((600, "AccessDenied"), (999_999_999, "AccessDenied")):
        request = AWSRequest(method="GET", url=f"{served.url}/{bucket}/a")
        credentials = Credentials(ACCOUNT.access_key, ACCOUNT.secret_key)
        S3SigV4QueryAuth(credentials, "s3", "us-east-1", expires=expires).add_auth(request)
        split = urlsplit(request.url)
        refused(send(served, "GET", f"{split.path}?{split.query}", {}), code)
    absent(served, bucket)


# -- bodies


def chunked(auth: Auth, request: AWSRequest, headers: Mapping[str, str], chunks: Iterable[bytes]) -> list[bytes]:
    """Return signed chunks."""
    previous, made = headers["Authorization"].rpartition("=")[2], []
    for chunk in (*chunks, b""):
        text = "\n".join(
            [
                "AWS4-HMAC-SHA256-PAYLOAD",
                request.context["timestamp"],
                auth.credential_scope(request),
                previous,
                hashlib.sha256().hexdigest(),
                hashlib.sha256(chunk).hexdigest(),
            ]
        )
        previous = auth.signature(text, request)
        made.append(f"{len(chunk):x};chunk-signature={previous}\r\n".encode() + chunk + b"\r\n")
    return made


def test_signed_chunks(served: Served, bucket: str) -> None:
    chunks = [b"a" * 65536, b"b" * 65536, b"c" * 100]
    path, given = f"/{bucket}/a", {"x-amz-decoded-content-length": str(sum(map(len, chunks)))}
    headers, auth, request = signed(served, "PUT", path, given, word=STREAMING)
    made = chunked(auth, request, headers, chunks)
    swapped = [made[1], made[0], *made[2:]]
    changed = [made[0][:-3] + b"x\r\n", *made[1:]]
    late = [*made[:2], made[2][:-3] + b"x\r\n", made[3]]
    for wrong in (swapped, changed, late):
        refused(send(served, "PUT", path, headers, b"".join(wrong)), "SignatureDoesNotMatch")
    refused(send(served, "PUT", path, headers, b"".join([made[0], *made[2:]])), "SignatureDoesNotMatch")
    refused(send(served, "PUT", path, headers, b"".join(made[:-1])), "IncompleteBody")
    refused(send(served, "PUT", path, headers, b"".join([*made, made[0]])), "InvalidRequest")
    absent(served, bucket)
    assert send(served, "PUT", path, headers, b"".join(made))[0] == 200
    assert served.client.bucket(bucket).get("a") == b"".join(chunks)


@table(
    ("body", "code"),
    [
        (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n", ""),
        (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n", "BadDigest"),
        (b"5\r\nhello\r\n0\r\n\r\n", "MalformedTrailerError"),
        (b"5\r\nhello\r\n0\r\nx-amz-checksum-sha1:NhCmhg==\r\n\r\n", "MalformedTrailerError"),
        (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32\r\n\r\n", "MalformedTrailerError"),
        (b"5\r\nhello\r\n0\r\n" + 2 * b"x-amz-checksum-crc32:NhCmhg==\r\n" + b"\r\n", "MalformedTrailerError"),
        (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg\r\n\r\n", "InvalidRequest"),
        (b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:\r\n\r\n", "InvalidRequest"),
        (b"4\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n", "InvalidRequest"),
        (b"4\r\nhell\r\n0\r\nx-amz-checksum-crc32:2JFpvA==\r\n\r\n", None),
        (b"5\r\nhel", "IncompleteBody"),
        (b"ffffffffffffffff\r\nhello", "IncompleteBody"),
        (b"-5\r\nhello", "InvalidRequest"),
        (b"5;chunk-signature=" + b"0" * 64 + b"\r\nhello\r\n0\r\n\r\n", "InvalidRequest"),
        (b"0" * 5000, "InvalidRequest"),
        (b"0\r\n" + b"x:y\r\n" * 5000, "MalformedTrailerError"),
    ],
)
def test_trailers(served: Served, bucket: str, body: bytes, code: str | None) -> None:
    served.empty(bucket)
    given = {"x-amz-decoded-content-length": "5", "x-amz-trailer": "x-amz-checksum-crc32"}
    path = f"/{bucket}/a"
    headers, _, _ = signed(served, "PUT", path, given, word=UNSIGNED_TRAILER)
    answer = send(served, "PUT", path, headers, body)
    if code == "":
        assert answer[0] == 200 and served.client.bucket(bucket).get("a") == b"hello"
        return
    assert answer[0] == 400
    if code is not None:
        refused(answer, code)
    absent(served, bucket)


@table("algorithm", ["crc32", "crc32c", "crc64nvme", "sha1", "sha256"])
def test_every_algorithm(served: Served, bucket: str, algorithm: str) -> None:
    from awscrt import checksums

    body = b"123456789" * 1000
    digests = {
        "crc32": zlib.crc32(body).to_bytes(4, "big"),
        "crc32c": checksums.crc32c(body).to_bytes(4, "big"),
        "crc64nvme": checksums.crc64nvme(body).to_bytes(8, "big"),
        "sha1": hashlib.sha1(body).digest(),
        "sha256": hashlib.sha256(body).digest(),
    }
    name, path = f"x-amz-checksum-{algorithm}", f"/{bucket}/{algorithm}"
    right = base64.b64encode(digests[algorithm]).decode()
    wrong = base64.b64encode(bytes([digests[algorithm][0] ^ 1]) + digests[algorithm][1:]).decode()
    for value, status in ((wrong, 400), ("%", 400), (right, 200)):
        headers, _, _ = signed(served, "PUT", path, {name: value})
        assert send(served, "PUT", path, headers, body)[0] == status
        assert served.client.bucket(bucket).exists(algorithm) == (status == 200)
    headers, _, _ = signed(served, "GET", path, {"x-amz-checksum-mode": "ENABLED"})
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=180)) as connection:
        connection.request("GET", path, headers=headers)
        assert connection.getresponse().headers[name] == right


def test_false_lengths(served: Served, bucket: str) -> None:
    path = f"/{bucket}/a"
    for length in ("-1", "1e3", "5, 6", "99999999999999999999"):
        headers, _, _ = signed(served, "PUT", path)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        host = f"Host: 127.0.0.1:{served.port}\r\n"
        text = f"PUT {path} HTTP/1.1\r\n{host}{lines}Content-Length: {length}\r\n\r\nhello"
        assert status(raw(served, text.encode())) == 400, length
    headers, _, _ = signed(served, "PUT", path)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    start = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n{lines}"
    for extra in ("Content-Length: 10\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"):
        answer = raw(served, (start + extra).encode(), end=True)
        assert b" 200 " not in answer.partition(b"\r\n")[0], answer
    both = start + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    assert b" 200 " not in raw(served, both.encode()).partition(b"\r\n")[0]
    refused((0, raw(served, (start + "\r\n").encode())), "MissingContentLength")
    absent(served, bucket)


def test_clients_that_disconnect(served: Served, bucket: str) -> None:
    """Uploads that are cut anywhere leave nothing, and downloads that are cut harm no others."""
    whole = b"x" * (4 << 20)
    served.client.bucket(bucket).put("there", whole)
    headers, _, _ = signed(served, "PUT", f"/{bucket}/a", {"Content-Length": str(len(whole))})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    start = f"PUT /{bucket}/a HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n{lines}\r\n".encode()
    for sent in (0, 1, 70_000, 1 << 20, len(whole) - 1):
        with socket.create_connection(("127.0.0.1", served.port), 30) as sock:
            sock.sendall(start + whole[:sent])
    headers, _, _ = signed(served, "GET", f"/{bucket}/there")
    for _ in range(5):
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=180)
        connection.request("GET", f"/{bucket}/there", headers=headers)
        assert len(connection.getresponse().read(1000)) == 1000
        connection.close()
    assert send(served, "GET", f"/{bucket}/there", headers) == (200, whole)
    assert list(served.client.bucket(bucket)) == ["there"]


# -- headers, names, documents


def test_too_many_headers_and_too_long_ones(served: Served, bucket: str) -> None:
    start = f"GET /{bucket}/a HTTP/1.1\r\nHost: x\r\n"
    for extra in ("".join(f"h{n}: v\r\n" for n in range(10_000)), f"h: {'v' * 100_000}\r\n"):
        answer = raw(served, f"{start}{extra}\r\n".encode())
        assert not answer or status(answer) in (400, 431)
    for line in (f"GET /{'a' * 100_000} HTTP/1.1", "GET", "\x00\x01\x02", "GET / HTTP/9.9", "GET a HTTP/1.1"):
        answer = raw(served, f"{line}\r\nHost: x\r\n\r\n".encode(), end=True)
        assert not answer or 400 <= status(answer) < 500, line[:20]


@table("key", ["%ff", "%00", "%", "a%2", "%C3%28", "%ED%A0%80", "a%0Ab", "%2e%2e", "..%2Fa"])
def test_odd_bytes_in_names(served: Served, bucket: str, key: str) -> None:
    served.empty(bucket)
    path = f"/{bucket}/{key}"
    headers, _, _ = signed(served, "PUT", path)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    start = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\nConnection: close\r\n{lines}"
    found = status(raw(served, f"{start}Content-Length: 1\r\n\r\n1".encode()))
    if key == "a%0Ab":
        assert found == 200 and list(served.client.bucket(bucket)) == ["a\nb"]
    else:
        assert found in (400, 403)
        absent(served, bucket)


BOMB = (
    b'<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><Delete><Object><Key>&b;</Key></Object></Delete>'
)


@table(
    "document",
    [
        BOMB,
        b'<!DOCTYPE d SYSTEM "file:///etc/passwd"><Delete/>',
        b"<Delete>" + b"<Object>" * 50_000,
        b"<Delete>" + b"<a/>" * 200_000 + b"</Delete>",
        b"<Delete><Object><Key>a</Key></Object>",
        b"<Other/>",
        b"",
        b"\xff\xfe",
        b"<Delete><Object/></Delete>",
        b"<Delete></Delete>",
    ],
)
def test_documents(served: Served, bucket: str, document: bytes) -> None:
    served.client.bucket(bucket).put("a", b"")
    path = f"/{bucket}?delete"
    headers, _, _ = signed(served, "POST", path, word=hashlib.sha256(document).hexdigest())
    answer = send(served, "POST", path, headers, document)
    refused(answer, "MalformedXML")
    assert served.client.bucket(bucket).exists("a")
    with pytest.raises(S3Error):
        parse(BOMB, "Delete")


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(served: Served, bucket: str) -> None:
    path = f"/{bucket}?delete"
    headers, _, _ = signed(served, "POST", path, {"Content-Length": str(1 << 40)})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    text = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n{lines}Expect: 100-continue\r\n\r\n"
    answer = raw(served, text.encode())
    assert answer.startswith(b"HTTP/1.1 400")
    refused((0, answer), "EntityTooLarge")


@pytest.mark.slow
def test_slow_clients_are_disconnected(served: Served, bucket: str) -> None:
    served.client.bucket(bucket).put("there", bytes(64 << 20))
    put, _, _ = signed(served, "PUT", f"/{bucket}/a", {"Content-Length": "10"})
    get, _, _ = signed(served, "GET", f"/{bucket}/there")

    def start(method: str, name: str, headers: Mapping[str, str]) -> bytes:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{method} /{bucket}/{name} HTTP/1.1\r\nHost: 127.0.0.1:{served.port}\r\n{lines}\r\n".encode()

    with GatewayThread(served.clients, {ACCOUNT.access_key: ACCOUNT}, limits=Limits(idle_s=0.3)) as gateway:
        for sent, code in ((b"", 0), (b"GET / HT", 0), (b"GET / HTTP/1.1\r\nHost: x\r\n", 0),
                           (start("PUT", "a", put) + b"12345", 400)):  # fmt: skip

            def is_told(sent: bytes = sent, code: int = code) -> bool:
                """A client that stands still before it sends anything is disconnected without a word."""
                found = b""
                sock = socket.create_connection(("127.0.0.1", gateway.port), 180)
                with sock, contextlib.suppress(ConnectionError):
                    sock.sendall(sent)
                    while piece := sock.recv(65536):
                        found += piece
                return (status(found) if found else 0) == code

            eventually(is_told)
        with socket.create_connection(("127.0.0.1", gateway.port), 30) as sock:
            sock.sendall(start("GET", "there", get))
            time.sleep(1.5)  # a client that takes nothing; there is no condition to wait for
            size_bytes = 0
            with contextlib.suppress(ConnectionError):
                while piece := sock.recv(1 << 20):
                    size_bytes += len(piece)
            assert size_bytes < 64 << 20
    assert list(served.client.bucket(bucket)) == ["there"]


def test_metadata_that_may_not_be(served: Served, bucket: str) -> None:
    path = f"/{bucket}/a"
    for given in ({"x-amz-meta-s3.etag": "x"}, {"x-amz-meta-ais.job": "x"}, {"x-amz-meta-k": "v" * 5000}):
        headers, _, _ = signed(served, "PUT", path, given)
        assert send(served, "PUT", path, headers, b"1")[0] == 400
    headers, _, _ = signed(served, "PUT", path, {"x-amz-server-side-encryption": "AES256"})
    refused(send(served, "PUT", path, headers, b"1"), "NotImplemented")
    absent(served, bucket)


# -- bundles


def bundled(served: Served, bucket: str, entries: Any) -> tuple[int, bytes]:
    path = f"/{bucket}?bundle"
    body = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    headers, _, _ = signed(served, "POST", path, word=hashlib.sha256(body).hexdigest())
    return send(served, "POST", path, headers, body)


@table(
    "entries",
    [b"", b"{", b"[" * 100_000, {}, [], [1], [{}], [{"key": 1}], [{"key": "a", "x": 1}], ["a//b"], ["/.parts/x"],
     [{"key": "a", "start": -1}], [{"key": "a", "length": 1.5}], [{"key": "a", "start": True}],
     [{"key": "a", "member": ""}], ["a"] * 10_001],
)  # fmt: skip
def test_bundles_that_are_not_valid(served: Served, bucket: str, entries: Any) -> None:
    refused(bundled(served, bucket, entries), "InvalidArgument")


def test_a_bundle_of_a_bucket_that_does_not_exist(served: Served) -> None:
    refused(bundled(served, "none", ["a"]), "NoSuchBucket")
    with pytest.raises(errors.BucketNotFound):
        served.client.bucket("none").info()
