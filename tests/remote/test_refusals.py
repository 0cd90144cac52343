"""Refusals of remote storage: each says what to do, shows no secret, and a renewal of credentials is noticed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ais_loader.errors import LoaderError, ObjectNotFound, RemoteDenied, RemoteUnavailable
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers.driver import RequestFailure
from storage_node.remote.drivers.failures import failure_of
from storage_node.remote.location import remote_requests
from tests.remote.backend_kit import BUCKET, Asked, DecidedServer, OneBackend, Reply, chunked, content, names, read
from tests.table import table

SECRET = "wJalrXUtnFEMIsecret"
TOKEN = "a-session-token"
LISTING = b"<ListBucketResult><Contents><Key>a</Key><Size>4</Size></Contents></ListBucketResult>"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)


def _error(status: int, code: str, said: str = "no", more: str = "") -> Reply:
    return Reply(status, f"<Error><Code>{code}</Code><Message>{said}</Message>{more}</Error>".encode())


@pytest.mark.slow
@table(
    ("reply", "said"),
    [
        (
            _error(400, "AuthorizationHeaderMalformed", "the region 'x' is wrong", "<Region>eu-west-1</Region>"),
            "set the region of the bucket's Remote to 'eu-west-1'",
        ),
        (_error(301, "PermanentRedirect", "another endpoint"), "set the region of (the bucket's|its) Remote"),
        (_error(403, "RequestTimeTooSkewed", "The difference is too large"), "the clock of this machine is wrong"),
        (_error(403, "ExpiredToken", "The token has expired"), "renew the credentials"),
        (_error(404, "NoSuchBucket", "x" * 290), "check the URL of the bucket, its endpoint"),
        (_error(403, "AccessDenied", f"Denied for {SECRET} {TOKEN}"), "its credentials may not do this: grant it"),
        (_error(403, "SignatureDoesNotMatch", f"{TOKEN} is wrong"), "correct the credentials"),
    ],
)
def test_a_refusal_says_what_to_do(reply: Reply, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[LoaderError]:
        async with OneBackend(server.remote()) as backend:
            calls = backend.get("a"), names(backend), backend.put("a", chunked(b"1"), 1)
            found = await asyncio.gather(*calls, return_exceptions=True)
        assert all(type(one) is RemoteDenied for one in found), found
        return found  # type: ignore[return-value]

    with DecidedServer(lambda _: reply) as server, caplog.at_level(0):
        errors = asyncio.run(run())
    for error in errors:
        assert error.args
        with pytest.raises(RemoteDenied, match=said):
            raise error
        assert len(str(error)) <= 300
    for secret in (SECRET, TOKEN):
        assert secret not in f"{errors} {caplog.text}"


@table(
    ("status", "kind", "retry"),
    [(403, RemoteDenied, False), (404, ObjectNotFound, False), (503, RemoteUnavailable, True)],
)
def test_a_deletion_that_azure_refuses(status: int, kind: type[LoaderError], retry: bool) -> None:
    error = OSError(f"Generic error: Bulk delete request failed for key a/b: This is not permitted. (code: {status})")
    failure = failure_of(error, "az://c/a/b", "az", ())
    assert isinstance(failure, RequestFailure)
    assert (type(failure.error), failure.retry) == (kind, retry)
    assert str(failure.error) == f"az://c/a/b: status {status}: This is not permitted."


def test_a_bucket_that_can_be_listed_but_not_read() -> None:
    def decide(asked: Asked) -> Reply:
        return Reply(200, LISTING) if "list-type" in asked.path else _error(403, "AccessDenied")

    async def run() -> None:
        async with OneBackend(server.remote()) as backend:
            assert await names(backend) == ["a"]
            with pytest.raises(RemoteDenied, match=f"^s3://{BUCKET}/a: AccessDenied: no; its credentials may not"):
                await backend.get("a")

    with DecidedServer(decide) as server:
        asyncio.run(run())


@pytest.mark.slow
@table("call", ["get", "head", "list", "put", "delete"])
def test_credentials_that_expire_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The request in which they are found to have expired is repeated with what the file has now."""
    monkeypatch.setattr(remote_requests, "REOPEN_S", 0.0)
    profiles = tmp_path / "profiles.toml"
    profiles.touch(0o600)

    def renewed(token: str) -> None:
        keys = f'access_key_id = "AKIAPROFILE"\nsecret_access_key = "{SECRET}"\nsession_token = "{token}"\n'
        profiles.write_text(f'[p]\n{keys}endpoint = "{server.url}"\n')

    def decide(asked: Asked) -> Reply:
        if "second" not in asked.headers.get("x-amz-security-token", "") + asked.path and is_expired:
            return _error(403, "ExpiredToken", "The token first-token has expired")
        if "list-type" in asked.path:
            return Reply(200, LISTING)
        return Reply(200, b"", {"ETag": '"v1"'}) if asked.method in ("PUT", "DELETE") else content(asked, b"data")

    is_expired = False

    async def run() -> None:
        nonlocal is_expired
        async with OneBackend(Remote(f"s3://{BUCKET}", profile="p"), profiles=str(profiles)) as backend:
            assert await read(backend, "a") == b"data"
            is_expired = True
            renewed("second-token")
            match call:
                case "get":
                    assert await read(backend, "a") == b"data"
                case "head":
                    assert (await backend.head("a")).size_bytes == 4
                case "list":
                    assert await names(backend) == ["a"]
                case "put":
                    await backend.put("a", chunked(b"1"), 1)
                case _:
                    await backend.delete("a")
            assert backend.counts.errors == 0

    with DecidedServer(decide) as server:
        renewed("first-token")
        asyncio.run(run())


def test_credentials_that_stay_refused_are_not_read_again_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_requests, "REOPEN_S", 3600.0)

    async def run() -> None:
        async with OneBackend(server.remote()) as backend:
            for _ in range(3):
                with pytest.raises(RemoteDenied) as raised:
                    await backend.get("a")
                assert TOKEN not in str(raised.value)

    with DecidedServer(lambda _: _error(403, "ExpiredToken", f"The token {TOKEN} has expired")) as server:
        asyncio.run(run())
    assert len(server.asked) == 3


def test_a_redirect_to_another_host_is_not_followed() -> None:
    """obstore would follow it without Authorization, and take the session token along."""

    async def run() -> None:
        async with OneBackend(first.remote(), retry_s=0.5) as backend:
            with pytest.raises(RemoteDenied, match=r"a redirect to localhost:.* is not followed"):
                await backend.get("a")
            with pytest.raises(RemoteDenied, match="region"):
                await names(backend)

    def redirected(asked: Asked) -> Reply:
        return Reply(307, b"", {"Location": second.url.replace("127.0.0.1", "localhost") + asked.path})

    with DecidedServer(lambda asked: content(asked, b"data")) as second, DecidedServer(redirected) as first:
        asyncio.run(run())
    assert first.asked and not second.asked
