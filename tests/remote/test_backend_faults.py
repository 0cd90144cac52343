"""Requests that fail: what is repeated and what is not, what errors say, and what they never say."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import threading
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from ais_loader.errors import ObjectNotFound, RemoteDenied, RemoteUnavailable, Unsupported, VersionConflict
from ais_loader.testing import eventually
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers.driver import RemoteChanged
from tests.remote.backend_kit import BUCKET, MIB, Asked, DecidedServer, OneBackend, Reply, chunked, content, names, read
from tests.table import table

SECRET = "wJalrXUtnFEMIsecret"
KEY_ID = "AKIAIOSFODNN7"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def _error(status: int, code: str, text: str = "no", **headers: str) -> Reply:
    return Reply(status, f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode(), headers)


def _failing(decide: Any, error: type[Exception], **changed: Any) -> tuple[str, OneBackend, list[Asked]]:
    """Return the message of a GET's error, which has this class."""

    async def run() -> tuple[str, OneBackend]:
        async with OneBackend(server.remote(), **changed) as backend:
            with pytest.raises(error) as raised:
                await read(backend, "a/b")
            assert type(raised.value) is error
            return str(raised.value), backend

    with DecidedServer(decide) as server:
        message, backend = asyncio.run(run())
    assert len(message) <= 300 and message.startswith(f"s3://{BUCKET}/a/b: ")
    for secret in (SECRET, KEY_ID, "Signature=", "AWS4-HMAC"):
        assert secret not in message
    return message, backend, server.asked


def _repeated(decide: Any, retry_s: float) -> tuple[str, OneBackend]:
    """Like `_failing`, of a GET that is repeated. A machine may stand still for that time, but not each time."""

    def with_time() -> tuple[str, OneBackend] | None:
        message, backend, asked = _failing(decide, RemoteUnavailable, retry_s=retry_s)
        return (message, backend) if len(asked) > 1 else None

    found = eventually(with_time)
    assert found is not None
    return found


def test_an_answer_that_is_cut_is_continued_under_its_tag() -> None:
    data = os.urandom(3 * MIB + 17)

    def decide(asked: Asked) -> Reply:
        return content(asked, data, cut_bytes=1_300_000 if asked.number < 2 else None)

    async def run() -> None:
        async with OneBackend(server.remote()) as backend:
            assert await read(backend, "a") == data
            assert (backend.counts.retried, backend.counts.bytes_in) == (2, len(data))

    with DecidedServer(decide) as server:
        asyncio.run(run())
    assert [asked.headers.get("if-match") for asked in server.asked] == [None, '"v1"', '"v1"']
    starts = [asked.range[0] for asked in server.asked if asked.range]
    assert starts[0] == 0 < starts[1] < starts[2]


def test_an_answer_that_is_cut_and_then_has_another_version_fails() -> None:
    def decide(asked: Asked) -> Reply:
        return content(asked, bytes(3 * MIB), f'"v{asked.number}"', cut_bytes=2 * MIB if not asked.number else None)

    message, _, _ = _failing(decide, RemoteChanged)
    assert "was replaced or deleted while it was read" in message


def test_an_answer_that_is_always_cut_fails_after_a_time() -> None:
    _, backend = _repeated(lambda asked: content(asked, bytes(MIB), cut_bytes=0), retry_s=0.5)
    assert backend.counts.errors == 1


@pytest.mark.parametrize("delta_bytes", [50, -50])
def test_an_answer_of_another_length_than_its_range_is_never_taken_for_the_object(delta_bytes: int) -> None:
    """Too many bytes are dropped, and those that are missing are requested."""
    data = os.urandom(MIB)

    def decide(asked: Asked) -> Reply:
        reply = content(asked, data)
        is_first = not asked.number
        reply.body = reply.body + b"x" * 50 if delta_bytes > 0 else reply.body[: delta_bytes if is_first else None]
        return reply

    async def run() -> None:
        async with OneBackend(server.remote()) as backend:
            assert await read(backend, "a") == data

    with DecidedServer(decide) as server:
        asyncio.run(run())


@pytest.mark.slow
def test_a_host_that_throttles_is_asked_less_and_then_again() -> None:
    def decide(asked: Asked) -> Reply:
        return _error(503, "SlowDown", "Reduce your rate") if asked.number < 3 else content(asked, b"data")

    async def run() -> None:
        async with OneBackend(server.remote()) as backend:
            assert await read(backend, "a") == b"data"
            counts = backend.counts
            assert (counts.throttled, counts.retried, counts.errors) == (3, 3, 0)
            assert backend.limiters.of(server.url.partition("//")[2]).limit < 64

    with DecidedServer(decide) as server:
        asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("status", [500, 502, 504])
def test_failures_of_the_server_are_repeated_and_then_unavailable(status: int) -> None:
    message, backend = _repeated(lambda _: _error(status, "InternalError", "We broke"), retry_s=0.6)
    assert "InternalError: We broke" in message
    assert backend.counts.throttled == 0


