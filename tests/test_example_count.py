"""Numbers of examples: capped in the quick set, unless the run asks for all."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.example_count import QUICK_EXAMPLES, examples

TESTS = Path(__file__).resolve().parent


def test_a_number_is_capped_in_the_quick_set_and_whole_where_all_are_asked_for() -> None:
    code = "from tests.example_count import examples; print(examples(3000), examples(), examples(7))"
    for asked, numbers in (("", "50 50 7"), ("all", "3000 100 7")):
        environment = {**os.environ, "TESTS_EXAMPLES": asked}
        told = subprocess.run(
            [sys.executable, "-c", code], cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=180
        )
        assert told.stdout.strip() == numbers, told.stderr


def test_tests_that_name_no_number_have_that_of_the_run() -> None:
    assert hypothesis.settings.default is not None
    assert hypothesis.settings.default.max_examples == examples()


def uncapped(node: ast.AST) -> Iterator[int]:
    """Yield the lines of quick tests that name more examples than the quick set has."""
    for child in ast.iter_child_nodes(node):
        marks = " ".join(map(ast.unparse, getattr(child, "decorator_list", [])))
        if "pytest.mark.slow" in marks or "pytest.mark.exhaustive" in marks:
            continue
        value = child.value if isinstance(child, ast.keyword) and child.arg == "max_examples" else None
        if isinstance(value, ast.Constant) and value.value > QUICK_EXAMPLES:
            yield value.lineno
        yield from uncapped(child)


@pytest.mark.slow
def test_quick_tests_draw_no_more_examples_than_the_quick_set_has() -> None:
    found = []
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        if "max_examples" in text and path.parts[len(TESTS.parts)] not in ("front", "doors"):
            found += [f"{path.relative_to(TESTS)}:{line}" for line in uncapped(ast.parse(text))]
    assert found == [], "say examples(N) of tests.example_count instead"


def test_a_number_without_a_cap_is_found() -> None:
    capped, named = "@settings(max_examples=examples(51))\n", "@settings(max_examples=51)\n"
    test = "def test_a(): ...\n"
    assert list(uncapped(ast.parse(f"{named}{test}{capped}{test}"))) == [1]
    assert list(uncapped(ast.parse(f"@pytest.mark.slow\n{named}{test}"))) == []
    assert list(uncapped(ast.parse("TestX.settings = settings(max_examples=60)"))) == [1]
