"""The page of guarantees against the tests that it names: nothing is guaranteed without a test."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")


def promises() -> list[str]:
    """Rows of the tables whose last column names the tests."""
    found: list[str] = []
    held = False
    for line in (ROOT / "docs/guarantees.md").read_text().splitlines():
        if not line.startswith("|"):
            held = False
        elif line.startswith("| guarantee"):
            held = line.endswith("verified by |")
        elif held and not line.startswith("|---"):
            found.append(line)
    return found


def test_every_promise_names_tests_that_are_there() -> None:
    rows = promises()
    assert len(rows) > 20
    for row in rows:
        named = TESTS.findall(row.split("|")[-2])
        assert named, row
        for path, test in named:
            assert (ROOT / path).exists(), path
            assert not test or f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}"
