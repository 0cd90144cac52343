"""Profiles of credentials: what the file may contain, who may read it, and that nothing of it is mixed or shown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ais_loader.errors import RemoteDenied
from ais_loader.wire.remote import Remote
from storage_node.remote.drivers.credentials import credentials_of
from tests.remote.backend_kit import BUCKET, DecidedServer, OneBackend, content, read
from tests.table import table

KEYS = 'access_key_id = "AKIAPROFILE"\nsecret_access_key = "very-secret"\n'


def _file(folder: Path, text: str, mode: int = 0o600) -> str:
    path = folder / "profiles.toml"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@table(
    ("text", "mode", "said"),
    [
        ("[other]\n", 0o600, "there is no profile 'p'"),
        (f"[p]\n{KEYS}", 0o640, "its mode is 0640, .*run `chmod 600 "),
        (f"[p]\n{KEYS}colour = 'red'\n", 0o600, r"\[p\]: unknown key 'colour'; known are .*access_key_id"),
        ("[p]\nanonymous = 'yes'\n", 0o600, "'anonymous': need true or false"),
        ("[p]\nregion = 3\n", 0o600, "'region': need a text"),
        ("[p]\naccount_key = 'very-secret'\n", 0o600, "'account_key' is not a key for s3://"),
        ("[p]\naccess_key_id = 'very-secret'\n", 0o600, "need both of access_key_id and secret_access_key"),
        ("p = 'very-secret'\n", 0o600, "need a section"),
        ("[p\n", 0o600, "is not valid TOML"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str, mode: int, said: str) -> None:
    with pytest.raises(RemoteDenied, match=said) as raised:
        credentials_of(Remote("s3://b", profile="p"), _file(tmp_path, text, mode))
    assert "very-secret" not in str(raised.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(RemoteDenied, match="cannot be read: No such file"):
        credentials_of(Remote("s3://b", profile="p"), tmp_path / "none")
    with pytest.raises(RemoteDenied, match="set remote_profiles"):
        credentials_of(Remote("s3://b", profile="p"))


def test_a_profile_is_not_mixed_with_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "another-token")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_REGION", "xx-env-1")

    async def run() -> None:
        text = f'[p]\n{KEYS}endpoint = "{server.url}"\nregion = "eu-west-3"\n[public]\nanonymous = true\n'
        path = _file(tmp_path, text)
        assert "very-secret" not in repr(credentials_of(Remote("s3://b", profile="p"), path))
        for remote in (
            Remote(f"s3://{BUCKET}", profile="p"),
            Remote(f"s3://{BUCKET}", endpoint=server.url),
            Remote(f"s3://{BUCKET}", endpoint=server.url, profile="public"),
        ):
            async with OneBackend(remote, profiles=path) as backend:
                assert await read(backend, "a") == b"data"

    with DecidedServer(lambda asked: content(asked, b"data")) as server:
        asyncio.run(run())
    profile, environment, public = (asked.headers for asked in server.asked)
    assert "AKIAPROFILE" in profile["authorization"] and "eu-west-3" in profile["authorization"]
    assert "x-amz-security-token" not in profile
    assert "AKIAENVIRONMENT" in environment["authorization"] and "xx-env-1" in environment["authorization"]
    assert environment["x-amz-security-token"] == "another-token"
    assert "authorization" not in public and "x-amz-security-token" not in public
