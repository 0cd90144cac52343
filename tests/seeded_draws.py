"""Seeded randomness: a failure of a run repeats in the next one, and TESTS_SEED=N has a run draw otherwise.

Objects are placed by hashes of the identities of nodes, drives and buckets, which are drawn. In this process, these
identities follow from the seed and from who draws: a test by its id, a fixture that several tests share by its name.
Within a run each is drawn once, also by a test that is run again and in a process that was forked. All other
identities stay random. So do those that a node draws in a process of its own: a test of such nodes asks the map where
its objects are.

The functions of `random` start anew with each test, and hypothesis draws its examples by the same seed.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

SEED = int(os.environ.get("TESTS_SEED", "0"))
_PLACED_BY = ("storage_node.store.", "storage_node.cluster.", "tests.cluster_processes", "tests.", "test_")

_random_uuid4 = uuid.uuid4
_lock = threading.RLock()
_drawing = ["collection"]
"""The tests and fixtures under way, innermost last."""
_drawn: Counter[str] = Counter()
_process = "0"
_forks = 0


def seeded_uuid4() -> uuid.UUID:
    if not sys._getframe(1).f_globals.get("__name__", "").startswith(_PLACED_BY):
        return _random_uuid4()
    with _lock:
        place = _drawing[-1]
        _drawn[place] += 1
        words = f"{SEED} {_process} {_drawn[place]} {place}"
    return uuid.UUID(bytes=hashlib.blake2b(words.encode(), digest_size=16).digest(), version=4)


def _before_fork() -> None:
    global _forks
    _lock.acquire()
    _forks += 1


def _in_child() -> None:
    global _process
    _process = f"{_process}.{_forks}"
    _lock.release()


os.register_at_fork(before=_before_fork, after_in_child=_in_child, after_in_parent=_lock.release)


@pytest.hookimpl(tryfirst=True)  # before hypothesis reads its option
def pytest_configure(config: pytest.Config) -> None:
    uuid.uuid4 = seeded_uuid4
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED


def pytest_unconfigure(config: pytest.Config) -> None:
    uuid.uuid4 = _random_uuid4


def pytest_report_header() -> str:
    return f"seed of the tests: {SEED} (TESTS_SEED)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _drawing.append(item.nodeid)
    try:
        return (yield)
    finally:
        _drawing.pop()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    random.seed(f"{SEED} {item.nodeid}")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, object, object]:
    """A shared fixture draws the same, whichever test is the first to ask for it."""
    place = request.node.nodeid
    if fixturedef.scope != "function":
        place = f"{place} {fixturedef.argname} {request.param_index if hasattr(request, 'param_index') else 0}"
    _drawing.append(place)
    try:
        return (yield)
    finally:
        _drawing.pop()
