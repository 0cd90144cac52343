"""Fixtures for every folder of tests (see tests/fixtures.py), folders in memory, and tests with a process of their own.

Stores of tests are in memory, as a disk is what they would wait for: half of a node's processor time in its tests was
the disk's file system. A killed process leaves the one as it leaves the other. What is about the page cache, or what is
read without a thread, is marked `on_disk`: memory answers no RWF_NOWAIT, and all is read as what is cold.

A test that forks needs a process in which nothing else runs: gRPC's threads, which other tests leave behind, do not
survive a fork. Marked `fresh_process`, it is run by a pytest of its own.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from ais_loader.testing import throwaway_folder
from ais_loader.transport import fork_safety
from tests.example_count import examples

# No test is timed: machines are shared, and a run that stands still is ended by pytest-timeout.
hypothesis.settings.register_profile("untimed", deadline=None, max_examples=examples())
hypothesis.settings.load_profile("untimed")
pytest_plugins = [
    "tests.fixtures",
    "tests.run_bounds",
    "tests.seeded_draws",
    "tests.run_times",
    "tests.case_sets",
]
# The suite starts some hundred interpreters, each of which would compile all that it imports: 0.7 s of a node's 1.1.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Tests make channels of their own, with gRPC's defaults, by which the environment's web proxy would be used.
os.environ["no_grpc_proxy"] = "127.0.0.1,localhost"  # noqa: SIM112 - the name that gRPC reads

# A shell without a terminal has what it starts in the background ignore Ctrl-C, and that is inherited by all that tests
# start, and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A child that is forked beside gRPC may hang, so a fork beside it fails a test. On a machine that stands still for some
# seconds, gRPC needs as long to end.
fork_safety.SHUTDOWN_S = 60.0

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
        timeout=450,
    )
    if done.returncode != 0:
        pytest.fail(f"in a process of its own:\n{done.stdout}{done.stderr}", pytrace=False)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage, which was four of ten seconds, and leave what stays out of it later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
