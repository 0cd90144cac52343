"""A table that is being saved when the process is killed, or the power fails: the file is the last one or the next."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import EntryTable
from ais_loader.testing import eventually
from tests.faults.crash_kit import CrashServer
from tests.faults.crash_tasks import numbered_table
from tests.faults.power_kit import EXTENTS, Extent, PowerCut, noting_server, one_cut

pytestmark = pytest.mark.slow

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashServer]:
    with noting_server(tmp_path_factory.mktemp("shim")) as running:
        yield running


def save_until_killed(server: CrashServer, path: Path, journal: Path, shadow: str, seed: int) -> None:
    pid = server.start("save_tables", path=str(path), journal=str(journal), top=str(path.parent), shadow=shadow)
    try:
        eventually(lambda: journal.exists() and saved_in(journal) >= 1)
        threading.Event().wait(random.Random(seed).uniform(0, 0.02))
    finally:
        os.kill(pid, signal.SIGKILL)
    assert server.wait(pid) == KILLED


def saved_in(journal: Path) -> int:
    """Number of tables whose saving has returned."""
    lines = journal.read_text().split("\n")[:-1]
    return sum(json.loads(line)["what"] == "done" for line in lines)


def judge(path: Path, journal: Path) -> None:
    """The file is the last table that was acknowledged, or the one that was being saved."""
    table, saved = EntryTable.open(path), saved_in(journal)
    table.verify()
    number = int(table.names([0])[0].partition("/")[0])
    assert number in (saved, saved + 1)
    assert list(table) == list(numbered_table(number))


def test_a_killed_save_leaves_the_last_table_or_the_next(server: CrashServer, tmp_path: Path) -> None:
    for kill in range(8):
        path, journal = tmp_path / "entries", tmp_path / f"journal-{kill}"
        save_until_killed(server, path, journal, "", kill)
        judge(path, journal)


@pytest.mark.parametrize("extent", EXTENTS)
def test_a_power_cut_leaves_the_last_table_or_the_next(server: CrashServer, tmp_path: Path, extent: Extent) -> None:
    for number in range(4):
        top, journal = tmp_path / f"top-{number}", tmp_path / f"journal-{number}"
        top.mkdir()
        with one_cut(tmp_path, number) as (shadow, left):
            save_until_killed(server, top / "entries", journal, str(shadow), number)
            PowerCut(top, shadow, extent, seed=number).leave(left)
            judge(left / "entries", journal)