@pytest.mark.slow
def test_a_server_that_hangs_up_or_is_gone_is_unavailable() -> None:
    _failing(lambda _: None, RemoteUnavailable, retry_s=0.4)

    async def run() -> None:
        async with OneBackend(Remote(f"s3://{BUCKET}", endpoint="http://127.0.0.1:1"), retry_s=0.3) as backend:
            for asked in (backend.get("a"), names(backend), backend.put("a", chunked(b"1"), 1), backend.delete("a")):
                with pytest.raises(RemoteUnavailable):
                    await asked

    asyncio.run(run())


@pytest.mark.slow
def test_a_server_that_is_silent_is_unavailable() -> None:
    ended = threading.Event()

    def decide(_: Asked) -> None:
        ended.wait(180)

    try:
        _failing(decide, RemoteUnavailable, retry_s=0.3, timeout_s=0.2)
    finally:
        ended.set()


@table(
    ("reply", "said"),
    [
        (_error(403, "AccessDenied", "User is not authorized"), "AccessDenied: User is not authorized"),
        (
            _error(403, "InvalidAccessKeyId", f"with {SECRET} and {KEY_ID}"),
            "InvalidAccessKeyId: with *** and ***",
        ),
        (_error(400, "ExpiredToken", "The token has expired"), "ExpiredToken: The token has expired"),
        (_error(400, "AuthorizationHeaderMalformed", "expecting 'eu-west-1'"), "expecting 'eu-west-1'"),
        (_error(404, "NoSuchBucket", "There is none"), "NoSuchBucket: There is none"),
        (_error(301, "PermanentRedirect", "Use another endpoint"), "another region"),
        (Reply(401, b"who are you? authorization: Basic abc"), "status 401"),
        (Reply(403, b"x" * 5000), "status 403"),
    ],
)
def test_refusals_are_not_repeated(reply: Reply, said: str) -> None:
    message, backend, asked = _failing(lambda _: reply, RemoteDenied)
    assert said in message and "Basic" not in message
    assert (len(asked), backend.counts.errors) == (1, 1)


def test_missing_credentials_fail_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    message, _, asked = _failing(lambda _: Reply(200), RemoteDenied)
    assert "no credentials: set AWS_ACCESS_KEY_ID" in message
    assert asked == []


def test_an_incomplete_configuration_fails_at_once() -> None:
    async def run() -> None:
        async with OneBackend(Remote("az://container")) as backend:
            with pytest.raises(RemoteDenied, match=r"^az://container: .*Account must be specified"):
                await backend.get("a")

    asyncio.run(run())


def test_a_put_whose_answer_is_lost_is_found_to_be_done() -> None:
    stored: list[bytes] = []

    def decide(asked: Asked) -> Reply | None:
        if asked.method != "PUT":
            return content(asked, stored[0], f'"{hashlib.md5(stored[0]).hexdigest()}"')
        if stored:
            return _error(412, "PreconditionFailed")
        stored.append(asked.body)
        return None

    async def run() -> None:
        async with OneBackend(server.remote()) as backend:
            assert (await backend.put("a", chunked(b"mine"), 4, if_absent=True)).size_bytes == 4
            with pytest.raises(VersionConflict):
                await backend.put("a", chunked(b"other"), 5, if_absent=True)

    with DecidedServer(decide) as server:
        asyncio.run(run())
    assert stored == [b"mine"]


