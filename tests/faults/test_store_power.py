"""A store whose machine loses power: with durability="power" everything that was acknowledged is still there.

The layer that takes away what was not synced is tested first, and shown to take something away.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from tests.faults.crash_kit import CrashServer, Expected, Journal, State
from tests.faults.power_kit import EXTENTS, Extent, PowerCut, noting_server, one_cut
from tests.store.store_kit import copy_with_attributes

KILLED = -signal.SIGKILL


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashServer]:
    with noting_server(tmp_path_factory.mktemp("shim")) as running:
        yield running


def cut_power_at_work(
    server: CrashServer,
    folder: Path,
    number: int,
    top: Path,
    sure: dict[str, State],
    durability: str,
    extent: Extent,
    *,
    journal_bytes: int = 0,
) -> tuple[Path, Path]:
    """Let a child work on the store below `top` until the power fails; (what is left, the child's journal).

    The cut comes at a random moment after the child has noted `journal_bytes` of work: a busy machine is slow to begin.
    """
    journal = folder / f"journal-{number}"
    journal.touch()
    with one_cut(folder, number) as (shadow, left):
        pid = server.start(
            "work_until_the_power_fails",
            top=str(top),
            shadow=str(shadow),
            roots=roots_below(top),
            durability=durability,
            journal=str(journal),
            sure=sure,
            seed=number,
        )
        eventually(lambda: journal.stat().st_size >= journal_bytes)
        threading.Event().wait(random.Random(number).uniform(0.02, 0.25))
        os.kill(pid, signal.SIGKILL)
        assert server.wait(pid) == KILLED
        if not (shadow / "journal").exists():
            return top, journal  # it had not even begun
        PowerCut(top, shadow, extent, seed=number).leave(left)
        return left, journal


def roots_below(top: Path) -> list[str]:
    return [str(top / "drives" / "a"), str(top / "drives" / "b")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "extent",
    [extent if extent == "any mixture" else pytest.param(extent, marks=pytest.mark.slow) for extent in EXTENTS],
)
def test_what_was_acknowledged_survives_one_power_cut_after_the_other(
    server: CrashServer, tmp_path: Path, extent: Extent
) -> None:
    """The first one comes while the store is being made."""
    top = tmp_path / "left"
    top.mkdir()
    sure: dict[str, State] = {}
    acknowledged = 0
    for number in range(12):
        begun = 2000 if number else 0
        top, journal = cut_power_at_work(server, tmp_path, number, top, sure, "power", extent, journal_bytes=begun)
        before, verdict = tmp_path / "before", tmp_path / "verdict"
        before.unlink(missing_ok=True)
        notes = Journal(before)
        notes.begin(0, sure, [list(sure)])
        notes.done(0)
        status = server.run(
            "judge",
            roots=roots_below(top),
            journals=[str(before), str(journal)],
            out=str(verdict),
            machine_went_down=True,
        )
        assert status == 0, f"cut {number}: see the child's traceback above"
        outcome = json.loads(verdict.read_text())
        sure = outcome["sure"]
        acknowledged += outcome["acknowledged"] - 1
    assert acknowledged > 100, acknowledged


@pytest.mark.slow
def test_without_syncing_the_same_power_cut_takes_acknowledged_objects(server: CrashServer, tmp_path: Path) -> None:
    """The proof that the layer works: durability="process" promises nothing here, and indeed loses something."""
    lost = 0
    for number, extent in enumerate(EXTENTS):
        top = tmp_path / extent
        top.mkdir()
        seed = number + 100
        left, journal = cut_power_at_work(server, tmp_path, seed, top, {}, "process", extent, journal_bytes=4000)
        expected = Expected()
        expected.learn(journal)
        verdict = tmp_path / "survivors"
        assert server.run("survivors", roots=roots_below(left), out=str(verdict)) == 0
        found = json.loads(verdict.read_text())
        acknowledged = {name: state for name, state in expected.sure.items() if state and name != "main/"}
        lost += sum(found.get(name, 0) < (state or 0) for name, state in acknowledged.items())
    assert lost > 10, lost


@pytest.mark.parametrize(
    "extent",
    [extent if extent == "any mixture" else pytest.param(extent, marks=pytest.mark.slow) for extent in EXTENTS],
)
def test_a_power_cut_during_compaction_takes_nothing_that_was_on_the_disk(
    server: CrashServer, tmp_path: Path, extent: Extent
) -> None:
    """Even with durability="process": what moves may have been durable for years."""
    top, journal = tmp_path / "top", tmp_path / "journal"
    top.mkdir()
    assert server.run("make_sparse_store", roots=roots_below(top), journal=str(journal)) == 0
    points = ("put.intended", "put.renamed", "put.published", "put.committed", "reap.unlinked", "reap.unlinked:2", "")
    for number, point in enumerate(points):
        mine = tmp_path / f"top-{number}"
        shutil.copytree(top, mine, symlinks=True, copy_function=copy_with_attributes)
        with one_cut(tmp_path, number) as (shadow, left):
            status = server.run(
                "compact_until_the_power_fails", top=str(mine), shadow=str(shadow), roots=roots_below(mine), point=point
            )
            assert status == KILLED, point
            PowerCut(mine, shadow, extent, seed=number).leave(left)
        status = server.run(
            "judge",
            roots=roots_below(left),
            journals=[str(journal)],
            out=str(tmp_path / "verdict"),
            machine_went_down=True,
        )
        assert status == 0, f"{point}: see the child's traceback above"


# -- the layer itself

SYNCS = """
import os, sys
from tests.faults import power_kit
top, shadow = sys.argv[1:]
old = os.open(top + "/old", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.write(old, b"before")
power_kit.begin(shadow, top)
os.write(old, b"+synced")
os.fsync(old)
os.write(old, b"+lost")
os.mkdir(top + "/folder")
for name, sync in (("kept", True), ("unsynced", False)):
    fd = os.open(f"{top}/folder/{name}", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"bytes")
    os.setxattr(fd, "user.ais_loader", b"who")
    if sync:
        os.fdatasync(fd)
os.symlink("/dev/null", top + "/folder/link")
for folder in (top + "/folder", top):
    fd = os.open(folder, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
os.unlink(top + "/folder/kept")
os.rename(top + "/old", top + "/renamed")
with open(top + "/folder/never", "w") as file:
    file.write("x")
"""


@pytest.fixture
def synced(server: CrashServer, tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "top").mkdir()
    assert server.run("run_code", code=SYNCS, arguments=[str(tmp_path / "top"), str(tmp_path / "shadow")]) == 0
    return tmp_path / "top", tmp_path / "shadow"


def contents_of(top: Path) -> dict[str, bytes]:
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file() and not p.is_symlink()}


def test_nothing_more_than_what_was_synced_is_left(synced: tuple[Path, Path], tmp_path: Path) -> None:
    top, shadow = synced
    PowerCut(top, shadow, "nothing more", 0).leave(tmp_path / "left")
    assert contents_of(tmp_path / "left") == {
        "old": b"before+synced",
        "folder/kept": b"bytes",
        "folder/unsynced": b"",
    }
    assert os.readlink(tmp_path / "left" / "folder" / "link") == "/dev/null"
    assert os.getxattr(tmp_path / "left" / "folder" / "kept", "user.ais_loader") == b"who"
    assert not os.listxattr(tmp_path / "left" / "folder" / "unsynced")


def test_all_names_may_be_left_without_their_bytes(synced: tuple[Path, Path], tmp_path: Path) -> None:
    top, shadow = synced
    PowerCut(top, shadow, "all names", 0).leave(tmp_path / "left")
    assert contents_of(tmp_path / "left") == {
        "renamed": b"before+synced",
        "folder/unsynced": b"",
        "folder/never": b"",
    }


def test_a_mixture_lies_between_the_two(synced: tuple[Path, Path], tmp_path: Path) -> None:
    top, shadow = synced
    seen: set[str] = set()
    for seed in range(30):
        left = tmp_path / f"left-{seed}"
        PowerCut(top, shadow, "any mixture", seed).leave(left)
        for name, data in contents_of(left).items():
            seen.add(f"{name}: {data.decode()}")
            assert "before+synced+lost".startswith(data.decode()) or b"bytes".startswith(data) or data in (b"x", b"")
    assert {"old: before+synced", "renamed: before+synced", "folder/kept: bytes", "folder/never: x"} <= seen
    assert any(entry.startswith(("old: before+synced+", "renamed: before+synced+")) for entry in seen)


def test_a_journal_that_ends_in_the_middle_counts_as_far_as_it_is_whole(
    synced: tuple[Path, Path], tmp_path: Path
) -> None:
    top, shadow = synced
    whole = (shadow / "journal").read_text()
    for cut in range(0, len(whole), 7):
        (shadow / "journal").write_text(whole[:cut])
        PowerCut(top, shadow, "nothing more", 0).leave(tmp_path / f"left-{cut}")
    assert contents_of(tmp_path / "left-0") == {}


def test_a_sync_that_looked_first_and_ended_last_takes_nothing_back(synced: tuple[Path, Path], tmp_path: Path) -> None:
    top, shadow = synced
    whole = (shadow / "journal").read_text()
    first, _, _ = whole.partition("\nE\n")
    for at, journal in enumerate((whole, f"{whole}{first}\nE\n")):
        (shadow / "journal").write_text(journal)
        PowerCut(top, shadow, "nothing more", 0).leave(tmp_path / f"left-{at}")
    assert contents_of(tmp_path / "left-1") == contents_of(tmp_path / "left-0") != {}
