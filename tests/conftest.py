"""Fixtures for every folder of tests (see ais_loader/testing/fixtures.py), folders in memory, tests with a process of
their own, and which cases of a test for every transport are slow or exhaustive.

Stores of tests are in memory, as a disk is what they would wait for: half of a node's processor time in its tests was
the disk's file system. A killed process leaves the one as it leaves the other. What is about the page cache, or what is
read without a thread, is marked `on_disk`: memory answers no RWF_NOWAIT, and all is read as what is cold.

A test that forks needs a process in which nothing else runs: gRPC's threads, which other tests leave behind, do not
survive a fork. Marked `fresh_process`, it is run by a pytest of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterator
from pathlib import Path

import hypothesis
import pytest

from ais_loader.testing import throwaway_folder

# No test is timed: machines are shared, and a run that stands still is ended by pytest-timeout.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
pytest_plugins = ["ais_loader.testing.fixtures", "tests.run_bounds", "tests.seeded_draws", "tests.known_flaky"]
# The suite starts some hundred interpreters, each of which would compile all that it imports: 0.7 s of a node's 1.1.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests make channels of their own, with gRPC's defaults, by which the environment's web proxy would be used.
os.environ["no_grpc_proxy"] = "127.0.0.1,localhost"  # noqa: SIM112 - the name that gRPC reads

# A shell without a terminal has what it starts in the background ignore Ctrl-C, and that is inherited by all that tests
# start, and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_INSIDE = "AIS_LOADER_TEST_FRESH_PROCESS"


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    if request.node.get_closest_marker("on_disk") is not None:
        yield request.getfixturevalue("tmp_path")  # pytest's
        return
    with throwaway_folder() as folder:
        yield folder


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("fresh_process") is None or _INSIDE in os.environ:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "fresh_process", pyfuncitem.nodeid]
    done = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, _INSIDE: "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    if done.returncode != 0:
        pytest.fail(f"in a process of its own:\n{done.stdout}{done.stderr}", pytrace=False)
    return True


@pytest.hookimpl(tryfirst=True)  # before the slow ones are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow or exhaustive what the quick set leaves out of cases times transports (parameters of the fixture
    `url`).

    Quick is every case on the first transport, and every test on each of the others. The slow set has each case on one
    of the others in turn, and the exhaustive set all. Whatever is exhaustive is slow as well.
    """
    tests: dict[Hashable, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and "url" in getattr(getattr(item, "callspec", None), "params", ()):
            tests[item.path, item.cls, item.originalname].append(item)
    for cases_by_url in tests.values():
        _mark_uncovered(cases_by_url)
    _mark_beyond_samples(items)
    for item in items:
        if item.get_closest_marker("exhaustive") is not None:
            item.add_marker(pytest.mark.slow)


def _mark_beyond_samples(items: list[pytest.Item]) -> None:
    """Of the cases of a `sampled(n)` test in its set, n stay; the others are exhaustive.

    They are spread over all, and not always at the same place of a period, which would be one value of a parameter.
    """
    sampled: dict[Hashable, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("sampled") is not None:
            slow, exhaustive = (item.get_closest_marker(name) is not None for name in ("slow", "exhaustive"))
            if not exhaustive:
                sampled[item.path, item.cls, item.originalname, slow].append(item)
    for cases in sampled.values():
        marker = cases[0].get_closest_marker("sampled")
        assert marker is not None
        (count,) = marker.args
        step = max(1, len(cases) // count)
        stay = {at * len(cases) // count + at % step for at in range(count)}
        for at, item in enumerate(cases):
            if at not in stay:
                item.add_marker(pytest.mark.exhaustive)


def _mark_uncovered(items: list[pytest.Function]) -> None:
    places = [(item.callspec.params["url"], _case(item)) for item in items]
    first, *others = dict.fromkeys(url for url, _ in places)
    cases = list(dict.fromkeys(case for _, case in places))
    quick = {(first, case) for case in cases}
    slow = set()
    for turn in range(max(len(cases), len(others)) if others else 0):
        (quick if turn < len(others) else slow).add((others[turn % len(others)], cases[turn % len(cases)]))
    for item, place in zip(items, places, strict=True):
        if place not in quick:
            item.add_marker(pytest.mark.slow if place in slow else pytest.mark.exhaustive)


def _case(item: pytest.Function) -> Hashable:
    """All parameters but the transport: values themselves may have no hash, and be equal to others."""
    return tuple(id(value) for name, value in item.callspec.params.items() if name != "url")
