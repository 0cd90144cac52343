"""The process is killed while drives come and go: whatever was acknowledged is there, and it goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.store.format import BLOCK_BYTES
from storage_node.store.store import Store
from tests.faults.crash_kit import CrashServer
from tests.store.store_kit import BUCKET, assert_sound, contents, names, put, store_at

WANTED = {f"{number:03}": b"%d" % number * (1 + number) for number in range(80)}
WANTED["large"] = bytes(range(256)) * (2 * BLOCK_BYTES // 256) + b"end"

CODE = """
import sys
from storage_node.store import failpoints
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, put

operation, point, *roots = sys.argv[1:]
store = Store.open(roots[:2] if operation == "add" else roots)
for drive in store.drives:
    drive._garbage._grace_s = 0.0
failpoints.arm(point)
if operation == "add":
    store.pool.add_drive(roots[2])
elif operation == "retire":
    store.pool.retire_drive(store.record.current.active[0])
elif operation == "put":
    for number in range(80):
        put(store, f"{number:03}", b"%d" % number * (1 + number))
while store.pool.moving and store.pool.move_some(7, 1 << 20).left_estimate:
    pass
store.close()
"""

POINTS = [
    ("add", "drive.identity"),
    ("add", "record.staged"),
    ("add", "record.one_drive:1"),
    ("add", "record.one_drive:2"),
    ("add", "drive.recorded"),
    ("add", "move.staged:2"),
    ("add", "put.renamed:5"),
    ("add", "put.published:2"),
    ("add", "move.committed:2"),
    ("add", "delete.committed:3"),
    ("add", "move.dropped:1"),
    ("retire", "drive.recorded"),
    ("retire", "move.committed:3"),
    ("retire", "delete.committed:10"),
    ("retire", "record.one_drive:3"),
    ("retire", "drive.settled"),
    ("put", "delete.committed:4"),
    ("put", "put.committed:40"),
]


@pytest.fixture(scope="module")
def crashes() -> Iterator[CrashServer]:
    with CrashServer() as server:
        yield server


@pytest.mark.parametrize(("operation", "point"), POINTS)
@pytest.mark.sampled(9)
def test_a_change_of_drives_that_is_cut_off_loses_nothing_and_is_finished_later(
    tmp_path: Path, crashes: CrashServer, operation: str, point: str
) -> None:
    roots = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    first = roots[:2] if operation == "add" else roots
    with store_at(*first) as store:
        for name, data in WANTED.items():
            put(store, name, data, metadata={"name": name})
        store.delete(BUCKET, "007", keep_tombstone=True)
        put(store, "007", WANTED["007"], metadata={"name": "007"})
        versions = {name: record.version for name, record in store.objects(BUCKET)}
        if operation == "put":  # half of it on its way to another drive
            store.pool.retire_drive(store.record.current.drives[0])
            store.pool.move_some(10, 1 << 20)
    asked = {"code": CODE, "arguments": [operation, point, *map(str, roots)]}
    assert crashes.run("run_code", **asked) == -9
    with Store.open(roots if (roots[2] / "drive.json").exists() else first) as store:
        assert contents(store) == WANTED
        assert names(store) == sorted(WANTED)
        if operation != "put":
            assert {name: record.version for name, record in store.objects(BUCKET)} == versions
        if operation == "add" and len(store.record.current.drives) == 2:
            assert not store.pool.moving
            store.pool.add_drive(roots[2])
        for name in list(WANTED)[::5]:
            put(store, name, b"again", metadata={"name": name})
        store.delete(BUCKET, "large")
        while store.pool.moving:
            store.pool.move_some(50, 1 << 30)
        wanted = {**WANTED, **dict.fromkeys(list(WANTED)[::5], b"again")}
        del wanted["large"]
        assert contents(store) == wanted
        assert all(store.head(BUCKET, name).metadata == {"name": name} for name in wanted if operation != "put")
        used = [drive.root for drive in store.drives if drive is not None]
    assert (len(used), roots[0] in used) == ((3, True) if operation == "add" else (2, False))
    with Store.open(roots) as store:  # the folder of the one that has left is told from a drive
        assert contents(store) == wanted and set(store.left_out) == set(roots) - set(used)
    assert_sound(*used)
