"""Newest entries of many names, of which a node is asked at once: their order, drives that fail, and moves."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.errors import DriveFailed
from ais_loader.wire.generated import ais_replica_pb2 as wire
from storage_node.cluster.replication.replica import newest
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, drive_of, put, store_at

NAMES = [f"n/{at:03}" for at in range(60)]


def asked(store: Store, names: list[str], *, allow_unknown: bool = True) -> list[wire.ObjectState]:
    bucket = wire.BucketRef(name=BUCKET, uuid=store.bucket(BUCKET).uuid_bytes)
    return list(newest(store, wire.NewestRequest(bucket=bucket, name=names, allow_unknown=allow_unknown)).object)


def test_names_are_answered_in_the_order_of_the_request(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        entries = {name: put(store, name, name.encode()) for name in NAMES}
        store.delete(BUCKET, NAMES[7], keep_tombstone=True)
        wanted = [NAMES[40], "missing", NAMES[7], NAMES[3], NAMES[40]]
        found = asked(store, wanted)
        assert [state.name for state in found] == wanted
        assert [state.version.counter for state in found] == [
            *(entries[NAMES[40]].counter, 0, found[2].version.counter, entries[NAMES[3]].counter),
            entries[NAMES[40]].counter,
        ]
        assert [state.is_tombstone for state in found] == [False, False, True, False, False]
        assert not found[1].HasField("version") and not any(state.unknown for state in found)
        assert asked(store, []) == []


def test_only_names_on_a_drive_that_fails_are_unknown(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        for name in NAMES:
            put(store, name, b"x")
        away = drive_of(store, NAMES[0])
        lost = {name for name in NAMES if drive_of(store, name) is away}
        assert lost and lost != set(NAMES)
        store.pool.disable_drive(away.identity.drive_uuid, "its cable is loose")
        found = asked(store, NAMES)
        assert {state.name for state in found if state.unknown} == lost
        assert all(state.HasField("version") != state.unknown for state in found)
        with pytest.raises(DriveFailed, match="cable"):
            asked(store, NAMES, allow_unknown=False)


def test_names_that_move_between_drives_are_found_at_every_step(tmp_path: Path) -> None:
    with store_at(tmp_path / "a") as store:
        versions = [put(store, name, name.encode()).version for name in NAMES]
        store.pool.add_drive(tmp_path / "b")
        steps = 0
        while True:
            found = store.replicas.newest(BUCKET, NAMES)  # those that have moved have other files
            assert [one and one.version for one in found] == versions
            if not store.pool.moving:
                break
            store.pool.move_some(4, 1 << 20)
            steps += 1
        assert steps > 3
