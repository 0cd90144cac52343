"""A store whose process is killed, at every point of its protocol and at random moments.

Whatever was acknowledged is there and whole; what was under way is there whole or not at all; nothing else is left.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from storage_node.store.failpoints import POINTS, arm
from storage_node.store.store import Store
from tests.faults.crash_kit import CrashServer, Expected, Journal, State, content, state_of
from tests.faults.test_drive_changes_crash import POINTS as POINTS_OF_DRIVES
from tests.store.drive.test_retained_crashes import POINTS as POINTS_OF_SNAPSHOTS

KILLED = -signal.SIGKILL

OPERATIONS = {
    "put": {"put.staged", "put.intended", "put.renamed", "put.published", "put.committed"},
    "overwrite": {
        "put.staged",
        "put.intended",
        "put.renamed",
        "put.published",
        "put.committed",
        "reap.unlinked",
    },
    "put_many": {
        "put.staged",
        "put.intended",
        "put.renamed",
        "put.renamed:2",
        "put.renamed:3",
        "put.published",
        "put.committed",
        "put.published:2",
        "put.committed:2",
        "reap.unlinked",
    },
    "compact": {
        "put.staged",
        "put.intended",
        "put.renamed",
        "put.published",
        "put.committed",
        "put.committed:2",
        "reap.unlinked",
        "reap.unlinked:2",
    },
    "delete": {"delete.committed", "reap.unlinked"},
    "bury": {"delete.committed", "reap.unlinked"},
    "deny": {"delete.committed", "deny.committed", "reap.unlinked", "deny.purged", "delete.committed:2"},
    "set_quota": {
        "quota.scanned",
        "quota.counted",
        "quota.scanned:2",
        "quota.counted:2",
        "record.staged",
        "record.one_drive",
        "record.staged:2",
        "record.one_drive:2",
    },
    "remove_quota": {"record.staged", "record.one_drive", "record.staged:2", "record.one_drive:2"},
    "create_bucket": {"record.staged", "record.one_drive", "record.staged:2", "record.one_drive:2"},
    "delete_bucket": {
        "record.staged",
        "record.one_drive",
        "record.staged:2",
        "record.one_drive:2",
        "bucket.recorded",
        "delete.committed",
        "delete.committed:2",
        "reap.unlinked",
        "record.staged:3",
        "record.one_drive:3",
        "record.staged:4",
        "record.one_drive:4",
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[CrashServer]:
    with CrashServer() as running:
        yield running


class History:
    """One store on two drives through its crashes."""

    def __init__(self, folder: Path, server: CrashServer) -> None:
        self.roots = [str(folder / "a"), str(folder / "b")]
        self._folder = folder
        self._server = server
        self._journals = 0
        self.sure: dict[str, State] = {}
        self.acknowledged = 0

    def new_journal(self) -> Path:
        self._journals += 1
        path = self._folder / f"journal-{self._journals}"
        path.touch()
        return path

    def judge(self, journal: Path) -> None:
        """In a child of its own, so that nothing of RocksDB's lives in this process."""
        before, verdict = self._folder / "before", self._folder / "verdict"
        before.unlink(missing_ok=True)
        earlier = Journal(before)
        earlier.begin(0, self.sure, [list(self.sure)])
        earlier.done(0)
        status = self._server.run("judge", roots=self.roots, journals=[str(before), str(journal)], out=str(verdict))
        assert status == 0, "see the child's traceback above"
        outcome = json.loads(verdict.read_text())
        self.sure = outcome["sure"]
        self.acknowledged += outcome["acknowledged"] - 1


