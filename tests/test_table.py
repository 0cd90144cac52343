"""Tables of rows: all run, and all that failed are listed."""

from __future__ import annotations

import inspect
import os
import signal
from pathlib import Path

import pytest

from tests.table import table


def test_all_rows_run_and_each_that_fails_is_listed_with_its_message_and_place() -> None:
    ran = []

    @table("number, word", [(1, "one"), (2, "two"), (3, "three"), pytest.param(4, "four", id="the last")])
    def check(number: int, word: str) -> None:
        ran.append(number)
        if number == 2:
            with pytest.raises(KeyError):
                pass
        if number == 4:
            raise ValueError(f"{word} is too many")

    with pytest.raises(pytest.fail.Exception) as failed:
        check()
    assert ran == [1, 2, 3, 4]
    said = str(failed.value)
    assert said.startswith("2 of 4 rows failed: number=2, word='two'; the last\n")
    assert "row number=2, word='two':\nTraceback" in said and "DID NOT RAISE KeyError" in said
    assert said.endswith("ValueError: four is too many") and f'File "{__file__}"' in said
    assert f'File "{inspect.getfile(table)}"' not in said


def test_a_table_above_another_has_all_combinations_and_the_test_keeps_its_fixtures() -> None:
    ran = []

    @table("a", [1, 2], ids=lambda value: f"a{value}")
    @table(("b",), "xy", ids=["ex", "why"])
    @table("make", [list])
    def check(fixture: str, a: int, b: str, make: type) -> None:
        ran.append((fixture, a, b))
        assert (a, b) != (2, "x")

    assert list(inspect.signature(check).parameters) == ["fixture"]
    with pytest.raises(pytest.fail.Exception, match=r"^1 of 4 rows failed: a2, ex, make=list\n"):
        check(fixture="f")
    assert ran == [("f", 1, "x"), ("f", 1, "y"), ("f", 2, "x"), ("f", 2, "y")]


def test_no_row_meets_what_another_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_BEFORE", "1")

    @table("n", range(3))
    def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
        assert not any(tmp_path.iterdir()) and "SET_IN_A_ROW" not in os.environ and os.environ["SET_BEFORE"] == "1"
        (tmp_path / "file").write_text(f"{n}")
        monkeypatch.setenv("SET_IN_A_ROW", "1")

    check(tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert "SET_IN_A_ROW" not in os.environ
    assert sorted((folder / "file").read_text() for folder in tmp_path.iterdir()) == ["0", "1", "2"]


def test_a_skipped_row_is_named_and_hides_no_failure() -> None:
    @table("n, fails", [(1, False), (2, True)])
    def check(n: int, fails: bool, fatal: bool) -> None:
        if n == 1:
            pytest.skip("no such program")
        assert not (fails and fatal)

    with pytest.raises(pytest.skip.Exception, match=r"^1 of 2 rows: n=1, fails=False: no such program$"):
        check(fatal=False)
    with pytest.raises(pytest.fail.Exception, match=r"^1 of 2 rows failed: n=2"):
        check(fatal=True)


@pytest.mark.slow
def test_a_row_that_is_interrupted_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    @table("n", range(3))
    def check(n: int) -> None:
        ran.append(n)
        if n == 1:
            signal.setitimer(signal.ITIMER_REAL, 0)  # over, as when the limit of the test has fired
            pytest.fail("not over after 120 s")

    limit_s, _ = signal.getitimer(signal.ITIMER_REAL)
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        with pytest.raises(pytest.fail.Exception, match=r"^1 of 3 rows failed: n=1\n(.*\n)*.*not over after 120 s"):
            check()
    finally:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
    assert ran == [0, 1]


@pytest.mark.slow
def test_a_table_that_cannot_be_meant_is_refused() -> None:
    def check(a: int) -> None: ...

    with pytest.raises(ValueError, match="checks nothing"):
        table("a", [])
    with pytest.raises(ValueError, match="row 1 has 3 values for 2 columns: a, b"):
        table("a, b", [(1, 2), (1, 2, 3)])
    with pytest.raises(ValueError, match="1 ids for 2 rows"):
        table("a", [1, 2], ids=["one"])
    with pytest.raises(TypeError, match="check takes no b"):
        table("a, b", [(1, 2)])(check)
    with pytest.raises(TypeError, match="row 0 has marks"):
        table("a", [pytest.param(1, marks=pytest.mark.slow)])
