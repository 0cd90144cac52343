"""Where a client takes its token from, and where it sends it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from ais_loader.errors import AccessDenied, InvalidRequest
from ais_loader.testing.waiting import eventually
from ais_loader.values.options import ClusterOptions, token_of
from ais_loader.values.token_source import TokenSource, may_send_token

SECRET = "eyJ.this-very-secret.token"
LOAD = "import pickle, sys; print(pickle.load(sys.stdin.buffer).token.read())"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIS_LOADER_TOKEN", raising=False)
    monkeypatch.delenv("AIS_LOADER_TOKEN_FILE", raising=False)


def in_another_process(options: ClusterOptions, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD],
        input=pickle.dumps(options),
        capture_output=True,
        env={"PATH": "/usr/bin", **environment},
        check=False,
    )
    return done.returncode, done.stdout.decode().strip(), done.stderr.decode()


@pytest.mark.slow
def test_a_value_stays_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ClusterOptions(token=SECRET)
    for text in (repr(options), str(options), pickle.dumps(options).decode("latin-1"), repr(options.token)):
        assert "secret" not in text
    source = token_of(pickle.loads(pickle.dumps(options)))
    assert source is not None and source.read() == SECRET and source == options.token
    failed, _, said = in_another_process(options)
    assert failed and "token_file=" in said and "secret" not in said
    assert in_another_process(options, AIS_LOADER_TOKEN="a.b.c")[:2] == (0, "a.b.c")


@pytest.mark.slow
def test_a_file_goes_along_as_a_path(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(SECRET + "\n")
    options = ClusterOptions(token=TokenSource.file(tmp_path / "token"))
    assert in_another_process(options)[:2] == (0, SECRET)
    assert "secret" not in pickle.dumps(options).decode("latin-1")


def test_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert token_of(ClusterOptions()) is None
    monkeypatch.setenv("AIS_LOADER_TOKEN", SECRET)
    source = token_of(ClusterOptions())
    assert source is not None and source.read() == SECRET and "secret" not in repr(source)
    (tmp_path / "token").write_text("in.a.file")
    monkeypatch.setenv("AIS_LOADER_TOKEN_FILE", str(tmp_path / "token"))
    source = token_of(ClusterOptions())
    assert source is not None and source.read() == "in.a.file"


@pytest.mark.slow
def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "token"
    source = TokenSource.file(path)
    with pytest.raises(AccessDenied, match="cannot be read"):
        source.read()
    path.write_text("one")
    assert source.read() == "one"
    path.write_text("other")
    eventually(lambda: source.read() == "other")
    path.write_text("")  # it is being written
    path.unlink()
    assert source.read() == "other"
    (tmp_path / "next").write_text("third")
    (tmp_path / "next").rename(path)
    eventually(lambda: source.read() == "third")


def test_what_is_no_token() -> None:
    for text in ("", " ", "two words", "line\nline", "ünicode", "x" * 10_000):
        with pytest.raises(InvalidRequest) as refused:
            TokenSource.value(text)
        assert not text.strip() or text not in str(refused.value)


def test_where_a_token_may_go() -> None:
    for endpoint in ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"):
        assert may_send_token(endpoint, is_tls=False)
    for endpoint in ("10.0.0.1:1", "0.0.0.0:1", "[::]:1", "localhost.example.org:1", "127.0.0.1.nip.io:1", ":1"):
        assert not may_send_token(endpoint, is_tls=False)
        assert may_send_token(endpoint, is_tls=True)
