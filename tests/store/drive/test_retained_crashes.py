"""A crash at any step of a change of snapshots, or of what they see, leaves them whole or gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.store.store import Store
from tests.faults.crash_kit import CrashServer
from tests.store.snapshot_kit import LARGE, at, reap, retained
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    names,
    object_files,
    put,
    store_at,
)

CODE = """
import sys
from storage_node.store import failpoints
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, put

operation, point, *roots = sys.argv[1:]
store = Store.open(roots)
for drive in store.drives:
    drive._garbage._grace_s = 0.0
failpoints.arm(point)
if operation == "create":
    store.snapshots.create(BUCKET, "new")
elif operation == "change":
    for number in range(20):
        put(store, f"{number:02}", b"new")
elif operation == "remove":
    for number in range(20):
        store.delete(BUCKET, f"{number:02}")
elif operation == "delete":
    store.snapshots.delete(BUCKET, "old")
store.close()
"""

POINTS = [
    *(
        ("create", point)
        for point in (
            "snapshot.cut",
            "record.staged",
            "record.one_drive",
            "record.one_drive:2",
            "snapshot.recorded",
            "record.staged:3",
            "snapshot.counted",
        )
    ),
    *(("change", point) for point in ("put.renamed:7", "put.published:7", "put.committed:7", "retain.marked:7")),
    *(("remove", point) for point in ("delete.committed:7", "retain.marked:7")),
    *(
        ("delete", point)
        for point in (
            "record.staged",
            "record.one_drive",
            "record.one_drive:2",
            "snapshot.released",
            "snapshot.trimmed",
            "snapshot.trimmed:2",
            "reap.unlinked",
            "record.staged:3",
            "record.one_drive:3",
        )
    ),
]


@pytest.fixture(scope="module")
def crashes() -> Iterator[CrashServer]:
    with CrashServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "point"), POINTS)
@pytest.mark.sampled(11)
def test_a_crash_leaves_snapshots_whole_or_gone_and_nothing_else(
    tmp_path: Path, crashes: CrashServer, operation: str, point: str
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    wanted = {f"{number:02}": b"%d" % number for number in range(20)}
    with store_at(*roots) as store:
        for name, data in wanted.items():
            put(store, name, b"before" + data)
        if operation == "delete":
            store.snapshots.create(BUCKET, "old")
        for name, data in wanted.items():
            put(store, name, data)
        if operation in ("change", "remove"):
            store.snapshots.create(BUCKET, "old")
        put(store, "large", LARGE)
    assert crashes.run("run_code", code=CODE, arguments=[operation, point, *map(str, roots)]) == -9
    with Store.open(roots) as store:
        there = [one.name for one in store.snapshots.of(BUCKET)]
        before = {name: b"before" + data for name, data in wanted.items()}
        if operation == "create":
            assert there in ([], ["new"])
            if there:
                assert contents(store, at("new")) == {**wanted, "large": LARGE}
        elif operation == "delete":
            assert there in ([], ["old"])
            if there:
                assert contents(store, at("old")) == before
        else:
            assert there == ["old"] and contents(store, at("old")) == wanted
            assert 0 < sum(data != b"new" for data in contents(store).values()) < 22
        assert not store.record.current.trimming
        now = names(store)
        for name in now:  # what there is of a snapshot now goes on being kept
            put(store, name, b"after")
        if there:
            assert contents(store, at(there[0])) == (
                before if operation == "delete" else {**wanted, "large": LARGE} if operation == "create" else wanted
            )
            store.snapshots.delete(BUCKET, there[0])
        reap(store)
        assert not retained(store)
        assert sum(len(object_files(root)) for root in roots) == len(now)
    assert_sound(*roots)
