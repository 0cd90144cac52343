"""Objects: bytes, checksums, ranges, properties, names; and the same objects by S3."""

from __future__ import annotations

import contextlib
import hashlib
import random
import socket
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import quote

import pytest
import xxhash

from ais_loader.integrations.gateway.clients import Clients
from ais_loader.integrations.gateway.server.options import Limits
from tests.gateway.aistore.conftest import BEARER, Ais
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.table import table

SIZES = [0, 1, 5, 300_000, 3 << 20]


def data(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


@table("size", SIZES)
def test_put_get_head_delete(ais: Ais, bucket: str, size: int) -> None:
    stored = ais.put(bucket, "x", data(size))
    assert stored.body == b"" and stored.headers["ais-version"] and int(stored.headers["ais-atime"]) > 1 << 60
    got = ais.get(bucket, "x")
    assert (got.status, got.body == data(size)) == (200, True)
    assert got.headers["content-type"] == "application/octet-stream"
    for name in ("ais-version", "ais-atime", "ais-checksum-type", "ais-checksum-value"):
        assert got.headers[name] == stored.headers[name]
    head = ais.head(bucket, "x", props="name,size")
    assert (head.status, head.headers["content-length"], head.headers["ais-present"]) == (200, str(size), "true")
    assert "ais-version" not in head.headers
    assert ais("DELETE", f"objects/{bucket}/x").status == 200
    for answer in (ais("DELETE", f"objects/{bucket}/x"), ais.get(bucket, "x")):
        assert (answer.status, answer.message()) == (404, f"ais://{bucket}/x doesn't exist")
    assert "x doesn't exist" in ais.head(bucket, "x", props="size").headers["hdr-error"]


def chunks(whole: bytes) -> Iterator[bytes]:
    for at in range(0, len(whole), 70_000):
        yield whole[at : at + 70_000]


def test_a_body_in_chunks(ais: Ais, bucket: str) -> None:
    assert ais("PUT", f"objects/{bucket}/x", chunks(data(300_000)), skip_vc="true").status == 200
    assert ais.get(bucket, "x").body == data(300_000)


@table("kind", ["xxhash", "xxhash2", "md5", "crc32c", "sha256", "sha512"])
@table("size", [0, 300_000])
def test_checksums(ais: Ais, bucket: str, kind: str, size: int) -> None:
    whole = data(size)
    if kind.startswith("xxhash"):
        value = xxhash.xxh64(whole).hexdigest()
    elif kind == "crc32c":
        value = ais.put(bucket, "of-another", whole).headers["ais-checksum-value"]
    else:
        value = hashlib.new(kind, whole).hexdigest()
    headers = {"Ais-Checksum-Type": kind, "Ais-Checksum-Value": value}
    assert ais("PUT", f"objects/{bucket}/x", whole, headers).status == 200
    assert ais.get(bucket, "x").body == whole
    headers["Ais-Checksum-Value"] = ("0" if value[0] != "0" else "1") + value[1:]
    refused = ais("PUT", f"objects/{bucket}/y", whole, headers)
    assert refused.status == 400 and "checksum" in refused.message()
    assert ais.get(bucket, "y").status == 404


def test_checksums_of_no_known_type(ais: Ais, bucket: str) -> None:
    unknown = ais("PUT", f"objects/{bucket}/x", b"1", {"Ais-Checksum-Type": "crc7", "Ais-Checksum-Value": "00"})
    assert unknown.status == 400 and "crc7" in unknown.message()
    assert ais.get(bucket, "x").status == 404
    assert ais("PUT", f"objects/{bucket}/x", b"1", {"Ais-Checksum-Value": "00"}).status == 200


@pytest.mark.parametrize("size", [5, 3 << 20])
def test_ranges(ais: Ais, bucket: str, size: int) -> None:
    whole = data(size)
    version = ais.put(bucket, "x", whole).headers["ais-version"]
    for header, start, stop in (
        ("bytes=0-0", 0, 1),
        ("bytes=1-3", 1, 4),
        ("bytes=2-", 2, size),
        ("bytes=-2", size - 2, size),
        ("bytes=-99999999", 0, size),
        ("bytes=3-99999999", 3, size),
        (f"bytes={size - 1}-", size - 1, size),
    ):
        answer = ais.get(bucket, "x", {"Range": header})
        assert (answer.status, answer.body == whole[start:stop]) == (206, True), header
        assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
        assert answer.headers["content-length"] == str(stop - start)
        assert answer.headers["accept-ranges"] == "bytes" and answer.headers["ais-version"] == version
    wrong = [f"bytes={size}-", "bytes=3-1", "bytes=-0", "bytes=-", "bytes=a-b", "words=0-1", "bytes=0-1,3-4", "0-1"]
    for header in [*wrong, f"bytes={'9' * 30}-"]:
        answer = ais.get(bucket, "x", {"Range": header})
        assert answer.status == 416 and answer.message(), header
        assert answer.headers["content-range"] == f"bytes */{size}"


def test_a_range_of_nothing(ais: Ais, bucket: str) -> None:
    ais.put(bucket, "x", b"")
    assert [ais.get(bucket, "x", {"Range": text}).status for text in ("bytes=0-", "bytes=-1")] == [416, 416]


@table(
    "name",
    ["%", "%25", "%3D", "a+b", "a b", "dir/x y+é#?.txt", "track?name=lofi&v=1", "-x", ".x", "你好", "a\\b", "a/b/c"],
)
def test_names_are_decoded_once(ais: Ais, served: Served, bucket: str, name: str) -> None:
    served.empty(bucket)
    for safe in ("/", "", "/+@!$&'()*,;=:~"):
        assert ais("PUT", f"objects/{bucket}/{quote(name, safe=safe)}", name.encode()).status == 200
        assert list(served.client.bucket(bucket)) == [name]
        assert ais("GET", f"objects/{bucket}/{quote(name, safe=safe)}").body == name.encode()


def test_properties(ais: Ais, bucket: str) -> None:
    stored = ais.put(bucket, "x", b"123").headers
    assert ais("PATCH", f"objects/{bucket}/x", {"action": "", "value": {"a": "1", "b=c": "d=e, f"}}).status == 200
    props = "checksum,atime,version,copies,custom,location,chunked,ec,last-modified,etag"
    head = ais.head(bucket, "x", props=props, presence="2", sln="true")
    assert head.headers["ais-checksum-value"] == stored["ais-checksum-value"]
    assert head.headers["ais-version"] != stored["ais-version"]
    assert (head.headers["ais-mirror-copies"], head.headers["ais-location"]) == ("1", "t[store]")
    assert sorted(value for name, value in head.pairs if name == "ais-custom-md") == ["a=1", "b=c=d=e, f"]
    assert head.headers["etag"].startswith('"') and "GMT" in head.headers["last-modified"]
    assert "ais-chunks-count" not in head.headers
    old = ais.head(bucket, "x").headers
    assert (old["ais-name"], old["ais-bucket-name"], old["ais-bucket-provider"]) == ("x", bucket, "ais")
    for unknown in ("strange", "cached", "status", "size,strange"):
        assert ais.head(bucket, "x", props=unknown).status == 400


def test_custom_metadata(ais: Ais, served: Served, bucket: str) -> None:
    path = f"objects/{bucket}/x"
    ais.put(bucket, "x", b"123")

    def custom() -> dict[str, str]:
        return dict(served.client.bucket(bucket).head("x").metadata)

    assert ais("PATCH", path, {"action": "", "value": {"a": "1", "b": "2"}}).status == 200
    assert ais("PATCH", path, {"action": "", "value": {"b": "3", "c": "é"}}).status == 200
    assert custom() == {"a": "1", "b": "3", "c": "é"}
    assert ais("PATCH", f"{path}?set-new-custom=true", {"action": "", "value": {"d": "4"}}).status == 200
    assert custom() == {"d": "4"}
    for wrong in ({"a": 1}, {"": "x"}, {"s3.etag": "x"}, {"ais.x": "y"}, {"a": "x" * 5000}, [1]):
        answer = ais("PATCH", path, {"action": "", "value": wrong})
        assert answer.status == 400 and answer.message(), wrong
    assert ais("PATCH", f"objects/{bucket}/none", {"action": "", "value": {"a": "b"}}).status == 404
    assert custom() == {"d": "4"} and ais.get(bucket, "x").body == b"123"


def test_objects_of_s3(ais: Ais, served: Served, bucket: str) -> None:
    s3 = served.s3()
    made = s3.put_object(Bucket=bucket, Key="x", Body=b"of S3", Metadata={"speaker": "7"}, ContentType="audio/wav")
    head = ais.head(bucket, "x", props="custom,etag")
    assert head.headers["ais-custom-md"] == "speaker=7" and head.headers["etag"] == made["ETag"]
    ais("PATCH", f"objects/{bucket}/x?set-new-custom=true", {"action": "", "value": {"sex": "f"}})
    again = s3.get_object(Bucket=bucket, Key="x")
    assert (again["Body"].read(), again["Metadata"]) == (b"of S3", {"sex": "f"})
    assert (again["ETag"], again["ContentType"]) == (made["ETag"], "audio/wav")
    ais.put(bucket, "y", b"of AIStore")
    assert s3.get_object(Bucket=bucket, Key="y")["Body"].read() == b"of AIStore"
    s3.put_object(Bucket=bucket, Key="folder/", Body=b"")
    assert ais.get(bucket, "folder/").body == b""
    ais.put(bucket, "folder/", b"1")
    assert s3.get_object(Bucket=bucket, Key="folder/")["Body"].read() == b"1"


def test_the_latest_version_of_a_remote_object(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    remote.mkdir()
    (remote / "x").write_bytes(b"old")
    clients = Clients(str(tmp_path / "store"), [])
    try:
        with GatewayThread(clients, None) as gateway:
            ais = Ais(gateway.port, "")
            clients.of(None).create_bucket("b", remote=remote.as_uri())
            assert ais.get("b", "x").body == b"old"
            (remote / "x").write_bytes(b"newer")
            assert ais.get("b", "x").body == b"old"
            assert ais.get("b", "x", **{"latest-ver": "true"}).body == b"newer"
            assert ais.get("b", "x").body == b"newer"
            (remote / "x").unlink()
            assert ais.get("b", "x").body == b"newer"
            assert ais.get("b", "x", **{"latest-ver": "true"}).status == 404
    finally:
        clients.close()


def test_a_body_that_ends_early(ais: Ais, served: Served, bucket: str) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=180) as sent:
        head = (
            f"PUT /v1/objects/{bucket}/x HTTP/1.1\r\nHost: h\r\nAuthorization: {BEARER}\r\nContent-Length: 100\r\n\r\n"
        )
        sent.sendall(head.encode() + b"half")
        sent.shutdown(socket.SHUT_WR)
        while sent.recv(65536):
            pass
    assert ais.get(bucket, "x").status == 404


def test_headers_alone_are_answered_over_tls(served: Served, bucket: str) -> None:
    """The SDK sends the headers of an upload first if its address has https, and TLS may end before the gateway."""
    head = f"PUT /v1/objects/{bucket}/x?provider=ais HTTP/1.1\r\nHost: h\r\nAuthorization: {BEARER}\r\n"
    head += "X-Forwarded-Proto: https\r\nConnection: close\r\n"
    keys, proxies = {ACCOUNT.access_key: ACCOUNT}, (ip_network("127.0.0.0/8"),)
    with GatewayThread(served.clients, keys, proxies=proxies) as gateway:
        ais = Ais(gateway.port)
        for more in ("Content-Length: 5\r\n", ""):
            with socket.create_connection(("127.0.0.1", gateway.port), timeout=180) as sent:
                sent.sendall(f"{head}{more}\r\n".encode())
                answer = b""
                while b"\r\n\r\n" not in answer:
                    received = sent.recv(65536)
                    assert received, answer
                    answer += received
            assert answer.startswith(b"HTTP/1.1 307 ")
            location = answer.decode().split("ocation: ")[1].split("\r\n")[0]
            assert location.startswith(f"https://h/v1/objects/{bucket}/x?provider=ais&")
            assert ais.get(bucket, "x").status == 404
        https = {"X-Forwarded-Proto": "https"}
        assert ais("PUT", location.removeprefix("https://h/v1/"), b"bytes", https).status == 200
        assert ais.get(bucket, "x", https).body == b"bytes"
        assert ais("PUT", location.removeprefix("https://h/v1/"), b"", https).status == 200
        assert ais.get(bucket, "x").body == b""


def test_only_a_proxy_says_that_a_client_uses_tls(served: Served, bucket: str) -> None:
    keys, https = {ACCOUNT.access_key: ACCOUNT}, {"X-Forwarded-Proto": "https", "Host": "elsewhere.test"}
    others = tuple(map(ip_network, ("127.0.0.2", "10.0.0.0/8", "::/0")))
    with GatewayThread(served.clients, keys, proxies=others) as gateway:
        for port in (served.port, gateway.port):
            assert Ais(port)("PUT", f"objects/{bucket}/x", b"bytes", https).status == 200
            assert Ais(port).get(bucket, "x").body == b"bytes"


def test_a_full_gateway_says_when_to_come_back(tmp_path: Path) -> None:
    limits = Limits(requests=1, wait_s=0.05, idle_s=600.0, still_s=600.0)
    clients = Clients(str(tmp_path / "store"), [])
    try:
        with GatewayThread(clients, None, limits=limits) as gateway, contextlib.ExitStack() as held:
            ais = Ais(gateway.port, "")
            clients.of(None).create_bucket("b").put("x", data(64 << 20))

            def has_slot() -> bool:
                slow = held.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=180))
                slow.sendall(b"GET /v1/objects/b/x HTTP/1.1\r\nHost: localhost\r\n\r\n")
                return slow.recv(100).startswith(b"HTTP/1.1 200")

            assert has_slot()
            answer = ais.get("b", "x")
            assert answer.status == 503 and int(answer.headers["retry-after"]) > 0 and answer.message()
    finally:
        clients.close()
