"""Requests that are valid, and that no client of S3 sends: odd hosts, codings, pieces, and pages of websites."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import HmacV1QueryAuth
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from ais_loader import errors
from ais_loader.integrations.gateway.bodies import Body
from ais_loader.integrations.gateway.request import S3Error, of_store
from ais_loader.integrations.gateway.signature import Signed
from ais_loader.integrations.gateway.spool import BodyMemory, BodySpool
from ais_loader.integrations.gateway.websites import refuse_websites
from ais_loader.wire.checksum import crc32c
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.raw_kit import connected, parsed, received
from tests.gateway.test_hostile import refused, send
from tests.table import table

DOMAIN = "s3.local"


@pytest.fixture
def open_gateway(served: Served) -> Iterator[GatewayThread]:
    """A gateway without keys, with a domain."""
    with GatewayThread(served.clients, None, domains=(DOMAIN,)) as gateway:
        yield gateway


def asked(gateway: GatewayThread, line: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    """Send a request, and return status and body of the last answer."""
    sent = {"Host": f"127.0.0.1:{gateway.port}", "Connection": "close", **headers}
    if body and "Transfer-Encoding" not in sent:
        sent["Content-Length"] = str(len(body))
    text = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    with connected(gateway.port) as sock:
        sock.sendall(f"{line} HTTP/1.1\r\n{text}\r\n".encode() + body)
        status, _, found = parsed(received(sock))
        return status, found


# -- hosts and websites


def test_keys_below_a_bucket_as_host_are_not_aistores(served: Served, bucket: str, open_gateway: GatewayThread) -> None:
    host = f"{bucket}.{DOMAIN}:{open_gateway.port}"
    assert asked(open_gateway, "PUT /v1/objects/x", b"1", Host=host)[0] == 200
    assert list(served.client.bucket(bucket)) == ["v1/objects/x"]
    assert asked(open_gateway, "GET /v1/objects/x", Host=host) == (200, b"1")
    assert b"<Code>NoSuchKey</Code>" in asked(open_gateway, "GET /v1/none", Host=host)[1]
    status, body = asked(open_gateway, "GET /v1/none", Host=DOMAIN)
    assert (status, json.loads(body)["status"]) == (400, 400)


def test_pages_of_websites_reach_nothing_without_keys(served: Served, bucket: str, open_gateway: GatewayThread) -> None:
    served.client.bucket(bucket).put("a", b"1")
    delete = b"<Delete><Object><Key>a</Key></Object></Delete>"
    for line, body in (
        (f"POST /{bucket}?delete", delete),
        (f"POST /v1/buckets/{bucket}", b'{"action": "copy-bck"}'),
        (f"PUT /{bucket}/b", b"2"),
        (f"GET /{bucket}/a", b""),
    ):
        status, answer = asked(open_gateway, line, body, Origin="http://website.example")
        assert (status, b"Origin" in answer) == (403, True)
        status, answer = asked(open_gateway, line, body, Host=f"website.example:{open_gateway.port}")
        assert (status, b"website.example" in answer) == (403, True)
    assert list(served.client.bucket(bucket)) == ["a"]
    for host in ("localhost", "LOCALHOST:1", "x.localhost", "127.0.0.1:80", "[::1]:80", "10.0.0.1", DOMAIN):
        assert asked(open_gateway, f"GET /{bucket}/a", Host=host) == (200, b"1")
    refuse_websites({"host": "any.example"}, (), is_loopback=False)


# -- bodies


def test_a_coding_that_is_not_decoded_is_refused(served: Served, bucket: str, open_gateway: GatewayThread) -> None:
    chunked = b"5\r\nhello\r\n0\r\n\r\n"
    status, body = asked(open_gateway, f"PUT /{bucket}/a", chunked, **{"Transfer-Encoding": "gzip, chunked"})
    assert (status, b"<Code>NotImplemented</Code>" in body) == (501, True)
    assert list(served.client.bucket(bucket)) == []
    headers = {"Transfer-Encoding": "Chunked"}
    assert asked(open_gateway, f"PUT /{bucket}/a", chunked, **headers)[0] == 200
    assert served.client.bucket(bucket).get("a") == b"hello"


def test_small_chunks_take_no_longer_for_their_bytes() -> None:
    """Of one of S3's chunks after another, what follows was copied each time: 0.5 s for 256 KiB, 8 s for 1 MiB."""
    count = 200_000
    memory = BodyMemory(1 << 20)
    signed = Signed(None, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    headers = {"x-amz-decoded-content-length": str(count)}
    body = Body(headers, signed, folder=None, most_bytes=1 << 20, memory=memory)
    began_s = time.process_time()
    body.feed([b"1\r\na\r\n" * count + b"0\r\n\r\n"])
    body.finish()
    assert time.process_time() - began_s < 4
    assert body.md5 == hashlib.md5(b"a" * count, usedforsecurity=False).hexdigest()
    body.close()


def test_chunks_that_arrive_in_pieces_of_any_size() -> None:
    data = os.urandom(3000)
    whole = b"".join(b"%x\r\n%s\r\n" % (len(one), one) for one in (data[:1], data[1:1000], data[1000:])) + b"0\r\n\r\n"
    signed = Signed(None, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    for size in (1, 2, 3, 7, 1000, len(whole)):
        body = Body(
            {"x-amz-decoded-content-length": "3000"},
            signed,
            folder=None,
            most_bytes=1 << 20,
            memory=BodyMemory(1 << 20),
        )
        for at in range(0, len(whole), size):
            body.feed([whole[at : at + size]])
        body.finish()
        assert body.read() == data
        body.close()


def test_more_than_was_announced_is_refused_when_it_arrives() -> None:
    signed = Signed(None, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    headers = {"x-amz-decoded-content-length": "5"}
    body = Body(headers, signed, folder=None, most_bytes=1 << 40, memory=BodyMemory(1 << 20))
    with pytest.raises(S3Error, match="more arrived"):
        body.feed([b"ffffffff\r\nhello!"])
    body.close()


def test_pieces_of_two_bytes_are_kept_together() -> None:
    spool = BodySpool(folder=None, most_bytes=1 << 30, memory=BodyMemory(1 << 20))
    pieces = [bytes((at & 255, at >> 8)) for at in range(50_000)]
    for piece in pieces:
        spool.write(piece)
    assert spool._pieces is not None and len(spool._pieces) <= 100_000 // 1024 + 1
    assert spool.read() == b"".join(pieces) and spool.crc32c == crc32c(b"".join(pieces))
    spool.close()


def test_a_body_that_cannot_be_kept_is_told_as_such(
    served: Served, bucket: str, open_gateway: GatewayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full folder of temporary files is no fault of the client, who may try again."""

    def full(fd: int, pieces: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    data = bytes(3 << 20)  # too large for memory
    status, body = asked(open_gateway, f"PUT /{bucket}/a", data)
    assert (status, b"cannot write temporary files" in body) == (503, True)
    assert asked(open_gateway, f"PUT /v1/objects/{bucket}/a", data)[0] == 503
    assert list(served.client.bucket(bucket)) == []
    assert of_store(errors.QuotaExceeded("x")).status == 403


@table("value", ["a%00b", "%0b", "%7f", "a%0d%0aX:y"])
def test_headers_that_a_client_asks_for_have_no_control_characters(
    served: Served, bucket: str, open_gateway: GatewayThread, value: str
) -> None:
    served.client.bucket(bucket).put("a", b"1")
    status, body = asked(open_gateway, f"GET /{bucket}/a?response-content-type={value}")
    assert (status, b"<Code>InvalidArgument</Code>" in body) == (400, True)


# -- signatures


def test_parameters_of_version_2_are_signed_however_they_are_written(served: Served, bucket: str) -> None:
    """An address that was presigned for a PUT must not become that of a part of an upload."""

    expires = str(int(time.time()) + 600)

    class Auth(HmacV1QueryAuth):  # type: ignore[misc]
        def _get_date(self) -> str:
            return expires

    def presigned(method: str, path: str) -> str:
        signed = Auth(Credentials(ACCOUNT.access_key, ACCOUNT.secret_key)).get_signature(
            method, urlsplit(f"{served.url}{path}"), HTTPHeaders()
        )
        more = f"AWSAccessKeyId={ACCOUNT.access_key}&Expires={expires}&Signature={quote(signed, safe='')}"
        return f"{path}{'&' if '?' in path else '?'}{more}"

    plain = presigned("PUT", f"/{bucket}/a")
    assert send(served, "PUT", plain, {}, b"1")[0] == 200
    for more in ("uploadId=x&partNumber=1", "upload%49d=x&partNumber=1", "%75ploadId=x&partNumber=1", "%74agging"):
        refused(send(served, "PUT", f"{plain}&{more}", {}, b"2"), "SignatureDoesNotMatch")
    assert served.client.bucket(bucket).get("a") == b"1"
    part = presigned("POST", f"/{bucket}/b?uploads")
    assert send(served, "POST", part, {})[0] == 200


@table("line", ["POST /{}?bundle", "GET /v1/ml/moss/{}"])
def test_an_answer_of_unknown_length_needs_http_1_1(
    served: Served, bucket: str, open_gateway: GatewayThread, line: str
) -> None:
    served.client.bucket(bucket).put("a", b"1")
    body = b'["a"]' if "bundle" in line else b'{"in": [{"objname": "a"}], "strm": true}'
    with connected(open_gateway.port) as sock:
        head = f"{line.format(bucket)} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        status, _, document = parsed(received(sock))
    assert (status, b"need HTTP/1.1" in document) == (505, True)
    with connected(open_gateway.port) as sock:
        sock.sendall(f"GET /{bucket}/a HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert parsed(received(sock))[::2] == (200, b"1")