def test_parts_of_a_put_are_repeated() -> None:
    failed = threading.Event()

    def decide(asked: Asked) -> Reply:
        if asked.method == "POST" and "uploads" in asked.path:
            return Reply(200, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
        if asked.method == "PUT" and not failed.is_set():
            failed.set()
            return _error(500, "InternalError")
        if asked.method == "POST":
            tag = b'<CompleteMultipartUploadResult><ETag>"done"</ETag></CompleteMultipartUploadResult>'
            return Reply(200, tag)
        return Reply(200, b"", {"ETag": '"part"'})

    async def run() -> None:
        data = os.urandom(11 * MIB)
        async with OneBackend(server.remote()) as backend:
            assert (await backend.put("a", chunked(data), len(data))).etag == '"done"'
            bodies = {asked.path: asked.body for asked in server.asked if asked.method == "PUT"}
            parts = sorted(bodies, key=lambda path: int(path.partition("partNumber=")[2].partition("&")[0]))
            assert b"".join(bodies[path] for path in parts) == data

    with DecidedServer(decide) as server:
        asyncio.run(run())


@pytest.mark.slow
def test_a_slow_first_answer_is_overtaken_by_a_second() -> None:
    ended = threading.Event()

    def decide(asked: Asked) -> Reply:
        if not asked.number:
            ended.wait(180)
        return content(asked, b"data")

    async def run() -> None:
        async with OneBackend(server.remote(), hedge_budget=0.05) as backend:
            assert await read(backend, "a") == b"data"
            assert (backend.counts.hedged, backend.counts.requests["get"]) == (1, 2)
            assert backend.limiters.of(server.url.partition("//")[2]).in_flight == 0
        ended.set()

    with DecidedServer(decide) as server:
        try:
            asyncio.run(run())
        finally:
            ended.set()


def test_reads_that_are_given_up_release_their_places() -> None:
    async def run() -> None:
        async with OneBackend(server.remote(), max_requests=1) as backend:
            for is_begun in (True, False, True):
                found = await backend.get("a")
                assert found is not None
                async with found:
                    if is_begun:
                        assert bytes(await anext(aiter(found))).count(0)
            assert backend.limiters.of(server.url.partition("//")[2]).in_flight == 0

    with DecidedServer(lambda asked: content(asked, bytes(9 * MIB))) as server:
        asyncio.run(run())


def test_redirects_to_other_hosts_carry_no_credentials(tmp_path: Path) -> None:
    profiles = tmp_path / "profiles.toml"
    profiles.touch(0o600)
    profiles.write_text(f'[web]\nbearer_token = "{SECRET}"\nhosts = ["http://localhost:*"]\n')

    async def run() -> None:
        remote = Remote(first.url.replace("127.0.0.1", "localhost") + "/files", profile="web")
        async with OneBackend(remote, profiles=str(profiles)) as backend:
            assert await read(backend, "a") == b"data"

    second = DecidedServer(lambda asked: content(asked, b"data"))
    first = DecidedServer(lambda asked: Reply(302, b"", {"Location": f"{second.url}/moved"}))
    with first, second:
        asyncio.run(run())
    assert first.asked[0].headers["authorization"] == f"Bearer {SECRET}"
    assert second.asked and not any("authorization" in asked.headers for asked in second.asked)


def test_the_url_of_a_listing_is_signed_with_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a/session+token=")

    def decide(_: Asked) -> Reply:
        return Reply(200, b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>")

    async def run() -> None:
        async with OneBackend(server.remote(region="eu-west-1")) as backend:
            assert await names(backend, "a b/é", "a b/é+&") == []

    with DecidedServer(decide) as server:
        asyncio.run(run())
    (asked,) = server.asked
    parts = urlsplit(asked.path)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    assert (query["prefix"], query["start-after"], query["list-type"]) == ("a b/é", "a b/é+&", "2")
    signature = query.pop("X-Amz-Signature")
    day, scope = query["X-Amz-Date"][:8], query["X-Amz-Credential"].partition("/")[2]
    pairs = sorted((quote(name, safe="-_.~"), quote(value, safe="-_.~")) for name, value in query.items())
    canonical = "&".join(f"{name}={value}" for name, value in pairs)
    request = f"GET\n{parts.path}\n{canonical}\nhost:{asked.headers['host']}\n\nhost\nUNSIGNED-PAYLOAD"
    to_sign = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for text in (day, "eu-west-1", "s3", "aws4_request", to_sign):
        key = hmac.digest(key, text.encode(), "sha256")
    assert key.hex() == signature


def test_a_listing_that_fails_goes_on_after_its_last_page() -> None:
    def decide(asked: Asked) -> Reply:
        if asked.number == 1:
            return _error(503, "SlowDown")
        is_first = "start-after" not in asked.path
        one = f"<Contents><Key>{'a%20b' if is_first else 'c'}</Key><Size>1</Size></Contents>"
        more = f"<IsTruncated>{'true' if is_first else 'false'}</IsTruncated><EncodingType>url</EncodingType>"
        return Reply(200, f"<ListBucketResult>{more}{one}</ListBucketResult>".encode())

    async def run() -> None:
        async with OneBackend(server.remote()) as backend:
            assert await names(backend) == ["a b", "c"]
            assert (backend.counts.requests["list"], backend.counts.throttled) == (3, 1)

    with DecidedServer(decide) as server:
        asyncio.run(run())


def test_a_web_server_is_read_only_and_needs_no_tags_and_no_ranges() -> None:
    data = os.urandom(12 * MIB)
    when = "Tue, 01 Jan 2030 00:00:00 GMT"

    def decide(asked: Asked) -> Reply:
        if not asked.path.startswith("/files/a%20b%23/"):
            return Reply(404)
        is_cut = asked.method == "GET" and asked.number == 3
        return Reply(200, data, {"Last-Modified": when}, 7 * MIB if is_cut else None)

    async def run() -> None:
        async with OneBackend(Remote(f"{server.url}/files")) as backend:
            info = await backend.head("a b#/é")
            assert info.size_bytes == len(data) and info.etag
            assert await read(backend, "a b#/é") == data
            assert await backend.get("a b#/é", unless_etag=info.etag) is None
            assert bytes(await backend.read_range("a b#/é", 1000, 50, info.etag)) == data[1000:1050]
            with pytest.raises(RemoteChanged):
                await backend.read_range("a b#/é", 0, 10, "modified-1-1")
            with pytest.raises(ObjectNotFound):
                await backend.get("b")
            with pytest.raises(Unsupported, match="has no listing"):
                await names(backend)
            for asked in (backend.put("a", chunked(b"1"), 1), backend.delete("a")):
                with pytest.raises(Unsupported, match="read-only"):
                    await asked

    with DecidedServer(decide) as server:
        asyncio.run(run())
