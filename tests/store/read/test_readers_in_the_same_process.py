"""Readers in the writer's own process: they never show what it has replaced, deleted or made by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.errors import BucketNotFound, ObjectNotFound
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.store_kit import BUCKET, drive_of, names, put, read, store_at


def test_an_object_that_was_read_before_is_the_new_one_at_once(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        put(writer, "other", b"x")
        for number in range(50):
            put(writer, "a", b"%d" % number)
            assert read(reader, "a") == b"%d" % number
            assert batch(reader, ["a", "other"]) == [(pb.OK, b"%d" % number), (pb.OK, b"x")]


def test_an_object_that_is_replaced_while_the_reader_is_being_opened_is_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from storage_node.store.drive import drive as drives

    with store_at(tmp_path / "drive") as writer:
        put(writer, "a", b"old")
        open_catalog = drives.Catalog

        def open_and_be_overtaken(path: Path, **options: object) -> object:
            catalog = open_catalog(path, **options)  # type: ignore[arg-type]
            put(writer, "a", b"new")
            return catalog

        monkeypatch.setattr(drives, "Catalog", open_and_be_overtaken)
        with Store.open([tmp_path / "drive"], mode="r") as reader:
            assert read(reader, "a") == b"new"


def test_an_object_that_was_read_before_is_gone_at_once(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        put(writer, "a", b"1")
        assert read(reader, "a") == b"1"
        writer.delete(BUCKET, "a")
        with pytest.raises(ObjectNotFound):
            read(reader, "a")


def test_buckets_come_go_and_come_again_at_once(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer, Store.open([tmp_path / "drive"], mode="r") as reader:
        for number in range(5):
            writer.create_bucket("new")
            put(writer, "a", b"%d" % number, bucket="new")
            assert read(reader, "a", bucket="new") == b"%d" % number
            writer.delete_bucket("new", force=True)
            with pytest.raises(BucketNotFound):
                reader.bucket("new")


def test_what_the_last_writer_left_is_seen_after_it_was_closed_and_by_the_next_one(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as writer:
        put(writer, "a", b"0")
    with Store.open([tmp_path / "drive"], mode="r") as reader:
        assert read(reader, "a") == b"0"
        for number in range(1, 6):
            with store_at(tmp_path / "drive") as writer:
                put(writer, "a", b"%d" % number)
                if number % 2:
                    drive_of(writer).catalog.flush()
            assert read(reader, "a") == b"%d" % number
            assert names(reader) == ["a"]
