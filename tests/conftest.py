"""Fixtures for every folder of tests (see ais_loader/testing/fixtures.py), and tests with a process of their own.

A test that forks needs a process in which nothing else runs: gRPC's threads, which other tests leave behind, do not
survive a fork. Marked `fresh_process`, it is run by a pytest of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys

import hypothesis
import pytest

# No test is timed: machines are shared, and a run that stands still is ended by pytest-timeout.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
pytest_plugins = ["ais_loader.testing.fixtures"]

_INSIDE = "AIS_LOADER_TEST_FRESH_PROCESS"


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
