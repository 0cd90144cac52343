"""Fixtures for the command line. Those that use `url` run once per transport."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ais_loader.cli import main, show
from ais_loader.objects.client import connect
from tests.cli.kit import Run, Stored


@pytest.fixture(autouse=True)
def no_word_of_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told after a second, which a busy machine takes for anything: test_cli_hand.py has that."""
    monkeypatch.setattr(show, "WAIT_S", 3600.0)


@pytest.fixture
def run(url: str) -> Run:
    def call(*arguments: str | Path, stdin: bytes = b"") -> Result:
        result = CliRunner(env={"AIS_LOADER_URL": url}).invoke(main, list(map(str, arguments)), input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        return result

    return call


@pytest.fixture
def local_url(tmp_path: Path) -> str:
    """A store of this test alone; not made yet."""
    return str(tmp_path / "store")


@pytest.fixture
def objects() -> dict[str, bytes]:
    """What `filled` holds."""
    return {"en/a.txt": b"one\n", "en/b.bin": bytes(range(256)), "english": b"three", "es/ñ 1.txt": b"", "z": b"last"}


@pytest.fixture
def filled(url: str, bucket_name: str, objects: dict[str, bytes]) -> str:
    """The name of a new bucket with `objects`. No client is left open: an embedded store has one writer."""
    with connect(url) as client:
        client.create_bucket(bucket_name).put_many(objects.items())
    return bucket_name


@pytest.fixture
def stored(url: str, bucket_name: str) -> Stored:
    """What the test's bucket holds, read past the command line."""
    return Stored(url, bucket_name)
