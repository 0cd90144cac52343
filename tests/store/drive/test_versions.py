"""Copies with versions that another node gave: the newest one counts, in whatever order they come."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import DriveFailed, InvalidName, LoaderError
from storage_node.store.drive.version_clock import RESERVED_MS, at_ms
from storage_node.store.format import BLOCK_BYTES, CLOCK_KEY, CatalogEntry, Version
from storage_node.store.fsck import fsck as doctor
from storage_node.store.replica_state import StoredVersion
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, object_files, put, read, store_at

V = Version


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with store_at(tmp_path / "drive") as opened:
        yield opened


def put_copy(
    store: Store, name: str, data: bytes, version: Version, metadata: dict[str, str] | None = None
) -> CatalogEntry:
    with store.begin_put(BUCKET, name, metadata, version=version) as upload:
        upload.write(data)
        return upload.commit()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_of_copies_that_come_in_any_order_the_newest_is_left(store: Store, order: tuple[int, ...]) -> None:
    versions = [V(1, 9, 2), V(1, 10, 1), V(2, 1, 1)]
    for seen, number in enumerate(order, 1):
        record = put_copy(store, "a", b"%d" % number, versions[number])
        newest = max(order[:seen])
        assert (record.version, read(store, "a")) == (versions[newest], b"%d" % newest)


def test_a_copy_that_is_there_already_changes_nothing_and_is_no_error(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        first = put_copy(store, "a", b"first", V(3, 5, 1), {"k": "v"})
        again = put_copy(store, "a", b"never", V(3, 5, 1))
        older = put_copy(store, "a", b"never", V(3, 4, 9))
        assert again == older == first
        assert (read(store, "a"), store.head(BUCKET, "a").metadata) == (b"first", {"k": "v"})
        assert len(object_files(tmp_path / "drive")) == 1
    assert_sound(tmp_path / "drive")


def test_a_version_assigned_after_staging_counts_with_its_time(store: Store) -> None:
    with store.begin_put(BUCKET, "a") as upload:
        upload.write(b"x")
        upload.assign(V(4, 4, 4), modified_ns=123)
        record = upload.commit()
    assert (record.version, record.modified_ns) == (V(4, 4, 4), 123)


def test_many_copies_in_one_commit_are_each_new_or_not(store: Store) -> None:
    put_copy(store, "newer", b"kept", V(2, 8, 1))
    put_copy(store, "older", b"replaced", V(2, 2, 1))
    uploads = []
    for name, data, version in [
        ("newer", b"no", V(2, 7, 3)),
        ("older", b"yes", V(2, 7, 3)),
        ("none", b"new", V(2, 7, 3)),
        ("twice", b"second", V(2, 9, 1)),
        ("twice", b"first", V(2, 8, 1)),
    ]:
        upload = store.begin_put(BUCKET, name, version=version)
        upload.write(data)
        uploads.append(upload)
    results = store.commit_many(uploads)
    assert not any(isinstance(result, LoaderError) for result in results)
    assert [result.version for result in results] == [V(2, 8, 1), V(2, 7, 3), V(2, 7, 3), V(2, 9, 1), V(2, 9, 1)]  # type: ignore[union-attr]
    assert contents(store) == {"newer": b"kept", "older": b"yes", "none": b"new", "twice": b"second"}


def test_a_put_without_a_version_goes_above_a_copy_of_a_cluster(store: Store) -> None:
    put_copy(store, "a", b"copy", V(9, 1 << 40, 3))
    record = put(store, "a", b"local")
    assert record.version > V(9, 1 << 40, 3)
    assert read(store, "a") == b"local"


def test_two_objects_with_one_version_have_files_and_blocks_of_their_own(tmp_path: Path) -> None:
    data = {name: os.urandom(3 * BLOCK_BYTES) for name in ("a", "b")}
    with store_at(tmp_path / "drive") as store:
        records = [put_copy(store, name, data[name], V(5, 77, 2)) for name in data]
        assert records[0].generation != records[1].generation
        for name in data:
            assert read(store, name, start=BLOCK_BYTES, length=5, verify=True) == data[name][BLOCK_BYTES:][:5]
        put_copy(store, "a", b"small", V(5, 78, 2))
        drive_of(store).reap(everything=True)
        assert read(store, "b", start=1, verify=True) == data["b"][1:]
    assert_sound(tmp_path / "drive")
    with store_at(tmp_path / "drive") as store:
        assert contents(store) == {"a": b"small", "b": data["b"]}


def test_copies_keep_their_versions_over_a_rebuild_and_writes_go_on_above_them(tmp_path: Path) -> None:
    given = {"a": V(40, 500_000, 2), "b": V(41, 3, 1)}
    with store_at(tmp_path / "drive") as store:
        for name, version in given.items():
            put_copy(store, name, name.encode(), version)
    doctor.rebuild([tmp_path / "drive"], all_drives=True)
    assert_sound(tmp_path / "drive")
    with store_at(tmp_path / "drive") as store:
        assert {found.name: found.version for found in store.replicas.versions(BUCKET)} == given
        for name, version in given.items():
            assert put(store, name, b"later").version > version
        assert store.replicas.next_version(1, given.values()) > max(given.values())


def test_versions_are_listed_in_name_order_over_all_drives_with_tombstones(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        expected = []
        for number in range(30):
            name = f"n{number:02}"
            record = put_copy(store, name, b"x" * number, V(1, 100 + number, 1))
            deleted = V(1, 200 + number, 2)
            if number % 3 == 0:
                store.delete(BUCKET, name, deleted, keep_tombstone=True)
                expected.append(StoredVersion(name, deleted, True, 0, 0))
            else:
                expected.append(StoredVersion(name, record.version, False, number, record.checksum))
        assert list(store.replicas.versions(BUCKET)) == expected
        paged, after = [], ""
        while page := list(store.replicas.versions(BUCKET, after, 7)):
            assert len(page) <= 7
            paged += page
            after = page[-1].name
        assert paged == expected
        newest = store.replicas.newest(BUCKET, ["n00", "n01", "nothing"])
        assert [record and (record.is_tombstone, record.version) for record in newest] == [
            (True, V(1, 200, 2)),
            (False, V(1, 101, 1)),
            None,
        ]
        with pytest.raises(InvalidName):
            store.replicas.newest(BUCKET, ["a//b"])


def test_a_version_for_a_write_is_above_all_seen_and_given_once_even_after_a_restart(tmp_path: Path) -> None:
    roots = tmp_path / "a", tmp_path / "b"
    given: list[Version] = []
    for _ in range(3):
        with store_at(*roots) as store:
            for _ in range(5):
                given.append(store.replicas.next_version(3, []))
            seen = V(7, given[-1].counter + 100_000, 9)
            given.append(store.replicas.next_version(3, [V(1, 1, 1), seen]))
            assert given[-1] > seen and (given[-1].epoch, given[-1].node) == (7, 3)
            clock = store.replicas.clock + 1000
            given.append(store.replicas.next_version(3, [], clock))
            assert given[-1].counter > clock
    counters = [version.counter for version in given]
    assert counters == sorted(set(counters))


def test_threads_that_draw_versions_at_once_never_get_the_same(tmp_path: Path) -> None:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        drawn: list[Version] = []

        def draw() -> None:
            drawn.extend([store.replicas.next_version(1, [V(1, 5, 2)]) for _ in range(200)])

        threads = [threading.Thread(target=draw) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
        assert len(set(drawn)) == len(drawn) == 800


def test_writers_of_copies_in_many_threads_end_with_the_highest_version(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:

        def write(node: int) -> None:
            for counter in range(40, 0, -1) if node % 2 else range(1, 41):
                put_copy(store, "same", b"%d.%d" % (counter, node), V(1, counter, node))

        threads = [threading.Thread(target=write, args=(node,)) for node in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
        assert (store.head(BUCKET, "same").version, read(store, "same")) == (V(1, 40, 4), b"40.4")
        drive_of(store).reap(everything=True)
        assert len(object_files(tmp_path / "drive")) == 1
    assert_sound(tmp_path / "drive")


def test_a_drive_that_cannot_write_keeps_no_version_from_being_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DriveFailed("Input/output error")

    with Store.open([tmp_path / "one", tmp_path / "two"], mode="a") as store:
        broken, well = (drive for drive in store.drives if drive is not None)
        before = store.replicas.next_version(1, [V(1, 50, 1)])
        with monkeypatch.context() as patch:
            patch.setattr(broken.catalog, "write", refuse)
            far = V(1, before.counter + at_ms(RESERVED_MS), 2)  # more than has been reserved
            after = store.replicas.next_version(1, [far])
            assert after > far
            limit = well.catalog.get(CLOCK_KEY)
            assert limit is not None and int.from_bytes(limit, "big") > after.counter, "it heard of the number"
            patch.setattr(well.catalog, "write", refuse)
            with pytest.raises(DriveFailed):
                store.replicas.next_version(1, [V(1, after.counter + at_ms(RESERVED_MS), 2)])
        assert store.replicas.next_version(1, []) > after
