"""Segments that were written before there was a copy of their index."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.errors import StoreFormatError
from storage_node.store.fsck import fsck as doctor
from storage_node.store.store import Store
from tests.store.segment_kit import (
    LEFT,
    as_first_format,
    assert_holds,
    make,
    put_group,
    rebuilt,
    with_record_of_format_7,
)
from tests.store.snapshot_kit import reap
from tests.store.store_kit import BUCKET, assert_sound, contents, kinds, object_files, store_at


def test_segments_without_a_copy_are_read_emptied_and_rebuilt_as_before(tmp_path: Path) -> None:
    segment, now, seen = make(tmp_path, reaped=False)
    newer = next(file for file in object_files(tmp_path) if file != segment)
    with_record_of_format_7(tmp_path)
    for file in (segment, newer):
        as_first_format(file)
    with Store.open([tmp_path], mode="r") as reader:
        assert contents(reader) == now and reader.record.segments == 1
    assert kinds(doctor.check([tmp_path], checksums=True)) == []
    rebuilt(tmp_path)
    assert_holds(tmp_path, now, seen)
    with store_at(tmp_path) as store:
        assert store.record.segments == 2
        store.delete(BUCKET, LEFT[-1])
        put_group(store, {"a": b"1", "b": b"2"})
        reap(store)
        now = contents(store)
        assert now == {**now, "a": b"1", "b": b"2"} and LEFT[-1] not in now
    doctor.repair([tmp_path])
    assert_sound(tmp_path)
    rebuilt(tmp_path)
    assert_holds(tmp_path, now, seen)
    with store_at(tmp_path) as store:
        store.delete_snapshot(BUCKET, "s")
        store.delete_many(BUCKET, list(now))
        reap(store)
    assert object_files(tmp_path) == []


def test_what_does_not_know_of_the_copy_does_not_open_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    monkeypatch.setattr("storage_node.store.store_record._READ_VERSIONS", (2, 3, 4, 5, 6, 7))
    with pytest.raises(StoreFormatError, match="format 8"):
        Store.open([tmp_path])
