"""Requests as they are told: ids in every answer, errors of HTTP, the access log, the metrics, and the page."""

from __future__ import annotations

import json
import logging
import re
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import storage_node
from ais_loader.integrations.gateway.server.access_log import shown_path
from ais_loader.integrations.gateway.server.counters import METRICS
from ais_loader.testing import eventually
from scripts.write_reference import metrics_table
from storage_node.metrics.exporter import metrics_served
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.gateway.raw_kit import connected, parsed, received, request
from tests.node.promql_kit import check, exported

ROOT = Path(storage_node.__file__).parent
DASHBOARD = json.loads((ROOT / "dashboards" / "gateway.json").read_text())


@pytest.fixture
def told(served: Served, tmp_path: Path) -> Iterator[tuple[GatewayThread, Path]]:
    """A gateway with an access log."""
    path = tmp_path / "access.log"
    keys = {ACCOUNT.access_key: ACCOUNT}
    with GatewayThread(served.clients, keys, access_log=path, page_token="page-token") as gateway:
        yield gateway, path


def s3_of(gateway: GatewayThread, served: Served) -> Any:
    return Served(gateway, served.clients).s3()


def lines(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the lines of a log, once there are `count` of them."""
    eventually(lambda: path.read_bytes().count(b"\n") >= count)  # a line is there in part before
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert len(found) == count
    return found


def answered(gateway: GatewayThread, data: bytes) -> tuple[int, dict[str, str], bytes]:
    with connected(gateway.port) as sock:
        sock.sendall(data)
        return parsed(received(sock))


BAD = [
    b"\x00\x01\x02\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,  # TLS
    b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"h: v\r\n" * 129 + b"\r\n",
    b"GET /" + b"a" * (16 << 10) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_what_is_no_http_is_refused_as_s3_does(
    told: tuple[GatewayThread, Path], data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    gateway, path = told
    with caplog.at_level(logging.INFO):
        status, headers, body = answered(gateway, data)
    assert status in (400, 403) and headers["server"] == "ais-loader"
    assert headers["content-type"] == "application/xml"
    assert re.search(rb"<RequestId>([0-9A-F]{16})</RequestId>", body)
    assert headers["x-amz-request-id"].encode() in body
    assert not [record for record in caplog.records if record.exc_info]
    (line,) = lines(path, 1)
    assert (line["id"], line["status"]) == (headers["x-amz-request-id"], str(status))
    if status == 400 and b"chunked" not in data:
        assert gateway.gateway.counters.requests == {("malformed", "400"): 1}


def test_every_answer_has_its_id(told: tuple[GatewayThread, Path], served: Served, bucket: str) -> None:
    gateway, path = told
    s3 = s3_of(gateway, served)
    put = s3.put_object(Bucket=bucket, Key="a", Body=b"123")
    ids = [put["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"]]
    ids.append(s3.head_object(Bucket=bucket, Key="a")["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"])
    for call, arguments in (
        (s3.get_object, {"Key": "a", "IfNoneMatch": put["ETag"]}),  # 304
        (s3.head_object, {"Key": "none"}),
        (s3.get_object, {"Key": "none"}),
        (s3.get_object, {"Key": "a", "Range": "bytes=9-"}),
    ):
        with pytest.raises(s3.exceptions.ClientError) as caught:
            call(Bucket=bucket, **arguments)
        ids.append(caught.value.response["ResponseMetadata"]["HTTPHeaders"]["x-amz-request-id"])
    found = lines(path, 6)
    assert [line["id"] for line in found] == ids and len(set(ids)) == 6
    assert [line["status"] for line in found] == ["200", "200", "304", "404", "404", "416"]
    assert [line["call"] for line in found] == ["PutObject", *["HeadObject", "GetObject"] * 2, "GetObject"]


def test_the_log_has_no_secrets(told: tuple[GatewayThread, Path], served: Served, bucket: str) -> None:
    gateway, path = told
    s3 = s3_of(gateway, served)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    s3.put_object(Bucket=bucket, Key="a b", Body=b"12345")
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a b"})
    with urllib.request.urlopen(url, timeout=180) as answer:
        assert answer.read() == b"12345"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(url[:-1] + ("0" if url[-1] != "0" else "1"), timeout=180)
    put, get, refused = lines(path, 3)
    assert (put["method"], put["call"], put["access_key"]) == ("PUT", "PutObject", ACCOUNT.access_key)
    assert put["path"] == f"/{bucket}/a%20b" and put["received_bytes"] >= 5
    assert get["path"].startswith(f"/{bucket}/a%20b?") and get["sent_bytes"] > 5 and get["duration_s"] > 0
    assert (refused["status"], refused["access_key"]) == ("403", "")
    assert get["client"] == "127.0.0.1" and get["time"].endswith("+00:00")
    text = path.read_text()
    assert ACCOUNT.secret_key not in text and not re.search(r"signature=", text, re.IGNORECASE)


def test_paths_as_they_are_shown() -> None:
    assert shown_path("/b/a?X-Amz-Signature=1&x=2&X-Amz-Security-Token=3") == "/b/a?x=2"
    assert shown_path("/b/a?X%2DAmz-Signatur%65=1&%53ignature=4") == "/b/a?"
    assert shown_path("/b?uploads") == "/b?uploads"
    assert shown_path("/b") == "/b" and shown_path("/b?") == "/b?"
    assert shown_path("/\udcff") == "/\\udcff"
    assert len(shown_path("/" + "a" * 100_000)) == 4096


def test_a_log_that_is_moved_away_begins_again(told: tuple[GatewayThread, Path], served: Served) -> None:
    gateway, path = told
    s3 = s3_of(gateway, served)
    s3.list_buckets()
    first = lines(path, 1)
    path.rename(path.with_suffix(".old"))

    def again() -> bool:
        s3.list_buckets()
        return path.exists()

    eventually(again)
    assert lines(path.with_suffix(".old"), len(path.with_suffix(".old").read_text().splitlines()))[0] == first[0]


def scraped(gateway: GatewayThread) -> str:
    with (
        metrics_served("127.0.0.1", 0, METRICS, lambda: {"0": gateway.gateway.counters}) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=180) as answer,
    ):
        return str(answer.read().decode())


def test_requests_are_counted(told: tuple[GatewayThread, Path], served: Served, bucket: str) -> None:
    gateway, path = told
    s3 = s3_of(gateway, served)
    s3.put_object(Bucket=bucket, Key="a", Body=b"x" * 1000)
    for _ in range(3):
        s3.get_object(Bucket=bucket, Key="a")["Body"].read()
    with pytest.raises(s3.exceptions.ClientError):
        s3.get_object(Bucket=bucket, Key="none")
    answered(gateway, b"GET\r\n\r\n")
    with connected(gateway.port) as sock:  # half a body, and then nobody is there
        sock.sendall(request("PUT", f"/{bucket}/b", gateway.port, {"Content-Length": "10"}))
    found = lines(path, 7)
    text = scraped(gateway)
    counted = dict(re.findall(r"ais_loader_gateway_requests_total\{(.*?)\} (\S+)", text))
    assert counted == {
        'call="PutObject",process="0",status="200"': "1.0",
        'call="GetObject",process="0",status="200"': "3.0",
        'call="GetObject",process="0",status="404"': "1.0",
        'call="malformed",process="0",status="400"': "1.0",
        f'call="none",process="0",status="{found[-1]["status"]}"': "1.0",
    }
    numbers = dict(re.findall(r"(ais_loader_gateway_\w+\{.*?\}) (\S+)", text))
    assert numbers['ais_loader_gateway_request_seconds_count{call="GetObject",process="0"}'] == "4.0"
    assert float(numbers['ais_loader_gateway_bytes_total{direction="in",process="0"}']) >= 1000
    assert 3000 < float(numbers['ais_loader_gateway_bytes_total{direction="out",process="0"}']) < 10_000
    assert numbers['ais_loader_gateway_active_requests{process="0"}'] == "0.0"
    assert float(numbers['ais_loader_gateway_connections{process="0"}']) >= 1


def test_an_answer_that_is_cut_is_counted_as_aborted(
    told: tuple[GatewayThread, Path], served: Served, bucket: str
) -> None:
    gateway, path = told
    served.client.bucket(bucket).put("a", bytes(64 << 20))
    url = s3_of(gateway, served).generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "a"})
    with urllib.request.urlopen(url, timeout=180) as answer:
        answer.read(1000)
    (line,) = lines(path, 1)
    assert (line["status"], line["call"]) == ("aborted", "GetObject") and 1000 < line["sent_bytes"] < 64 << 20


def test_the_table_of_metrics_is_the_declared_one() -> None:
    text = (ROOT.parent / "docs" / "gateway.md").read_text()
    assert metrics_table(METRICS, {}) in text


def test_the_dashboard_shows_every_metric(told: tuple[GatewayThread, Path], served: Served, bucket: str) -> None:
    gateway, _ = told
    s3_of(gateway, served).list_buckets()
    metrics = exported(scraped(gateway))
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for expression in expressions:
        check(expression, metrics)
    assert [metric.name for metric in METRICS if metric.name not in " ".join(expressions)] == []


# -- the page


def fetched(gateway: GatewayThread, path: str, **headers: str) -> tuple[int, bytes]:
    status, _, body = answered(gateway, request("GET", path, gateway.port, {"Connection": "close", **headers}))
    return status, body


def test_the_page_is_served_at_its_own_address(told: tuple[GatewayThread, Path], served: Served, bucket: str) -> None:
    gateway, path = told
    status, body = fetched(gateway, "/ui/page-token/")
    assert status == 200 and b"<html" in body.lower()
    status, body = fetched(gateway, "/ui/page-token/api/buckets")
    assert status == 200 and bucket.encode() in body
    assert fetched(gateway, "/ui/other-token/api/buckets")[0] == 404
    found = lines(path, 3)
    assert [line["call"] for line in found] == ["Page"] * 3
    assert "page-token" not in path.read_text()
    other = f"GET /ui/page-token/ HTTP/1.1\r\nHost: evil.example:{gateway.port}\r\nConnection: close\r\n\r\n"
    assert answered(gateway, other.encode())[0] == 421
    with GatewayThread(served.clients, None) as without:
        assert fetched(without, "/ui/page-token/")[0] == 404
