"""Seeded randomness: a failure of a run repeats in the next one, and TESTS_SEED=N has a run draw otherwise.

Objects are placed by hashes of the identities of nodes, drives and buckets, which are drawn. In this process, these
identities follow from the seed and from who draws: a test by its id, a fixture that several tests share by its name.
Within a run each is drawn once, also by a test that is run again and in a process that was forked. All other
identities stay random. So do those that a node draws in a process of its own: a test of such nodes asks the map where
its objects are. A bucket's identity has the time of its creation in it, which is therefore the same for all: a test of
that time asks for `true_times_of_buckets`.

The functions of `random` start anew with each test, and hypothesis draws its examples by the same seed.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Generator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ais_loader.wire import bucket_uuid

SEED = int(os.environ.get("TESTS_SEED", "0"))
_PLACED_BY = ("storage_node.store.", "storage_node.cluster.", "tests.cluster_processes", "tests.", "test_")
_BUCKETS_BY = ("storage_node.store.buckets", "storage_node.cluster.map.mutations")
_CREATED_NS = 1_700_000_000 * 10**9

_random_uuid4 = uuid.uuid4
_random_bytes, _time_ns = os.urandom, time.time_ns
_lock = threading.RLock()
_drawing = ["collection"]
"""The tests and fixtures under way, innermost last."""
_drawn: Counter[str] = Counter()
_process = "0"
_forks = 0


def seeded_uuid4() -> uuid.UUID:
    if not sys._getframe(1).f_globals.get("__name__", "").startswith(_PLACED_BY):
        return _random_uuid4()
    return uuid.UUID(bytes=_seeded_bytes(16), version=4)


def _seeded_bytes(count: int, what: str = "") -> bytes:
    with _lock:
        place = _drawing[-1] + what
        _drawn[place] += 1
        words = f"{SEED} {_process} {_drawn[place]} {place}"
    return hashlib.blake2b(words.encode(), digest_size=count).digest()


def _is_of_a_bucket() -> bool:
    """Whether a bucket is created, rather than a group of coded objects, whose age matters."""
    return sys._getframe(3).f_globals.get("__name__") in _BUCKETS_BY


def _bucket_bytes(count: int) -> bytes:
    return _seeded_bytes(count, " bucket") if _is_of_a_bucket() else _random_bytes(count)


def _bucket_time_ns() -> int:
    return _CREATED_NS if _is_of_a_bucket() else _time_ns()


@pytest.fixture
def true_times_of_buckets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_uuid, "time", time)
        yield


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
    bucket_uuid.os = SimpleNamespace(urandom=_bucket_bytes)  # type: ignore[assignment]
    bucket_uuid.time = SimpleNamespace(time_ns=_bucket_time_ns)  # type: ignore[assignment]
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = SEED


def pytest_unconfigure(config: pytest.Config) -> None:
    uuid.uuid4 = _random_uuid4
    bucket_uuid.os, bucket_uuid.time = os, time


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
