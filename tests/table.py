"""Tables of cheap cases: one test runs all rows, and lists every row that failed.

`@table` stands in the place of `@pytest.mark.parametrize`, with the same arguments. Each case of a parametrized test
costs milliseconds to collect, in every process, to set up and to report. A row costs only what its body does. Keep
parameters where a case needs fixtures of its own, takes long, or leaves behind what the next one would meet.

Subtests of pytest are no cheaper than cases: each is a report. `--maxfail` counts them, and ends a run within a table;
a JUnit file counts their time twice.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Values = dict[str, Any]
Rows = list[tuple[str, Values]]
_TABLE = "table_of_rows"
_VALUE_LENGTH = 60


def table(
    columns: str | Sequence[str],
    rows: Iterable[Any],
    *,
    ids: Callable[[Any], object] | Iterable[str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test once for each row; fail at the end with all rows that failed, each with its message and traceback.

    A table above another one has all combinations of their rows. Fixtures are made once, but each row has a folder of
    its own in `tmp_path`, and undoes what it did with `monkeypatch`.

    Raises ValueError if there are no rows, or a row has not a value for each column; TypeError if the test does not
    take a column, or a row has marks.
    """
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else list(columns)
    own = _named_rows(names, list(rows), ids)
    if not own:
        raise ValueError("a table without rows checks nothing")

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        body, others = getattr(test, _TABLE, (test, [("", {})]))
        unknown = set(names) - set(inspect.signature(test).parameters)
        if unknown:
            raise TypeError(f"{test.__name__} takes no {', '.join(sorted(unknown))}")
        combined = [
            (", ".join(filter(None, (name, other))), values | more)
            for (name, values), (other, more) in itertools.product(own, others)
        ]

        @functools.wraps(test)
        def run_rows(*args: Any, **fixtures: Any) -> None:
            _run(combined, functools.partial(body, *args), fixtures)

        setattr(run_rows, _TABLE, (body, combined))
        signature = inspect.signature(test)
        kept = [parameter for name, parameter in signature.parameters.items() if name not in names]
        run_rows.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run_rows

    return decorate


def _named_rows(names: list[str], rows: list[Any], ids: Callable[[Any], object] | Iterable[str] | None) -> Rows:
    given = list(ids) if ids is not None and not callable(ids) else None
    if given is not None and len(given) != len(rows):
        raise ValueError(f"{len(given)} ids for {len(rows)} rows")
    named: Rows = []
    for at, row in enumerate(rows):
        name = given[at] if given is not None else None
        if hasattr(row, "marks"):  # of pytest.param
            if row.marks:
                raise TypeError(f"row {at} has marks, which only a parameter of pytest can have")
            name, values = row.id, row.values
        else:
            values = (row,) if len(names) == 1 else tuple(row)
        if len(values) != len(names):
            raise ValueError(f"row {at} has {len(values)} values for {len(names)} columns: {', '.join(names)}")
        if name is None:
            shown = [ids(value) if callable(ids) else None for value in values]
            name = ", ".join(
                f"{column}={_short(value)}" if text is None else str(text)
                for column, value, text in zip(names, values, shown, strict=True)
            )
        named.append((name.encode(errors="backslashreplace").decode(), dict(zip(names, values, strict=True))))
    return named


def _short(value: object) -> str:
    text = getattr(value, "__name__", "") or repr(value)
    return text if len(text) <= _VALUE_LENGTH else f"{text[:_VALUE_LENGTH]}…"


def _run(rows: Rows, body: Callable[..., None], fixtures: Values) -> None:
    failed: list[tuple[str, BaseException]] = []
    skipped: list[str] = []
    timed = _time_is_left()
    for at, (name, values) in enumerate(rows):
        try:
            with _fixtures_of_row(fixtures, at) as own:
                body(**own, **values)
        except pytest.skip.Exception as skip:
            skipped.append(f"{name}: {skip}")
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - shown by the test
            failed.append((name, error))
            if timed and not _time_is_left():
                break  # the test was interrupted: its time is not for each row
    if failed:
        names = "; ".join(name for name, _ in failed)
        traces = [f"row {name}:\n{_trace(error)}" for name, error in failed]
        pytest.fail("\n\n".join([f"{len(failed)} of {len(rows)} rows failed: {names}", *traces]), pytrace=False)
    if skipped:
        pytest.skip(f"{len(skipped)} of {len(rows)} rows: {'; '.join(skipped)}")


def _trace(error: BaseException) -> str:
    """Return its traceback without the frame of this file."""
    here = error.__traceback__
    return "".join(traceback.format_exception(error.with_traceback(here and here.tb_next))).rstrip()


@contextmanager
def _fixtures_of_row(fixtures: Values, at: int) -> Iterator[Values]:
    own = dict(fixtures)
    if isinstance(folder := own.get("tmp_path"), Path):
        own["tmp_path"] = folder / str(at)
        own["tmp_path"].mkdir()
    if isinstance(patch := own.get("monkeypatch"), pytest.MonkeyPatch):
        with patch.context() as own["monkeypatch"]:
            yield own
    else:
        yield own


def _time_is_left() -> bool:
    """Whether the timer runs that interrupts a test (tests/run_bounds.py)."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0
