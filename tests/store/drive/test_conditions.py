"""Writes on conditions: what has to be there is looked at under the lock of the commit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import InvalidRequest, ObjectNotFound, VersionConflict
from storage_node.store.drive.preconditions import Condition, parse_condition, parse_version
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.store import Store
from storage_node.store.write import Upload
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, put, read, store_at
from tests.table import table

ABSENT = Condition(if_absent=True)


def put_if(store: Store, name: str, data: bytes, condition: Condition, **metadata: str) -> CatalogEntry:
    return store.stage(BUCKET, name, [data], metadata, condition=condition).commit()


def at(record: CatalogEntry, write_id: bytes = b"") -> Condition:
    return Condition(if_version=record.version, write_id=write_id)


def staged(store: Store) -> list[str]:
    return [name for drive in store.drives if drive is not None for name in os.listdir(drive.root / "staging")]


def all_at_once(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=180)
        assert not thread.is_alive()


def test_an_object_is_stored_where_none_is_and_then_no_second_one(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        first = put_if(store, "a", b"first", ABSENT)
        with pytest.raises(VersionConflict, match=f"version {first.version} of 5 bytes"):
            put_if(store, "a", b"second", ABSENT)
        assert (read(store, "a"), store.head(BUCKET, "a"), staged(store)) == (b"first", first, [])
    assert_sound(tmp_path)


def test_a_version_is_replaced_once(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        first = put(store, "a", b"1")
        second = put_if(store, "a", b"2", at(first))
        for stale in (first.version, Version(7, 7, 7)):
            with pytest.raises(VersionConflict, match=f"wanted version {stale}, but there is version {second.version}"):
                put_if(store, "a", b"3", Condition(if_version=stale))
        with pytest.raises(VersionConflict, match="there is no object"):
            put_if(store, "b", b"3", at(first))
        assert (contents(store), staged(store)) == ({"a": b"2"}, [])


@pytest.mark.parametrize("tombstone", [False, True])
def test_what_was_deleted_is_absent_and_has_no_version(tmp_path: Path, tombstone: bool) -> None:
    with store_at(tmp_path) as store:
        before = put(store, "a", b"1")
        store.delete(BUCKET, "a", keep_tombstone=tombstone)
        with pytest.raises(VersionConflict):
            put_if(store, "a", b"2", at(before))
        after = put_if(store, "a", b"3", ABSENT)
        assert after.version > before.version
        assert read(store, "a") == b"3"


@pytest.mark.parametrize("tombstone", [False, True])
def test_a_version_is_deleted_or_nothing_is(tmp_path: Path, tombstone: bool) -> None:
    with store_at(tmp_path) as store:
        first = put(store, "a", b"1")
        second = put(store, "a", b"2")
        with pytest.raises(VersionConflict):
            store.delete(BUCKET, "a", keep_tombstone=tombstone, condition=at(first))
        assert read(store, "a") == b"2"
        store.delete(BUCKET, "a", keep_tombstone=tombstone, condition=at(second))
        with pytest.raises(ObjectNotFound):
            store.head(BUCKET, "a")
        with pytest.raises(VersionConflict):
            store.delete(BUCKET, "a", keep_tombstone=tombstone, condition=at(second))


def test_the_condition_is_that_of_the_commit_and_not_of_the_beginning(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        uploads = [store.stage(BUCKET, "a", [bytes([number])], {}, condition=ABSENT) for number in range(3)]
        results = store.commit_many([uploads[1], *uploads[::2]])
        assert [type(result) for result in results] == [CatalogEntry, VersionConflict, VersionConflict]
        assert (read(store, "a"), staged(store)) == (b"\1", [])


def test_in_a_group_the_others_are_committed(tmp_path: Path) -> None:
    with store_at(tmp_path / "1", tmp_path / "2") as store:
        names = [f"{number:02d}" for number in range(20)]
        for name in names[::3]:
            put(store, name, b"old")
        # Staged before those were there.
        uploads = [store.begin_put(BUCKET, name) for name in names]
        for upload in uploads:
            upload.require(ABSENT)
            upload.write(b"new")
        results = store.commit_many(uploads)
        assert [isinstance(result, VersionConflict) for result in results] == [at % 3 == 0 for at in range(20)]
        assert contents(store) == {name: b"old" if at % 3 == 0 else b"new" for at, name in enumerate(names)}
        assert staged(store) == []
    assert_sound(tmp_path / "1", tmp_path / "2")


def test_of_many_writers_of_an_absent_object_one_wins(tmp_path: Path) -> None:
    won: list[int] = []
    lost: list[int] = []
    with store_at(tmp_path) as store:

        def write(number: int) -> None:
            try:
                put_if(store, "a", str(number).encode(), ABSENT)
                won.append(number)
            except VersionConflict:
                lost.append(number)

        all_at_once(16, write)
        assert (len(won), len(lost)) == (1, 15)
        assert (read(store, "a"), staged(store)) == (str(won[0]).encode(), [])


def test_counters_that_are_read_and_replaced_lose_nothing(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put(store, "a", b"0")

        def add(_: int) -> None:
            done = 0
            while done < 10:
                before = store.head(BUCKET, "a")
                try:
                    value = int(read(store, "a", version=str(before.version)))
                    put_if(store, "a", str(value + 1).encode(), at(before))
                except (VersionConflict, ObjectNotFound):
                    continue
                done += 1

        all_at_once(6, add)
        assert read(store, "a") == b"60"


def test_a_write_that_is_tried_again_knows_itself(tmp_path: Path) -> None:
    mine, other = Condition(if_absent=True, write_id=b"m" * 16), Condition(if_absent=True, write_id=b"o" * 16)
    with store_at(tmp_path) as store:
        stored = put_if(store, "a", b"same", mine, key="value")
        assert put_if(store, "a", b"same", mine, key="value") == stored
        with pytest.raises(VersionConflict):
            put_if(store, "a", b"same", other)
        assert (stored.metadata, store.head(BUCKET, "a").metadata) == ({"key": "value"}, {"key": "value"})
    with store_at(tmp_path) as store:  # what is on the drive tells, too
        assert put_if(store, "a", b"same", mine, key="value") == stored
        with pytest.raises(VersionConflict):
            put_if(store, "a", b"same", other)
        assert staged(store) == []


def test_a_write_knows_itself_when_it_has_been_replaced_since(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        before = put(store, "a", b"0")
        first = put_if(store, "a", b"1", at(before, b"m" * 16))
        put_if(store, "a", b"2", at(first, b"o" * 16))
        assert put_if(store, "a", b"1", at(before, b"m" * 16)).version == first.version
        assert read(store, "a") == b"2"


def test_nothing_is_staged_for_a_write_that_is_too_late_when_it_begins(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put(store, "a", b"1")

        def endless() -> bytes:
            raise AssertionError("no byte is asked for")

        with store.begin_put(BUCKET, "a") as upload, pytest.raises(VersionConflict):
            upload.require(ABSENT)
            upload.settled()
        with pytest.raises(VersionConflict):
            store.stage(BUCKET, "a", iter(endless, b""), {}, condition=ABSENT)
        assert staged(store) == []


def test_nothing_newer_than_was_seen_is_replaced(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        seen = put(store, "a", b"1").version

        def copy(version: Version, not_above: Version) -> Upload:
            upload = store.stage(BUCKET, "a", [b"copy"], {}, condition=Condition(not_above=not_above))
            upload.assign(version)
            return upload

        newer = Version(seen.epoch, seen.counter + 5, 3)
        assert copy(newer, seen).commit().version == newer
        with pytest.raises(VersionConflict, match="replaced meanwhile"):
            copy(Version(seen.epoch, seen.counter + 9, 3), seen).commit()
        with pytest.raises(VersionConflict):
            store.delete(
                BUCKET,
                "a",
                Version(seen.epoch, seen.counter + 9, 3),
                keep_tombstone=True,
                condition=Condition(not_above=seen),
            )
        assert (store.head(BUCKET, "a").version, read(store, "a")) == (newer, b"copy")


def test_an_object_keeps_the_id_of_its_write_when_it_moves_to_another_drive(tmp_path: Path) -> None:
    mine = Condition(if_absent=True, write_id=b"m" * 16)
    with store_at(tmp_path / "1") as store:
        for number in range(12):
            put_if(store, f"{number}", b"data", mine)
        store.pool.add_drive(tmp_path / "2")
        while store.pool.moving:
            store.pool.move_some()
        moved = [str(number) for number in range(12) if drive_of(store, str(number)).root == tmp_path / "2"]
        assert moved
        for name in moved:
            assert put_if(store, name, b"data", mine) == store.head(BUCKET, name)


@table("text", ["", "1", "1.2", "1.2.x", "1.2.3.4", "-1.2.3", "1.٣.3"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_version(text)


def test_a_request_requires_one_thing_at_most() -> None:
    assert parse_condition(False, "") is None
    assert parse_condition(False, "3.4.5") == Condition(if_version=Version(3, 4, 5))
    assert parse_condition(True, "", b"x" * 16) == Condition(if_absent=True, write_id=b"x" * 16)
    for wrong in ((True, "3.4.5", b""), (True, "", b"short")):
        with pytest.raises(InvalidRequest):
            parse_condition(*wrong)
