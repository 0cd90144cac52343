"""Quotas of buckets: never exceeded, and counted as a scan counts, whatever changes the objects."""

from __future__ import annotations

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import DriveFailed, InvalidRequest, LoaderError, ObjectNotFound, QuotaExceeded
from ais_loader.objects.put_spec import PARTS_PREFIX
from ais_loader.wire.bucket_settings import BucketSettings
from ais_loader.wire.remote import Remote
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.drive.drive import Drive
from storage_node.store.fsck.fsck import check, rebuild, repair
from storage_node.store.pool.open import DriveOptions
from storage_node.store.quotas import Use
from storage_node.store.store import Store
from tests.faults.crash_kit import assert_counted
from tests.store.store_kit import BUCKET, contents, names, put, store_at


def scan(store: Store, bucket: str = BUCKET) -> Use:
    entries = [entry for _, entry in store.objects(bucket)]
    return Use(len(entries), sum(entry.size_bytes for entry in entries))


def put_many(store: Store, objects: dict[str, bytes]) -> list[LoaderError | None]:
    uploads = [store.stage(BUCKET, name, [data], {}, grouped=True) for name, data in objects.items()]
    results = store.commit_many(uploads)
    return [result if isinstance(result, LoaderError) else None for result in results]


def test_what_would_exceed_a_quota_is_refused_and_what_frees_space_is_not(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        store.set_bucket(BUCKET, BucketSettings(quota_bytes=100))
        put(store, "a", b"x" * 60)
        with pytest.raises(QuotaExceeded, match=r"'speech' has a quota of 100 bytes and uses 60: 'b' would add 41"):
            put(store, "b", b"x" * 41)
        put(store, "b", b"x" * 40)
        with pytest.raises(QuotaExceeded):
            put(store, "b", b"x" * 41)
        assert contents(store) == {"a": b"x" * 60, "b": b"x" * 40}
        put(store, "empty", b"")
        put(store, "b", b"x" * 40)
        put(store, "b", b"x" * 39)
        put(store, "c", b"x")
        store.delete(BUCKET, "a")
        put(store, "d", b"x" * 60)
        store.delete(BUCKET, "d", keep_tombstone=True)
        put(store, "d", b"x" * 59)
        assert scan(store) == store.use(BUCKET) == Use(4, 99)
        store.set_bucket(BUCKET, BucketSettings(quota_bytes=50))  # what is there already stays
        put(store, "d", b"x" * 58)
        for name, size in (("d", 59), ("c", 2), ("e", 1)):
            with pytest.raises(QuotaExceeded):
                put(store, name, b"x" * size)
        store.set_bucket(BUCKET, BucketSettings(quota_bytes=0))
        put(store, "e", b"x" * 1000)
        assert store.use(BUCKET) is None
        assert_counted(store)


def test_a_quota_of_objects_lets_them_be_overwritten(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        store.set_bucket(BUCKET, BucketSettings(quota_objects=3))
        results = put_many(store, {f"{number}": b"x" for number in range(5)} | {"0": b"xx"})
        assert sum(result is None for result in results) == 3
        with pytest.raises(QuotaExceeded, match="a quota of 3 objects and has 3: 'new' would add one"):
            put(store, "new", b"")
        for name in names(store):
            put(store, name, b"y" * 1000)
        assert scan(store) == store.use(BUCKET) == Use(3, 3000)


def test_refused_objects_of_many_are_told_in_their_places(tmp_path: Path) -> None:
    with store_at(tmp_path / "a") as store:
        store.set_bucket(BUCKET, BucketSettings(quota_bytes=100))
        sizes = {"a": 60, "b": 50, "c": 40, "d": 1, "e": 0}
        results = put_many(store, {name: b"x" * size for name, size in sizes.items()})
        assert [type(result) for result in results] == [
            type(None),
            QuotaExceeded,
            type(None),
            QuotaExceeded,
            type(None),
        ]
        assert names(store) == ["a", "c", "e"]
        assert put_many(store, {"c": b"x" * 10, "d": b"x" * 30})[0] is None
        assert_counted(store)


def test_one_commit_may_have_a_name_twice(tmp_path: Path) -> None:
    with store_at(tmp_path / "a") as store:
        store.set_bucket(BUCKET, BucketSettings(quota_bytes=100, quota_objects=1))
        uploads = [store.stage(BUCKET, "a", [b"x" * size], {}, grouped=True) for size in (50, 90, 110, 20)]
        refused = [isinstance(result, QuotaExceeded) for result in store.commit_many(uploads)]
        assert (refused, store.use(BUCKET)) == ([False, False, True, False], Use(1, 20))
        assert_counted(store)


@pytest.mark.slow
def test_eight_threads_never_exceed_a_quota_and_leave_the_count_of_a_scan(tmp_path: Path) -> None:
    limit = Use(12, 40_000)
    roots = [tmp_path / "a", tmp_path / "b"]
    done = threading.Event()

    def work(store: Store, number: int) -> tuple[int, int]:
        draw = random.Random(number)
        stored = refused = 0
        for _ in range(150):
            name = f"{draw.randrange(20)}"
            kind = draw.random()
            try:
                if kind < 0.25:
                    with contextlib.suppress(ObjectNotFound):
                        store.delete(BUCKET, name, keep_tombstone=draw.random() < 0.5)
                elif kind < 0.75:
                    put(store, name, b"x" * draw.randrange(8_000))
                    stored += 1
                else:
                    put_many(store, {f"{draw.randrange(20)}": b"x" * draw.randrange(6_000) for _ in range(4)})
            except QuotaExceeded:
                refused += 1
        return stored, refused

    def watch(store: Store) -> None:
        while not done.wait(0.001):
            used = store.use(BUCKET)
            assert used is not None and used.objects <= limit.objects and used.size_bytes <= limit.size_bytes

    with store_at(*roots) as store:
        put(store, "0", b"x")
        store.set_bucket(BUCKET, BucketSettings(quota_bytes=limit.size_bytes, quota_objects=limit.objects))
        with ThreadPoolExecutor(9) as pool:
            watching = pool.submit(watch, store)
            outcomes = [one.result(180) for one in [pool.submit(work, store, number) for number in range(8)]]
            done.set()
            watching.result(180)
        assert all(map(all, outcomes))
        assert_counted(store)
        used = store.use(BUCKET)
    with store_at(*roots) as store:
        assert store.use(BUCKET) == used
        assert_counted(store)
    assert check(roots).healthy


def test_concurrent_puts_of_new_objects_fill_a_quota_exactly(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        store.set_bucket(BUCKET, BucketSettings(quota_objects=50))
        refused: list[str] = []

        def fill(thread: int) -> None:
            for number in range(12):
                try:
                    put(store, f"{thread}/{number}", b"x")
                except QuotaExceeded:
                    refused.append(f"{thread}/{number}")

        threads = [threading.Thread(target=fill, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
        assert (scan(store).objects, len(refused)) == (50, 8 * 12 - 50)


@pytest.mark.slow
def test_a_quota_that_is_set_while_objects_change_begins_with_the_right_count(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        put_many(store, {f"old/{number}": b"x" * 100 for number in range(2_000)})
        stop = threading.Event()

        def change(thread: int) -> None:
            draw = random.Random(thread)
            while not stop.is_set():
                name = f"old/{draw.randrange(2_000)}"
                if draw.random() < 0.5:
                    put(store, name, b"x" * draw.randrange(200))
                else:
                    store.delete_many(BUCKET, [name])

        threads = [threading.Thread(target=change, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                store.set_bucket(BUCKET, BucketSettings(quota_bytes=1 << 30))
                store.set_bucket(BUCKET, BucketSettings(quota_bytes=0))
            store.set_bucket(BUCKET, BucketSettings(quota_bytes=1 << 30))
        finally:
            stop.set()
            for thread in threads:
                thread.join(180)
        assert_counted(store)


def test_hidden_objects_retained_versions_and_moves_do_not_count(tmp_path: Path) -> None:
    roots = [tmp_path / "a"]
    with store_at(*roots) as store:
        store.set_bucket(BUCKET, BucketSettings(quota_bytes=1000, quota_objects=10))
        put(store, f"{PARTS_PREFIX}{'0' * 32}/00001", b"x" * 5_000)
        put_many(store, {f"{number}": b"x" * 100 for number in range(10)})
        store.snapshots.create(BUCKET, "s")
        put(store, "0", b"y" * 100)
        store.delete(BUCKET, "1")
        assert_counted(store)
        store.snapshots.delete(BUCKET, "s")
        assert store.use(BUCKET) == Use(9, 900)
        put(store, "1", b"z" * 100)
        for drive in store.drive_set.live():
            drive.reap(everything=True)
            drive.note_sparse_segments()
            drive.compact_segments()
        store.pool.add_drive(tmp_path / "b")  # a full bucket moves all the same
        put(store, "2", b"y" * 100)
        while store.pool.moving:
            assert not store.pool.move_some().problem
        assert store.use(BUCKET) == Use(10, 1000)
        uuid = store.bucket(BUCKET).uuid_bytes
        assert all(list(drive.scan(uuid, "", "")) for drive in store.drive_set.live())
        assert_counted(store)
        with pytest.raises(QuotaExceeded):
            put(store, "new", b"x")
        store.pool.retire_drive(store.drive_set.live()[0].identity.drive_uuid)
        while store.pool.moving:
            assert not store.pool.move_some().problem
        assert (len(store.drive_set.live()), store.use(BUCKET)) == (1, Use(10, 1000))
        assert_counted(store)


def test_a_remote_bucket_has_no_quota_and_a_bucket_with_one_is_not_made_remote(tmp_path: Path) -> None:
    place = Remote.of((tmp_path / "place").as_uri())
    with store_at(tmp_path / "a") as store:
        with pytest.raises(InvalidRequest, match="a remote bucket has no quota"):
            store.create_bucket("remote", BucketSettings(remote=place, quota_bytes=5))
        store.set_bucket(BUCKET, BucketSettings(quota_objects=5))
        with pytest.raises(InvalidRequest, match="a remote bucket has no quota"):
            store.set_bucket(BUCKET, BucketSettings(remote=place))
        assert sorted(store.buckets()) == [BUCKET]
        assert store.bucket(BUCKET).remote is None


def test_a_quota_that_was_removed_is_not_counted_any_more(tmp_path: Path) -> None:
    with store_at(tmp_path / "a") as store:
        store.set_bucket(BUCKET, BucketSettings(quota_objects=5))
        store.set_bucket(BUCKET, BucketSettings(quota_objects=0))
        assert not list(store.drive_set.live()[0].catalog.scan(fmt.USAGE_PREFIX))


def test_a_deleted_bucket_leaves_no_count(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        store.create_bucket("b", BucketSettings(quota_objects=5))
        put(store, "x", b"1", "b")
        store.delete_bucket("b", force=True)
        assert not any(list(drive.catalog.scan(fmt.USAGE_PREFIX)) for drive in store.drive_set.live())
        store.create_bucket("b", BucketSettings(quota_objects=1))
        put(store, "x", b"1", "b")
        assert_counted(store)


def test_a_drive_that_is_away_does_not_count_and_its_count_is_right_when_it_is_back(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b", tmp_path / "c") as store:
        put_many(store, {f"{number}": b"x" for number in range(30)})
        uuid = store.drive_set.live()[0].identity.drive_uuid
        store.pool.disable_drive(uuid, "a test")
        store.set_bucket(BUCKET, BucketSettings(quota_objects=100))
        away = store.use(BUCKET)
        store.pool.enable_drive(uuid)
        assert away is not None and 0 < away.objects < 30
        assert store.use(BUCKET) == Use(30, 30)
        store.pool.disable_drive(uuid, "a test")
        assert store.use(BUCKET) == Use(30, 30)  # what it had is known now
        store.pool.forget_drive(uuid)
        assert store.use(BUCKET) == away


def spoil(root: Path) -> None:
    """Change the first part of a count."""
    catalog = Catalog(root / "catalog", writable=True)
    key, value = next(pair for pair in catalog.scan(fmt.USAGE_PREFIX) if pair[1])
    batch = WriteBatch(raw_mode=True)
    batch.put(key, bytes([value[0] + 3]) + value[1:])
    catalog.write(batch, sync=True)
    catalog.close()


def test_the_doctor_finds_a_wrong_count_and_corrects_it(tmp_path: Path) -> None:
    root = tmp_path / "a"
    with store_at(root) as store:
        store.set_bucket(BUCKET, BucketSettings(quota_objects=5))
        put_many(store, {"a": b"12", "b": b"345"})
    assert check([root]).healthy
    spoil(root)
    [finding] = check([root]).warnings
    assert (finding.kind, finding.bucket) == ("wrong-count", BUCKET)
    assert "says 5 objects and 5 bytes; there are 2 and 5" in finding.message
    [finding] = repair([root]).of("wrong-count")
    assert finding.repaired == "counted anew"
    assert check([root]).healthy
    with store_at(root) as store:
        assert store.use(BUCKET) == Use(2, 5)


def test_a_rebuilt_catalog_is_counted_anew(tmp_path: Path) -> None:
    root = tmp_path / "a"
    with store_at(root) as store:
        store.set_bucket(BUCKET, BucketSettings(quota_objects=5))
        put_many(store, {"a": b"12", "b": b"345"})
    rebuild([root], all_drives=True)
    with store_at(root) as store:
        assert store.use(BUCKET) == Use(2, 5)
        assert_counted(store)


def test_a_failed_write_leaves_no_wrong_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "a"
    with store_at(root) as store:
        store.set_bucket(BUCKET, BucketSettings(quota_objects=3))
        put(store, "a", b"1")
        [drive] = store.drive_set.live()
        write = drive.catalog.write

        def fails_once(batch: WriteBatch, *, sync: bool, is_commit: bool = True) -> None:
            """Report an error for a commit that has been applied, as RocksDB may when its log is replayed."""
            write(batch, sync=sync, is_commit=is_commit)
            if is_commit:
                monkeypatch.undo()
                raise DriveFailed("a test")

        monkeypatch.setattr(drive.catalog, "write", fails_once)
        with pytest.raises(DriveFailed):
            put(store, "b", b"22")
        for name in ("c", "d"):  # the grant of the failed one has ended
            put(store, name, b"333")
    with store_at(root) as store:
        assert store.use(BUCKET) == scan(store) == Use(4, 9)
        assert_counted(store)


def test_a_drive_that_comes_while_a_quota_is_set_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_at(tmp_path / "a") as store:
        put_many(store, {f"{number}": b"x" for number in range(30)})
        opened = DriveOptions.open

        def open_and_set(*arguments: Any) -> Drive:
            """Set a quota after the new drive has been opened, and before it is in the store."""
            drive = opened(*arguments)
            store.set_bucket(BUCKET, BucketSettings(quota_objects=30))
            return drive

        monkeypatch.setattr(DriveOptions, "open", open_and_set)
        store.pool.add_drive(tmp_path / "b")
        while store.pool.moving:
            assert not store.pool.move_some().problem
        assert store.use(BUCKET) == Use(30, 30)
        assert_counted(store)
        with pytest.raises(QuotaExceeded):
            put(store, "new", b"x")
