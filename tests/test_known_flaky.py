"""Failed tests are tried again alone and named, and what is recorded as flaky exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import known_flaky

ROOT = Path(__file__).parents[1]

FAILS_ONCE = """
from pathlib import Path

def test_it():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        assert False

def test_another():
    pass
"""


def test_recorded_tests_exist_and_have_reasons() -> None:
    for name, reason in known_flaky.KNOWN_FLAKY.items():
        path, *_, function = name.split("::")
        assert f"def {function}(" in (ROOT / path).read_text(), name
        assert len(reason) > 20, name


def test_what_is_not_recorded_is_named_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_flaky.KNOWN_FLAKY, "tests/a.py::test_a", "a reason")
    assert known_flaky.defects(["tests/a.py::test_a", "tests/a.py::test_b"]) == [
        "tests that failed, and passed alone: 2, of which 1 are not known as flaky",
        "  known: tests/a.py::test_a: a reason",
        "  NOT KNOWN, record it in tests.known_flaky: tests/a.py::test_b",
    ]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    plugins = ["-p", "tests.run_bounds", "-p", "tests.known_flaky", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, *options, f"--rootdir={folder}", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--numprocesses", "2")], ids=["one process", "two processes"])
def test_what_passes_alone_is_named_and_the_run_passes(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(FAILS_ONCE)
    done = run(tmp_path, *options, "--again", "1")
    assert done.returncode == 0, done.stdout
    assert "1 failed, 1 passed" in done.stdout
    assert "NOT KNOWN, record it in tests.known_flaky: test_it.py::test_it" in done.stdout


@pytest.mark.slow
def test_what_fails_again_or_too_often_fails_the_run(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert False\n\ndef test_two():\n    assert False\n")
    again = run(tmp_path, "--again", "2")
    assert again.returncode == 1 and again.stdout.count("2 failed in") == 2, again.stdout
    too_many = run(tmp_path, "--again", "1")
    assert too_many.returncode == 1 and "too many for a second try" in too_many.stdout
    assert run(tmp_path).returncode == 1
