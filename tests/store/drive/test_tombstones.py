"""Deletions that leave a version behind: gone for every reader, and above every copy that is older."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import errors
from ais_loader.errors import ObjectNotFound, VersionConflict
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.reserved import REMOTE_ETAG
from storage_node.store.drive.preconditions import memory_of
from storage_node.store.format import BLOCK_BYTES, Version
from storage_node.store.fsck import fsck as doctor
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.drive.test_versions import put_copy
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, names, object_files, put, read, store_at

V = Version


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with store_at(tmp_path / "drive") as opened:
        yield opened


def bury(store: Store, name: str, version: Version | None = None) -> Version:
    record = store.delete(BUCKET, name, version, keep_tombstone=True)
    assert record is not None
    return record.version


def test_a_tombstone_is_not_there_for_readers(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1")
        put(store, "b", b"2")
        bury(store, "a")
        for look in (lambda: read(store, "a"), lambda: store.head(BUCKET, "a"), lambda: store.delete(BUCKET, "a")):
            with pytest.raises(ObjectNotFound):
                look()
        assert names(store) == ["b"]
        assert names(store, "a") == []
        assert [found.name for found in store.replicas.tombstones(BUCKET)] == ["a"]
        with Store.open([tmp_path / "drive"], mode="r") as reader:
            assert contents(reader) == {"b": b"2"}
            assert [(found.name, found.is_tombstone) for found in reader.replicas.versions(BUCKET)] == [
                ("a", True),
                ("b", False),
            ]
    assert_sound(tmp_path / "drive")
    assert len(object_files(tmp_path / "drive")) == 1


def test_a_tombstone_is_not_found_in_a_batch_also_when_it_was_read_before(store: Store) -> None:
    put(store, "a", b"1")
    put(store, "b", b"2")
    store.head(BUCKET, "a")  # known to the cache of entries
    bury(store, "a")
    assert batch(store, ["a", "b", "a"]) == [(pb.NOT_FOUND, b""), (pb.OK, b"2"), (pb.NOT_FOUND, b"")]


def test_a_deletion_without_a_version_goes_above_the_object_and_needs_one(store: Store) -> None:
    record = put(store, "a", b"1")
    first = bury(store, "a")
    assert first > record.version
    for name in ("a", "never"):
        with pytest.raises(ObjectNotFound):
            store.delete(BUCKET, name, keep_tombstone=True)
    assert [(found.name, found.version) for found in store.replicas.tombstones(BUCKET)] == [("a", first)]


def test_a_deletion_with_a_version_stands_where_nothing_is(store: Store) -> None:
    assert bury(store, "a", V(5, 5, 5)) == V(5, 5, 5)
    assert bury(store, "a", V(5, 4, 9)) == V(5, 5, 5)
    assert bury(store, "a", V(5, 6, 1)) == V(5, 6, 1)


def test_an_older_copy_loses_against_a_tombstone_and_a_newer_one_replaces_it(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        bury(store, "a", V(5, 5, 5))
        late = put_copy(store, "a", b"late", V(5, 5, 4))
        assert (late.is_tombstone, late.version) == (True, V(5, 5, 5))
        with pytest.raises(ObjectNotFound):
            read(store, "a")
        put_copy(store, "a", b"newer", V(5, 6, 1))
        assert contents(store) == {"a": b"newer"}
        assert list(store.replicas.tombstones(BUCKET)) == []
        kept = store.delete(BUCKET, "a", V(5, 5, 9), keep_tombstone=True)
        assert kept is not None and kept.version == V(5, 6, 1)
        assert read(store, "a") == b"newer"
    assert len(object_files(tmp_path / "drive")) == 1
    assert_sound(tmp_path / "drive")


def test_a_put_without_a_version_goes_above_a_tombstone(store: Store) -> None:
    bury(store, "a", V(8, 1 << 33, 2))
    assert put(store, "a", b"again").version > V(8, 1 << 33, 2)
    assert contents(store) == {"a": b"again"}


def test_a_tombstone_is_forgotten_by_its_version_and_nothing_else_is(store: Store) -> None:
    bury(store, "a", V(5, 5, 5))
    put_copy(store, "b", b"kept", V(5, 5, 5))
    assert not store.replicas.forget_tombstone(BUCKET, "a", V(5, 5, 4))
    assert not store.replicas.forget_tombstone(BUCKET, "b", V(9, 9, 9))
    assert not store.replicas.forget_tombstone(BUCKET, "never", V(9, 9, 9))
    assert store.replicas.forget_tombstone(BUCKET, "a", V(5, 5, 5))
    assert [found.name for found in store.replicas.versions(BUCKET)] == ["b"]
    assert read(store, "b") == b"kept"


def test_a_copy_that_has_moved_away_goes_without_a_tombstone_unless_it_is_newer(store: Store) -> None:
    put_copy(store, "a", b"1", V(5, 5, 5))
    left = store.delete(BUCKET, "a", V(5, 4, 5))
    assert left is not None and left.version == V(5, 5, 5)
    assert store.delete(BUCKET, "a", V(5, 5, 5)) is None
    assert store.delete(BUCKET, "a", V(5, 5, 5)) is None
    assert list(store.replicas.versions(BUCKET)) == []


def test_tombstones_survive_a_restart_and_a_rebuild_and_keep_old_files_dead(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put_copy(store, "a", b"dead", V(5, 5, 5))
        drive, record = store.locate(BUCKET, "a")
        copy = (root / "objects" / record.path.decode()).read_bytes()
        identity = drive.files.identity(record.path)
        bury(store, "a", V(5, 6, 1))
        put(store, "b", b"alive")
    assert identity is not None
    came_back = root / "objects" / record.path.decode()
    came_back.write_bytes(copy)  # as from a backup
    os.setxattr(came_back, "user.ais_loader", identity)
    doctor.rebuild([root], all_drives=True)
    with store_at(root) as store:
        assert contents(store) == {"b": b"alive"}
        assert [(found.name, found.version) for found in store.replicas.tombstones(BUCKET)] == [("a", V(5, 6, 1))]
    doctor.repair([root])
    assert not came_back.exists()
    with store_at(root) as store:
        assert contents(store) == {"b": b"alive"}


def test_the_doctor_counts_objects_alone(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1" * (2 * BLOCK_BYTES))
        put(store, "b", b"22")
        bury(store, "a")
        bury(store, "c", V(50, 1, 1))
        drive_of(store).reap(everything=True)
    report = doctor.check([tmp_path / "drive"], checksums=True)
    assert not report.findings
    assert [(drive.objects, drive.object_bytes, drive.files) for drive in report.drives] == [(1, 2, 1)]


def test_a_bucket_of_tombstones_is_empty_and_goes_with_them(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        for name in ("a", "b"):
            put(store, name, b"1")
            bury(store, name)
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
        assert store.delete_bucket(BUCKET) == 0
        assert list(store.drive_set.at(0).catalog.scan(b"o" + bucket_uuid)) == []
        with pytest.raises(errors.BucketNotFound):
            store.delete(BUCKET, "a", V(1, 1, 1), keep_tombstone=True)


def test_an_evicted_copy_is_not_replaced_by_an_older_one(tmp_path: Path) -> None:
    def bring(store: Store, name: str, version: Version, metadata: dict[str, str]) -> object:
        upload = store.stage(BUCKET, name, [b"%d" % version.counter], metadata)
        upload.assign(version, writes=memory_of(b"w" * 16), is_copy=True)
        return store.commit_many([upload])[0]

    with store_at(tmp_path / "drive") as store:
        bucket_uuid = store.bucket(BUCKET).uuid_bytes
        for name in ("a", "b"):
            bring(store, name, V(1, 7, 2), {REMOTE_ETAG: "e"})
        put(store, "local", b"1")
        assert store.delete_many(BUCKET, ["a"], copies_only=True) == [None]
        store.delete_many(BUCKET, ["b", "local"])
    with store_at(tmp_path / "drive") as store:
        evicted = [store.replicas.evicted_version(bucket_uuid, name) for name in ("a", "b", "local")]
        assert evicted == [V(1, 7, 2), None, None]
        assert [one.name for one in store.replicas.versions(BUCKET)] == []
        (found,) = store.replicas.versions(BUCKET, with_evicted=True)
        assert (found.name, found.version, found.is_evicted) == ("a", V(1, 7, 2), True)
        assert isinstance(bring(store, "a", V(1, 6, 3), {}), VersionConflict)
        assert names(store) == []
        bring(store, "a", V(1, 7, 2), {REMOTE_ETAG: "e"})
        assert contents(store) == {"a": b"7"}
        assert store.replicas.evicted_version(bucket_uuid, "a") is None
    assert_sound(tmp_path / "drive")
