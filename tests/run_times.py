"""Wall and processor time of each test and each fixture, as properties in the run's JUnit file.

    <property name="processor_s" value="0.131"/>             what the test cost, set-up and teardown included
    <property name="fixture:tests/conftest.py::node" value="1.204 0.910"/>    wall and processor seconds of a set-up

Processor time is that of this process and all its descendants, such as the nodes that a test shares with others: what
they do in the background counts for the test that runs meanwhile. `python -m scripts.test_times` prints the file.

The processes of pytest-xdist send these properties with their reports; what they used in all, collection included, is a
property of the whole run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.junitxml import xml_key

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SMALLEST_S = 0.001
"""Set-ups of fixtures below this are not written down."""

_before_s = pytest.StashKey[float]()
_workers_s = pytest.StashKey[list[float]]()
_total_s = pytest.StashKey[float]()


def processor_s() -> float:
    """Return the processor time of this process, its descendants, and those of them that were waited for."""
    children: dict[int, list[int]] = {}
    used_ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended meanwhile, and its parent counts it
            children.setdefault(int(fields[1]), []).append(int(entry))
            used_ticks[int(entry)] = sum(map(int, fields[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += used_ticks.get(pid, 0)
        left += children.get(pid, ())
    return total / _TICKS_PER_S


def _own_s() -> float:
    times = os.times()
    return sum(times[:4])


# -- of one test


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    if call.when == "teardown":
        now_s, last_s = processor_s(), item.session.stash.get(_before_s, 0.0)
        item.session.stash[_before_s] = now_s
        item.user_properties.append(("processor_s", f"{max(0.0, now_s - last_s):.3f}"))
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Generator[None, object, object]:
    clock = _own_s if fixturedef.scope == "function" else processor_s
    wall_s, used_s = time.perf_counter(), clock()
    try:
        return (yield)
    finally:
        wall_s, used_s = time.perf_counter() - wall_s, clock() - used_s
        if wall_s >= _SMALLEST_S and (item := getattr(request, "_pyfuncitem", None)) is not None:
            name = f"fixture:{fixturedef.baseid}::{fixturedef.argname}"
            item.user_properties.append((name, f"{wall_s:.3f} {used_s:.3f}"))


# -- of the whole run


def pytest_collection_finish(session: pytest.Session) -> None:
    session.stash[_before_s] = processor_s()


@pytest.hookimpl(tryfirst=True)  # before the file is written
def pytest_sessionfinish(session: pytest.Session) -> None:
    used_s = processor_s()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["processor_s"] = used_s
        return
    session.config.stash[_total_s] = used_s
    if (xml := session.config.stash.get(xml_key, None)) is not None:
        workers_s = session.config.stash.get(_workers_s, [])
        xml.add_global_property("processor_s", f"{used_s:.1f}")
        xml.add_global_property("workers_processor_s", " ".join(f"{worker_s:.1f}" for worker_s in workers_s))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    used_s = getattr(node, "workeroutput", {}).get("processor_s", 0.0)
    node.config.stash.setdefault(_workers_s, []).append(used_s)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if (used_s := config.stash.get(_total_s, None)) is not None:
        terminalreporter.write_line(f"processor time: {used_s:.0f} s")
