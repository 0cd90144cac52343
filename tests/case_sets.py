"""Which cases are quick, slow or exhaustive, and that only those which are asked for come into being.

Markers `slow` and `exhaustive` stand at modules, tests and parameters; what is exhaustive is slow as well. Three rules
add markers to the cases of a test:

- Of its cases times transports, quick is every case on an embedded store. The slow set adds one case on the last
  transport, a cluster where there is one, and the exhaustive set all. A test marked `every_transport` sees the
  transport: one case is quick on one of the others, which take turns from test to test, and one is slow on each of the
  rest.
- Of a `sampled(n)` test, n cases stay in its set, and the others are exhaustive.
- A test marked `quick_cases(n)` has n quick cases; the others are slow.

A run with `-m` creates no case that its expression leaves out, and does not import a module of which all tests are left
out: of 15,000 cases and their modules that is most of what a collection costs, in each process of pytest-xdist.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Generator, Hashable, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.expression import Expression
from hypothesis import is_hypothesis_test

_MODULE_MARK = re.compile(r"^pytestmark = \[?pytest\.mark\.(slow|exhaustive)\b", re.MULTILINE)
_SETS = ("slow", "exhaustive")
TRANSPORT_FIXTURES = ("url", "store")
"""A parameter of one of these is the transport of a case, if one of its values is "embedded"."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--at-most", type=int, metavar="N", help="fail if more than N cases are selected")


def pytest_collection_finish(session: pytest.Session) -> None:
    limit: int | None = session.config.getoption("at_most")
    if limit is not None and len(session.items) > limit:
        raise pytest.UsageError(
            f"{len(session.items)} cases are selected, {limit} are allowed: mark the dearest as slow, and make a table "
            "of cheap cases one test"
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a module whose `pytestmark` is left out, without importing it."""
    if not config.option.markexpr or collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    found = _MODULE_MARK.search(collection_path.read_text())
    return True if found is not None and not _is_asked_for(config, {found[1]}, may_have_more=True) else None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Generator[None]:
    yield
    calls: list[Any] = metafunc._calls
    if not calls:
        return
    marks = {mark.name: mark for mark in metafunc.definition.iter_markers()}
    for fixture in TRANSPORT_FIXTURES:
        if by_transport := [call for call in calls if fixture in call.params]:
            _mark_transports(by_transport, fixture, metafunc.definition.nodeid, "every_transport" in marks)
    if "quick_cases" in marks:
        quick = [call for call in calls if not _sets_of(call)]
        _mark_beyond(quick, *marks["quick_cases"].args, "slow")
    if "sampled" in marks and "exhaustive" not in marks:
        by_set: dict[bool, list[Any]] = defaultdict(list)
        for call in calls:
            if "exhaustive" not in _sets_of(call):
                by_set["slow" in _sets_of(call)].append(call)
        for cases in by_set.values():
            _mark_beyond(cases, *marks["sampled"].args, "exhaustive")
    names = {mark.name for mark in metafunc.definition.iter_markers()}
    if is_hypothesis_test(metafunc.function):
        names.add("hypothesis")  # which its plugin adds to items, later
    asked_for = [call for call in calls if _is_asked_for(metafunc.config, names | {mark.name for mark in call.marks})]
    calls[:] = asked_for or calls[:1]  # with none, the test would be created without its parameters


@pytest.hookimpl(tryfirst=True)  # before `-m` leaves out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("exhaustive") is not None:
            item.add_marker(pytest.mark.slow)


def _is_asked_for(config: pytest.Config, names: set[str], *, may_have_more: bool = False) -> bool:
    """Whether `-m` selects a case with these markers; with `may_have_more`, whether any that has these may be."""
    expression = config.option.markexpr
    if not expression:
        return True
    names = names | {"slow"} if "exhaustive" in names else names

    def has(name: str, **_: Any) -> bool:
        return name in names

    compiled = Expression.compile(expression)
    if compiled.evaluate(has):
        return True
    return may_have_more and any(
        compiled.evaluate(lambda name, *, more=more, **_: name in names or name == more) for more in _SETS
    )


def _sets_of(call: Any) -> set[str]:
    return {mark.name for mark in call.marks if mark.name in _SETS}


def _mark_beyond(calls: Sequence[Any], count: int, name: str) -> None:
    """Mark all but `count` calls.

    Those that stay are spread over all, and not always at the same place of a period, which would be one value of a
    parameter.
    """
    step = max(1, len(calls) // count)
    stay = {at * len(calls) // count + at % step for at in range(count)}
    for at, call in enumerate(calls):
        if at not in stay:
            call.marks.append(getattr(pytest.mark, name).mark)


def _mark_transports(calls: Sequence[Any], fixture: str, test: str, seen: bool) -> None:
    places = [(call.params[fixture], _case(call, fixture)) for call in calls]
    first, *others = dict.fromkeys(transport for transport, _ in places)
    if first != "embedded" or not others:
        return
    cases = list(dict.fromkeys(case for _, case in places))
    quick, slow = {(first, case) for case in cases}, {(others[-1], cases[0])}
    if seen:
        turn = zlib.crc32(test.encode()) % len(others)
        first_turn, *turns = [(others[(turn + at) % len(others)], cases[at % len(cases)]) for at in range(len(others))]
        quick.add(first_turn)
        slow = set(turns)
    for call, place in zip(calls, places, strict=True):
        if place not in quick:
            call.marks.append((pytest.mark.slow if place in slow else pytest.mark.exhaustive).mark)


def _case(call: Any, fixture: str) -> Hashable:
    """All parameters but the transport: values themselves may have no hash, and be equal to others."""
    return tuple(id(value) for name, value in call.params.items() if name != fixture)
