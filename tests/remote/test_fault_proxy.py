"""The kit of these tests: what the proxy passes on, counts and breaks, as a plain HTTP client and obstore see it."""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import obstore
import obstore.exceptions
import pytest
from obstore.store import S3Store

from ais_loader.testing import eventually
from tests.remote.conftest import RemoteBucket
from tests.remote.fault_proxy import Fault, FaultProxy
from tests.remote.s3_server import S3Server

MIB = 1 << 20
DATA = bytes(range(256)) * 4096
TIMEOUT_S = 180.0


@pytest.fixture
def http_client(proxy: FaultProxy) -> Iterator[http.client.HTTPConnection]:
    """One connection, which is kept alive."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT_S)) as connection:
        yield connection


@pytest.fixture
def store(remote_bucket: RemoteBucket) -> S3Store:
    return S3Store(
        remote_bucket.name,
        endpoint=remote_bucket.endpoint,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def path(bucket: RemoteBucket, key: str) -> str:
    return "/" + bucket.path(key)


def signed(headers: Mapping[str, str] | None = None) -> dict[str, str]:
    authorization = "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    return {"Authorization": authorization, **(headers or {})}


def call(
    connection: http.client.HTTPConnection,
    method: str,
    target: str,
    body: object = None,
    headers: Mapping[str, str] | None = None,
    *,
    encode_chunked: bool = False,
) -> tuple[http.client.HTTPResponse, bytes]:
    connection.request(method, target, body, signed(headers), encode_chunked=encode_chunked)  # type: ignore[arg-type]
    answer = connection.getresponse()
    return answer, answer.read()


def get(proxy: FaultProxy, target: str) -> tuple[int, bytes]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT_S)) as connection:
        answer, data = call(connection, "GET", target)
        return answer.status, data


# -- the server


def test_the_server_keeps_bytes_metadata_and_keys(s3: S3Server) -> None:
    bucket, other = s3.bucket(), s3.bucket()
    first = s3.put(bucket, "a b/ü+1%.bin", b"one", metadata={"voice": "low"})
    assert s3.put(bucket, "a b/ü+1%.bin", b"two", metadata={"voice": "high"}) != first
    assert s3.get(bucket, "a b/ü+1%.bin") == b"two"
    assert s3.head(bucket, "a b/ü+1%.bin")["x-amz-meta-voice"] == "high"
    assert (s3.keys(bucket), s3.keys(other)) == (["a b/ü+1%.bin"], [])
    s3.delete(bucket, "a b/ü+1%.bin")
    for gone in (s3.get, s3.head, s3.delete):
        with pytest.raises(KeyError):
            gone(bucket, "a b/ü+1%.bin")


@pytest.mark.slow
def test_the_server_lists_more_than_a_page(s3: S3Server) -> None:
    bucket, names = s3.bucket(), [f"{at:04d}" for at in range(1005)]
    for name in names:
        s3.put(bucket, name, b"")
    assert s3.keys(bucket) == names


# -- what passes


def test_requests_pass_on_one_connection_and_are_counted(
    proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    target = path(remote_bucket, "a")
    assert call(http_client, "PUT", target, DATA)[0].status == 200
    answer, nothing = call(http_client, "HEAD", target)
    assert (answer.status, answer.getheader("Content-Length"), nothing) == (200, str(len(DATA)), b"")
    assert call(http_client, "GET", target)[1] == DATA
    answer, part = call(http_client, "GET", target, headers={"Range": "bytes=100-199"})
    assert (answer.status, part) == (206, DATA[100:200])
    assert call(http_client, "GET", path(remote_bucket, "missing"))[0].status == 404
    assert call(http_client, "DELETE", target)[0].status == 204
    assert proxy.connections_made == 1
    seen = [(request.method, request.path, request.range, request.status) for request in proxy.requests]
    assert seen == [
        ("PUT", target, None, 200),
        ("HEAD", target, None, 200),
        ("GET", target, None, 200),
        ("GET", target, "bytes=100-199", 206),
        ("GET", path(remote_bucket, "missing"), None, 404),
        ("DELETE", target, None, 204),
    ]
    assert [request.received_bytes for request in proxy.requests][:2] == [len(DATA), 0]
    assert [request.sent_bytes for request in proxy.requests][1:4] == [0, len(DATA), 100]
    assert (proxy.count("GET", "a"), proxy.count("GET"), proxy.count(key="a"), proxy.count()) == (2, 3, 5, 6)
    proxy.forget()
    assert proxy.count() == 0


def test_chunked_bodies_and_expectations_pass(
    remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    chunks = iter([DATA, b"x", DATA])
    headers = {"Transfer-Encoding": "chunked", "Expect": "100-continue"}
    answer, _ = call(http_client, "PUT", path(remote_bucket, "a"), chunks, headers, encode_chunked=True)
    assert answer.status == 200
    assert remote_bucket.get("a") == DATA + b"x" + DATA
    assert call(http_client, "GET", path(remote_bucket, "a"))[1] == DATA + b"x" + DATA


@pytest.mark.slow
def test_obstore_works_through_the_proxy(proxy: FaultProxy, remote_bucket: RemoteBucket, store: S3Store) -> None:
    large = DATA * 12
    obstore.put(store, "d/large", large, chunk_size=5 * MIB)  # in parts
    obstore.put(store, "d/a b ü", b"small")
    assert remote_bucket.get("d/large") == large
    assert bytes(obstore.get(store, "d/large").bytes()) == large
    assert bytes(obstore.get_range(store, "d/large", start=10, end=20)) == large[10:20]
    assert obstore.head(store, "d/a b ü")["size"] == 5
    assert [found["path"] for page in obstore.list(store) for found in page] == ["d/a b ü", "d/large"]
    obstore.delete(store, "d/large")
    assert remote_bucket.keys() == ["d/a b ü"]
    assert proxy.count("PUT", "d/large") == 3
    assert proxy.count("HEAD", "d/a b ü") == 1


@pytest.mark.slow
def test_64_requests_run_at_once(proxy: FaultProxy, remote_bucket: RemoteBucket) -> None:
    for at in range(64):
        remote_bucket.put(f"{at}", b"%d" % at)
    with ThreadPoolExecutor(64) as threads, proxy.held("GET", "*") as held:
        answers = [threads.submit(get, proxy, path(remote_bucket, f"{at}")) for at in range(64)]
        held.wait_for(64)
        held.release()
        assert [answer.result() for answer in answers] == [(200, b"%d" % at) for at in range(64)]
    assert proxy.most_in_flight == 64
    eventually(lambda: proxy.in_flight == 0)


@pytest.mark.slow
def test_the_bandwidth_is_shared_and_each_request_has_the_latency(
    proxy: FaultProxy, remote_bucket: RemoteBucket
) -> None:
    remote_bucket.put("a", DATA)
    proxy.latency_s, proxy.bytes_per_s = 0.2, 4.0 * MIB
    began_s = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: get(proxy, path(remote_bucket, "a")), range(4)))
    assert answers == [(200, DATA)] * 4
    assert time.monotonic() - began_s >= 0.2 + 4 * len(DATA) / (4.0 * MIB) - 0.1


# -- errors that the proxy answers


@pytest.mark.parametrize(
    ("status", "code"), [(403, "AccessDenied"), (429, "TooManyRequests"), (500, "InternalError"), (503, "SlowDown")]
)
def test_an_error_is_answered_some_times_and_then_no_more(
    status: int, code: str, proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", b"a")
    proxy.on("GET", "a", Fault(status=status, message="later <b>", headers={"Retry-After": "1"}), skip=1, times=2)
    answers = [call(http_client, "GET", path(remote_bucket, "a")) for _ in range(4)]
    assert [answer.status for answer, _ in answers] == [200, status, status, 200]
    assert answers[1][0].getheader("Retry-After") == "1"
    assert f"<Code>{code}</Code><Message>later &lt;b&gt;</Message>".encode() in answers[1][1]
    assert proxy.connections_made == 1
    assert call(http_client, "HEAD", path(remote_bucket, "a"))[0].status == 200


def test_an_error_is_answered_to_a_put_and_to_a_head(
    proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    with proxy.on("*", "*", Fault(status=503)) as rule:
        assert call(http_client, "PUT", path(remote_bucket, "a"), DATA)[0].status == 503
        assert call(http_client, "HEAD", path(remote_bucket, "a"))[0].status == 503
        assert rule.matched == 2
    assert call(http_client, "PUT", path(remote_bucket, "b"), DATA)[0].status == 200
    assert (remote_bucket.keys(), proxy.connections_made) == (["b"], 1)


def test_a_rule_for_a_time_ends(
    proxy: FaultProxy, remote_bucket: RemoteBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote_bucket.put("a", b"a")
    now_s = time.monotonic()
    monkeypatch.setattr("tests.remote.fault_proxy.time", SimpleNamespace(monotonic=lambda: now_s))
    proxy.on("GET", "a", Fault(status=503), for_s=3600.0).remove()
    proxy.on("GET", "a", Fault(status=503), for_s=0.3)
    assert get(proxy, path(remote_bucket, "a"))[0] == 503
    now_s += 0.31
    assert get(proxy, path(remote_bucket, "a")) == (200, b"a")


def test_rules_follow_each_other(proxy: FaultProxy, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", b"a")
    proxy.on("GET", "a", Fault(status=503), times=2)
    proxy.on("GET", "a", Fault(status=403), times=1)
    assert [get(proxy, path(remote_bucket, "a"))[0] for _ in range(4)] == [503, 503, 403, 200]


def test_obstore_sees_the_message_of_an_error(proxy: FaultProxy, remote_bucket: RemoteBucket, store: S3Store) -> None:
    remote_bucket.put("a", b"a")
    proxy.on("GET", "a", Fault(status=403, message="not yours"), times=1)
    with pytest.raises(obstore.exceptions.PermissionDeniedError, match="not yours"):
        obstore.get(store, "a")
    assert bytes(obstore.get(store, "a").bytes()) == b"a"


# -- broken answers


@pytest.mark.parametrize("after", [0, 100, 300_000])
def test_a_connection_ends_within_a_body(
    after: int, proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", DATA)
    proxy.on("GET", "a", Fault(cut_after=after), times=1)
    with pytest.raises(http.client.IncompleteRead) as cut:
        call(http_client, "GET", path(remote_bucket, "a"))
    assert (cut.value.partial, proxy.requests[0].sent_bytes) == (DATA[:after], after)
    assert get(proxy, path(remote_bucket, "a")) == (200, DATA)


@pytest.mark.parametrize("after", [0, 100, 300_000])
def test_a_connection_is_reset_within_a_body(
    after: int, proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", DATA)
    proxy.on("GET", "a", Fault(cut_after=after, is_reset=True), times=1)
    http_client.request("GET", path(remote_bucket, "a"), headers=signed())
    answer, got = http_client.getresponse(), bytearray()
    with pytest.raises(ConnectionResetError):
        while True:
            got += answer.read1(65536)
    assert (bytes(got), proxy.requests[0].sent_bytes) == (DATA[:after], after)
    assert get(proxy, path(remote_bucket, "a")) == (200, DATA)


def test_a_length_beyond_the_body(
    proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", DATA)
    proxy.on("GET", "a", Fault(length_delta=5), times=1)
    with pytest.raises(http.client.IncompleteRead) as cut:
        call(http_client, "GET", path(remote_bucket, "a"))
    assert cut.value.partial == DATA


@pytest.mark.parametrize("fault", [Fault(length_delta=-5), Fault(headers={"Content-Length": str(len(DATA) - 5)})])
def test_a_length_within_the_body(fault: Fault, proxy: FaultProxy, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", DATA)
    proxy.on("*", "a", fault)
    assert get(proxy, path(remote_bucket, "a")) == (200, DATA[:-5])


def test_more_bytes_than_the_length(proxy: FaultProxy, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", DATA)
    proxy.on("GET", "a", Fault(extra=b"and more"))
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT_S)) as connection:
        connection.request("GET", path(remote_bucket, "a"), headers=signed())
        answer = connection.getresponse()
        assert answer.fp is not None
        assert answer.fp.read() == DATA + b"and more"
        assert answer.getheader("Content-Length") == str(len(DATA))


def test_a_head_with_a_wrong_length(
    proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", DATA)
    proxy.on("HEAD", "a", Fault(length_delta=1))
    assert call(http_client, "HEAD", path(remote_bucket, "a"))[0].getheader("Content-Length") == str(len(DATA) + 1)
    assert call(http_client, "GET", path(remote_bucket, "a"))[1] == DATA


def test_an_etag_is_replaced(proxy: FaultProxy, remote_bucket: RemoteBucket, store: S3Store) -> None:
    etag = remote_bucket.put("a", b"a")
    proxy.on("GET", "a", Fault(headers={"etag": '"other"'}), times=1)
    assert [obstore.get(store, "a").meta["e_tag"] for _ in range(2)] == ['"other"', etag]


def test_an_object_changes_within_an_answer(
    proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    etag = remote_bucket.put("a", DATA)
    new = DATA[::-1]
    proxy.on("GET", "a", Fault(call_after=(1000, lambda: remote_bucket.put("a", new))), times=1)
    http_client.request("GET", path(remote_bucket, "a"), headers=signed())
    answer = http_client.getresponse()
    first = answer.read(1000)
    eventually(lambda: remote_bucket.get("a") == new)
    assert (first + answer.read(), answer.getheader("ETag")) == (DATA, etag)
    headers = {"Range": "bytes=1000-", "If-Match": etag}
    assert call(http_client, "GET", path(remote_bucket, "a"), headers=headers)[0].status == 412
    assert get(proxy, path(remote_bucket, "a")) == (200, new)


def test_a_redirect_leads_to_the_other_host(
    s3: S3Server, proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", b"a")
    target = path(remote_bucket, "a")
    with FaultProxy(s3.endpoint) as other:
        proxy.on("GET", "a", Fault(redirect_to=other.url))
        answer, body = call(http_client, "GET", f"{target}?x=1")
        assert (answer.status, answer.getheader("Location")) == (307, f"{other.url}{target}?x=1")
        assert b"<Code>TemporaryRedirect</Code>" in body
        assert get(other, target) == (200, b"a")


def test_a_delay_comes_before_the_answer(
    proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", b"a")
    proxy.on("GET", "a", Fault(delay_s=0.2))
    began_s = time.monotonic()
    assert call(http_client, "GET", path(remote_bucket, "a"))[1] == b"a"
    assert time.monotonic() - began_s >= 0.2


# -- silence


def test_held_requests_wait_until_they_are_released(proxy: FaultProxy, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", DATA)
    remote_bucket.put("b", b"b")
    with ThreadPoolExecutor(3) as threads:
        with proxy.held("GET", "a", skip=1) as held:
            assert get(proxy, path(remote_bucket, "a")) == (200, DATA)
            waiting = [threads.submit(get, proxy, path(remote_bucket, "a")) for _ in range(2)]
            held.wait_for(2)
            assert get(proxy, path(remote_bucket, "b")) == (200, b"b")
            assert not any(answer.done() for answer in waiting)
            held.release()
            assert [answer.result() for answer in waiting] == [(200, DATA)] * 2
            assert get(proxy, path(remote_bucket, "a")) == (200, DATA)
            eventually(lambda: held.waiting == 0)
        with proxy.held("GET", "a") as held:
            waiting = [threads.submit(get, proxy, path(remote_bucket, "a"))]
            held.wait_for(1)
        assert waiting[0].result() == (200, DATA)


def test_an_answer_is_held_within_its_body(
    proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", DATA)
    with proxy.held("GET", "a", after=1000) as held:
        http_client.request("GET", path(remote_bucket, "a"), headers=signed())
        answer = http_client.getresponse()
        assert answer.read(1000) == DATA[:1000]
        held.wait_for(1)
        held.release()
        assert answer.read() == DATA[1000:]


def test_a_client_that_goes_does_not_wait_any_more(
    proxy: FaultProxy, remote_bucket: RemoteBucket, http_client: http.client.HTTPConnection
) -> None:
    remote_bucket.put("a", b"a")
    with proxy.held("GET", "a") as held:
        http_client.request("GET", path(remote_bucket, "a"), headers=signed())
        held.wait_for(1)
        http_client.close()
        eventually(lambda: held.waiting == 0)
    eventually(lambda: proxy.connections == 0)
    assert proxy.requests[-1].status is None


def test_a_cloud_that_is_gone_and_comes_back(proxy: FaultProxy, remote_bucket: RemoteBucket) -> None:
    remote_bucket.put("a", b"a")
    proxy.refuse()
    with pytest.raises(ConnectionError):
        get(proxy, path(remote_bucket, "a"))
    proxy.accept()
    assert get(proxy, path(remote_bucket, "a")) == (200, b"a")


def test_a_proxy_closes_with_requests_in_it(s3: S3Server) -> None:
    threads_before = threading.active_count()
    with FaultProxy(s3.endpoint) as proxy:
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=TIMEOUT_S)
        proxy.on("GET", "*", Fault(delay_s=3600.0))
        connection.request("GET", "/")
        eventually(lambda: proxy.in_flight == 1)
    with contextlib.closing(connection), pytest.raises(ConnectionError):
        connection.getresponse()
    eventually(lambda: threading.active_count() <= threads_before)  # those of tests before may end late