@pytest.fixture
def history(tmp_path: Path, server: CrashServer) -> History:
    made = History(tmp_path, server)
    journal = made.new_journal()
    assert server.run("prepare", roots=made.roots, journal=str(journal)) == 0
    made.judge(journal)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["process", pytest.param("power", marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.sampled(3)
def test_an_operation_that_is_killed_at_a_fail_point_happened_whole_or_not_at_all(
    history: History, server: CrashServer, operation: str, durability: str
) -> None:
    for point in sorted(OPERATIONS[operation]):
        journal = history.new_journal()
        status = server.run(
            "operate",
            roots=history.roots,
            durability=durability,
            journal=str(journal),
            sure=history.sure,
            operation=operation,
            point=point,
        )
        assert status == KILLED, f"{operation} never came to {point}"
        history.judge(journal)
        # What the next point works on may be gone by now.
        journal = history.new_journal()
        assert server.run("restore", roots=history.roots, journal=str(journal), sure=history.sure) == 0
        history.judge(journal)


def test_every_fail_point_is_armed_somewhere() -> None:
    used = {point.partition(":")[0] for points in OPERATIONS.values() for point in points}
    used |= {point.partition(":")[0] for _, point in (*POINTS_OF_DRIVES, *POINTS_OF_SNAPSHOTS)}
    used |= {"promote.staged", "promote.lasting"}  # by the tests of promotion
    used |= {"snapshot.held", "snapshot.cut_by_all", "snapshot.settled"}  # by those of snapshots in clusters
    used |= {"upload.noted", "upload.sent", "upload.done", "upload.settled"}  # by those of write-back
    used |= {"code.fragments", "code.manifest", "code.swapped", "code.done"}  # by those of erasure coding
    assert used | {"create.identity", "rebuild.built", "rebuild.aside"} == set(POINTS)
    with pytest.raises(ValueError, match="not one of"):
        arm("put.stagd")


RECORDING = [f"record.{step}:{count}" for step in ("staged", "one_drive") for count in "1234"]
CREATION = ["create.identity:1", "create.identity:2", *RECORDING]


@pytest.mark.parametrize("point", CREATION)
def test_a_creation_that_is_killed_is_repeated_or_complete(tmp_path: Path, server: CrashServer, point: str) -> None:
    history = History(tmp_path, server)
    journal = history.new_journal()
    arguments = {"roots": history.roots, "durability": "process", "journal": str(journal)}
    assert server.run("create", point=point, **arguments) == KILLED
    assert server.run("create", point="", **arguments) == 0
    history.judge(journal)
    assert history.sure == {"main/": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["rebuild.built", "record.staged", "record.one_drive", "rebuild.aside", "rebuild.aside:2"]
)
def test_a_rebuild_that_is_killed_is_rebuilt_again(history: History, server: CrashServer, point: str) -> None:
    assert server.run("rebuild", roots=history.roots, point=point) == KILLED
    assert server.run("rebuild", roots=history.roots, point="") == 0
    history.judge(history.new_journal())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [24, pytest.param(80, marks=pytest.mark.slow), pytest.param(400, marks=pytest.mark.exhaustive)]
)
def test_a_store_that_is_killed_at_random_moments_loses_nothing(
    history: History, server: CrashServer, kills: int
) -> None:
    moments = random.Random(kills)
    awaited = history.acknowledged
    for kill in range(kills):
        journal = history.new_journal()
        pid = server.start(
            "work_until_killed",
            roots=history.roots,
            durability="power" if kill % 10 == 9 else "process",
            journal=str(journal),
            sure=history.sure,
            seed=kill,
            threads=2,
        )
        # Some die while they open the store, the others after so many acknowledgements, however fast the machine is.
        at_work = moments.randrange(6)
        awaited += at_work
        try:
            eventually(lambda: acknowledged_in(journal) >= at_work, interval_s=0.001)  # noqa: B023
            threading.Event().wait(moments.uniform(0.0, 0.005 if at_work else 0.03))
        finally:
            os.kill(pid, signal.SIGKILL)
        assert server.wait(pid) == KILLED
        history.judge(journal)
    assert history.acknowledged >= awaited > 2 * kills


def acknowledged_in(journal: Path) -> int:
    return journal.read_bytes().count(b'"what": "done"')


# -- the judge is not blind


def test_the_judge_knows_a_mix_a_loss_and_half_a_group(tmp_path: Path) -> None:
    whole = content("main/a", 3, 500)
    assert state_of("main/a", whole) == 3
    for bytes_of_another in (whole[:-1], whole[:250] + content("main/a", 4, 500)[250:]):
        with pytest.raises(AssertionError, match="mix"):
            state_of("main/a", bytes_of_another)
    with pytest.raises(AssertionError, match="bytes of"):
        state_of("main/b", whole)

    journal = tmp_path / "journal"
    notes = Journal(journal)
    notes.begin(0, {"a": 1, "b": 1}, [["a", "b"]])
    notes.done(0)
    notes.begin(0, {"a": 2, "b": 2}, [["a", "b"]])
    for found, verdict in {
        (1, 1): None,
        (2, 2): None,
        (1, 2): "half of a group",
        (2, None): "half of a group",
        (None, 1): "half",
        (3, 3): "half",
    }.items():
        expected = Expected()
        expected.learn(journal)
        store = {name: state for name, state in zip("ab", found, strict=True) if state is not None}
        if verdict is None:
            expected.judge(store)
            assert expected.sure == store
        else:
            with pytest.raises(AssertionError, match=verdict):
                expected.judge(store)
    notes.done(0)
    expected = Expected()
    expected.learn(journal)
    with pytest.raises(AssertionError, match="'a' is 1, acknowledged was 2"):
        expected.judge({"a": 1, "b": 1})


@pytest.mark.slow
def test_the_judge_finds_a_lost_object_and_an_orphan(history: History, server: CrashServer, tmp_path: Path) -> None:
    verdict = tmp_path / "verdict-of-damage"

    def judged() -> int:
        journal = tmp_path / "all"
        journal.unlink(missing_ok=True)
        notes = Journal(journal)
        notes.begin(0, history.sure, [list(history.sure)])
        notes.done(0)
        return server.run("judge", roots=history.roots, journals=[str(journal)], out=str(verdict))

    assert judged() == 0
    orphan = Path(history.roots[0], "objects", "00", "00", "ab" * 14 + ".7")
    for folder in (orphan.parent.parent, orphan.parent):  # which objects may not have yet
        folder.mkdir(mode=0o700, exist_ok=True)
    orphan.write_bytes(b"")
    assert judged() == 1
    orphan.unlink()
    assert judged() == 0
    with Store.open(history.roots) as store:
        store.delete("main", "old")
    assert judged() == 1
