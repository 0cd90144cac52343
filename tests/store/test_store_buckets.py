"""Buckets: made once, deleted whole, and never left half-deleted by a failing drive or a put that comes late."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from ais_loader.errors import (
    BucketExists,
    BucketNotEmpty,
    BucketNotFound,
    DriveFailed,
    DriveFull,
    InvalidRequest,
    StoreReadOnly,
)
from ais_loader.wire.bucket_settings import BucketSettings
from storage_node.store import store_record as records
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, assert_sound, contents, object_files, put, store_at


def test_a_bucket_is_made_once_and_survives_a_restart(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive", bucket=None) as store:
        made = store.create_bucket("b")
        with pytest.raises(BucketExists, match="exist_ok=True"):
            store.create_bucket("b")
        assert store.create_bucket("b", exist_ok=True) == made
        with pytest.raises(InvalidRequest, match="one copy"):
            store.create_bucket("c", BucketSettings(copies=2))
    with Store.open([tmp_path / "drive"]) as store:
        assert store.buckets() == {"b": made}


def test_what_a_bucket_wants_survives_a_restart(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root, bucket=None) as store:
        plain = store.create_bucket("plain")
        store.create_bucket("b", BucketSettings(quota_objects=7))
        store.snapshots.create("b", "s")
    with store_at(root, bucket=None) as store:
        assert (store.bucket("b").quota_objects, store.bucket("plain")) == (7, plain)
        assert store.bucket("b@s").cut is not None
        assert not store.set_bucket("b", BucketSettings(quota_objects=0)).quota_objects
        for wrong in ({"copies": 2}, {"min_copies": 2}):
            with pytest.raises(InvalidRequest):
                store.set_bucket("b", BucketSettings(quota_objects=7, **wrong))
    with store_at(root, bucket=None) as store:
        assert not store.bucket("b").quota_objects


def test_everything_in_an_unknown_bucket_is_bucket_not_found(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive", bucket=None) as store:
        for action in (
            lambda: put(store, "a", b""),
            lambda: store.head(BUCKET, "a"),
            lambda: store.delete(BUCKET, "a"),
            lambda: list(store.objects(BUCKET)),
            lambda: store.delete_bucket(BUCKET),
            lambda: store.bucket(BUCKET),
        ):
            with pytest.raises(BucketNotFound, match="'speech'"):
                action()


def test_only_an_empty_bucket_is_deleted_without_force(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        for number in range(30):
            put(store, f"{number}", b"x")
        with pytest.raises(BucketNotEmpty, match="force=True"):
            store.delete_bucket(BUCKET)
        assert len(contents(store)) == 30
        assert store.delete_bucket(BUCKET, force=True) == 30
        assert store.buckets() == {} and store.record.current.purging == ()
        store.create_bucket(BUCKET)
        assert contents(store) == {}
        assert store.delete_bucket(BUCKET) == 0
    assert not object_files(roots[0]) and not object_files(roots[1])
    assert_sound(*roots)


def test_objects_of_one_bucket_are_not_those_of_another(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        store.create_bucket("other")
        put(store, "a", b"1")
        put(store, "a", b"2", bucket="other")
        assert store.delete_bucket("other", force=True) == 1
        assert contents(store) == {"a": b"1"}


def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        for number in range(20):
            put(store, f"{number}", b"x")
        store.record.change(lambda record: record.without_bucket(BUCKET))
    assert object_files(roots[0]) and object_files(roots[1])
    with Store.open(roots) as store:
        assert store.record.current.purging == () and store.buckets() == {}
    assert not object_files(roots[0]) and not object_files(roots[1])
    assert_sound(*roots)


def test_an_upload_that_is_committed_after_its_bucket_was_deleted_fails_and_leaves_nothing(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        upload = store.stage(BUCKET, "late", [b"x"], {})
        store.delete_bucket(BUCKET)
        store.create_bucket(BUCKET)
        with pytest.raises(BucketNotFound, match="deleted meanwhile"):
            upload.commit()
        put(store, "a", b"1")
        assert contents(store) == {"a": b"1"}
    assert_sound(tmp_path / "drive")


def test_no_object_outlives_a_bucket_that_is_deleted_while_others_put(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive", bucket=None) as store:
        for _ in range(15):
            store.create_bucket(BUCKET)
            start = threading.Barrier(4)

            def write(name: str, start: threading.Barrier = start) -> None:
                start.wait(timeout=180)
                try:
                    for number in range(20):
                        put(store, f"{name}{number}", b"x")
                except BucketNotFound:
                    pass

            threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
            for thread in threads:
                thread.start()
            start.wait(timeout=180)
            store.delete_bucket(BUCKET, force=True)
            for thread in threads:
                thread.join(timeout=180)
    assert_sound(tmp_path / "drive")
    assert not object_files(tmp_path / "drive")


def test_an_empty_bucket_with_a_put_under_way_is_either_kept_or_gone_whole(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive", bucket=None) as store:
        for _ in range(25):
            store.create_bucket(BUCKET, exist_ok=True)
            start = threading.Barrier(2)
            outcome: list[str] = []

            def write(start: threading.Barrier = start, outcome: list[str] = outcome) -> None:
                start.wait(timeout=180)
                try:
                    put(store, "a", b"x")
                    outcome.append("put")
                except BucketNotFound:
                    outcome.append("refused")

            thread = threading.Thread(target=write)
            thread.start()
            start.wait(timeout=180)
            try:
                store.delete_bucket(BUCKET)
                deleted = True
            except BucketNotEmpty:
                deleted = False
            thread.join(timeout=180)
            # An acknowledged put into a bucket that was deleted as empty would be a lost write.
            assert outcome == (["refused"] if deleted else ["put"])
            if not deleted:
                assert contents(store) == {"a": b"x"}
                store.delete(BUCKET, "a")


def test_a_reader_changes_no_bucket_but_finds_one_that_exists(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        writer.create_bucket("later")
        assert reader.create_bucket("later", exist_ok=True) == writer.bucket("later")
        for action in (lambda: reader.create_bucket("new"), lambda: reader.delete_bucket(BUCKET)):
            with pytest.raises(StoreReadOnly):
                action()


def test_buckets_need_a_majority_of_the_drives_and_leave_no_trace_without(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots):
        pass
    before = (roots[0] / "record.json").read_bytes()
    with Store.open(roots[:1]) as store:
        for action in (lambda: store.create_bucket("new"), lambda: store.delete_bucket(BUCKET, force=True)):
            with pytest.raises(DriveFailed, match="only 1 of 2 drives can be written"):
                action()
    assert (roots[0] / "record.json").read_bytes() == before


def test_a_bucket_that_a_minority_has_written_never_hides_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    write, broken = records.write, roots[1]

    def write_unless_broken(folder: Path, record: records.StoreRecord) -> None:
        if folder == broken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(folder, record)

    with store_at(*roots) as store:
        monkeypatch.setattr(records, "write", write_unless_broken)
        with pytest.raises(DriveFull, match=str(broken)):
            store.create_bucket("failed")
        assert "failed" not in store.buckets()
        monkeypatch.setattr(records, "write", write)
        store.create_bucket("next")
    with Store.open(roots) as store:
        assert sorted(store.buckets()) == ["next", BUCKET]


def test_a_bucket_deleted_while_a_drive_is_away_is_gone_from_it_when_it_is_back(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in "abc"]
    with store_at(*roots) as store:
        for number in range(30):
            put(store, f"{number}", b"x")
    assert object_files(roots[2])
    with Store.open(roots[:2]) as store:
        assert 0 < store.delete_bucket(BUCKET, force=True) < 30
        assert len(store.record.current.purging) == 1
        store.create_bucket(BUCKET)
    with Store.open(roots) as store:
        assert store.record.current.purging == () and contents(store) == {}
    assert not any(object_files(root) for root in roots)
    assert_sound(*roots)
