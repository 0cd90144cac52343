"""`ais-loader token`: from a key to a revoked token."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from ais_loader import connect, errors
from storage_node.cli.token import token
from storage_node.context.channels import make_secret
from tests.security.rights_kit import key_in, secure


def run(*words: object, fails: bool = False) -> str:
    result = CliRunner().invoke(token, list(map(str, words)))
    assert (result.exit_code != 0) == fails, result.output
    return result.stdout if not fails else result.output


def test_from_a_key_to_a_revoked_token(tmp_path: Path) -> None:
    make_secret(tmp_path / "peer-secret")
    with secure(tmp_path, peer_secret_file=str(tmp_path / "peer-secret")) as node:
        at = "--node", node.server.endpoint, "--peer-secret", tmp_path / "peer-secret"
        path = tmp_path / "token"
        scope = "--scope", "speech-*:read,list,write,admin", "--tenant", "team"
        run("create", "--key", node.key, *scope, *at, "--expires", "1h", "-o", path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        text = path.read_text().strip()
        with connect(node.url, token_file=path) as client:
            client.create_bucket("speech-1").put("x", b"x")
            assert client.bucket("speech-1").get("x") == b"x"
            shown = json.loads(run("show", path, "--json"))
            assert shown["tenant"] == "team" and shown["audience"] == node.audience
            assert "speech-*:read,list,write,admin" in run("show", path)
            listed = run("list", "--key", node.key, *at)
            assert shown["token_id"] in listed and "valid" in listed
            run("revoke", shown["token_id"], "--key", node.key, *at)
            assert "revoked" in run("list", "--key", node.key, *at)
            with pytest.raises(errors.AccessDenied):
                client.bucket("speech-1").get("x")
        for command in (("list", "--key", node.key), ("show", path), ("list", "--key", node.key, "--json")):
            assert text.rpartition(".")[2] not in run(*command)


def test_a_token_goes_where_it_is_told_to(tmp_path: Path) -> None:
    key = key_in(tmp_path)
    words = "create", "--key", key, "--scope", "*:read", "--tenant", "t", "--audience", "a"
    assert "--output FILE or --stdout" in run(*words, fails=True)
    assert not (tmp_path / "key.tokens").exists()
    printed = run(*words, "--stdout")
    assert printed.count(".") == 2 and printed.count("\n") == 1
    (tmp_path / "there").write_text("kept")
    run(*words, "-o", tmp_path / "there", fails=True)
    assert (tmp_path / "there").read_text() == "kept"
    for wrong in (("--expires", "30"), ("--expires", "0d"), ("--scope", "x")):
        run(*words, "--stdout", *wrong, fails=True)


def test_keys(tmp_path: Path) -> None:
    run("key", tmp_path / "key")
    assert "exists already" in run("key", tmp_path / "key", fails=True)
    (tmp_path / "key").chmod(0o644)
    words = "create", "--key", tmp_path / "key", "--scope", "*:read", "--tenant", "t", "--audience", "a", "--stdout"
    assert "chmod 600" in run(*words, fails=True)


def test_a_line_that_could_not_be_written_hides_no_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_in(tmp_path)
    words = "create", "--key", key, "--scope", "*:read", "--audience", "a", "--stdout"
    run(*words, "--tenant", "first")
    path = tmp_path / "key.tokens"
    with monkeypatch.context() as patch:

        def fails(_: int) -> None:
            os.truncate(path, path.stat().st_size - 20)  # as on a full drive
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "fsync", fails)
        run(*words, "--tenant", "lost", fails=True)
    assert [line.split()[5] for line in run("list", "--key", key).splitlines()] == ["first"]
    run(*words, "--tenant", "second")
    assert [line.split()[5] for line in run("list", "--key", key).splitlines()] == ["first", "second"]


def test_a_damaged_line_hides_no_other_tokens(tmp_path: Path) -> None:
    key, words = key_in(tmp_path), ("--scope", "*:read", "--audience", "a", "--stdout")
    for tenant in ("first", "lost", "last"):
        run("create", "--key", key, *words, "--tenant", tenant)
    path = tmp_path / "key.tokens"
    first, lost, last = path.read_bytes().splitlines(keepends=True)
    for damage in (b"\xff" * 9 + b"\n", b"{}\n", b"[1]\n", lost[:-9] + b"\n"):
        path.write_bytes(first + damage + last)
        result = CliRunner().invoke(token, ["list", "--key", str(key)])
        assert [line.split()[5] for line in result.stdout.splitlines()] == ["first", "last"]
        assert f"{path}: line 2 is damaged" in result.stderr
    make_secret(tmp_path / "peer-secret")
    with secure(tmp_path / "node", peer_secret_file=str(tmp_path / "peer-secret")) as node:
        at = "--node", node.server.endpoint, "--peer-secret", tmp_path / "peer-secret"
        assert "is revoked" in run("revoke", json.loads(last)["token_id"], "--key", key, *at)
