"""Reruns are counted and named, and what is recorded as flaky exists."""

from __future__ import annotations

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
    assert known_flaky.reruns_said(["tests/a.py::test_a", "tests/a.py::test_b"]) == [
        "tests that failed once and were run again: 2, of which 1 are not known as flaky",
        "  known: tests/a.py::test_a: a reason",
        "  NOT KNOWN, record it in tests.known_flaky: tests/a.py::test_b",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--numprocesses", "2")], ids=["one process", "two processes"])
def test_a_run_counts_its_reruns(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_it.py").write_text(FAILS_ONCE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.known_flaky", "-p", "no:cacheprovider", "--reruns", "1"]
    done = subprocess.run(
        [*command, *options, f"--rootdir={tmp_path}", tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout
    assert "run again: 1, of which 1 are not known as flaky" in done.stdout
    assert "NOT KNOWN, record it in tests.known_flaky: test_it.py::test_it" in done.stdout
