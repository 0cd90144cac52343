"""Coded entries: objects of which this store knows the version and the group, and has no file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import ObjectDeleted, ObjectReplaced, StoreFormatError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store import format as fmt
from storage_node.store.buckets import ObjectCoded
from storage_node.store.format import CatalogEntry
from storage_node.store.fsck.rebuild import rebuild
from storage_node.store.read.batch import StoreBatch
from storage_node.store.store import Store
from tests.store.drives_kit import move_all
from tests.store.segment_kit import put_group
from tests.store.store_kit import BUCKET, assert_sound, drive_of, names, object_files, put, read, store_at

GROUP, LATER_GROUP = bytes(16), bytes(15) + b"\1"
LARGE = bytes(range(256)) * 2048


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with store_at(tmp_path / "drive") as opened:
        yield opened


def code(store: Store, name: str, group: bytes = GROUP, offset: int = 7) -> CatalogEntry:
    """Swap an object's file for a place in a group."""
    entry = store.head(BUCKET, name)._replace(path=fmt.coded_path(group), offset=offset)
    [left] = store.write_coded(BUCKET, [(name, entry)])
    assert isinstance(left, CatalogEntry)
    drive_of(store, name).reap(everything=True)
    return left


@pytest.mark.parametrize("offset", [0, 7])
def test_an_entry_is_decoded_as_it_was_encoded(offset: int) -> None:
    entry = CatalogEntry(1, 2, 3, 4, 5, 6, offset, fmt.coded_path(GROUP), b'{"a":"b"}', b"")
    value = fmt.encode_entry(entry)
    assert fmt.decode_entry(value) == entry
    assert fmt.is_object(value) and not fmt.is_tombstone(value)
    assert (entry.group, entry.is_coded, entry.has_file, entry.is_tombstone) == (GROUP, True, False, False)


@pytest.mark.parametrize("path", [b"", b"coded/", b"coded/12", b"00/00/1.1", b"coded/" + b"z" * 32])
def test_a_coded_entry_without_a_group_is_refused(path: bytes) -> None:
    value = bytearray(fmt.encode_entry(CatalogEntry(1, 2, 3, 4, 5, 6, 0, path, b"", b"")))
    value[1] = 3
    with pytest.raises(StoreFormatError, match="kind 3"):
        fmt.decode_entry(bytes(value))


def test_a_coded_object_keeps_all_but_its_file(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put_group(store, {"a": b"in a segment", "b": b"in a segment, too"})
        before = [put(store, "large", LARGE, metadata={"who": "x"}), store.head(BUCKET, "a"), store.head(BUCKET, "b")]
        after = [code(store, name) for name in ("large", "a", "b")]
        assert [one._replace(path=b"", offset=0) for one in after] == [
            one._replace(path=b"", offset=0) for one in before
        ]
        assert not object_files(tmp_path / "drive")
        assert names(store) == ["a", "b", "large"]
        assert store.head(BUCKET, "large").metadata == {"who": "x"}
        with pytest.raises(ObjectCoded) as raised:
            read(store, "a")
        assert raised.value.entries == {"a": after[1]}
        with pytest.raises(ObjectReplaced):
            read(store, "a", version="1.1.0")
    assert_sound(tmp_path / "drive")
    with Store.open([tmp_path / "drive"], mode="r") as reader:
        assert reader.head(BUCKET, "a") == after[1]


def test_a_batch_has_coded_entries_placed_and_fails_others_by_their_requests(store: Store) -> None:
    put(store, "plain", b"here")
    put(store, "coded", LARGE)
    entry = code(store, "coded")
    columns = [("plain", 0, -1), ("coded", 0, -1), ("coded", 1, 2), ("coded", len(LARGE) + 1, 1)]
    names, starts, lengths = zip(*columns, strict=True)
    batch = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=names, start=starts, length=lengths))
    assert batch.status.tolist() == [pb.OK, pb.UNAVAILABLE, pb.UNAVAILABLE, pb.RANGE]
    assert [batch.record(at) for at in (1, 2)] == [entry, entry]
    batch.close()


def test_cached_entries_of_coded_objects_are_found_without_the_catalog(store: Store) -> None:
    request = pb.BatchRequest(bucket=[BUCKET], name=["coded", "plain"])
    put(store, "plain", b"here")
    put(store, "coded", LARGE)
    entry = code(store, "coded")
    for number in range(3):
        if number == 1:
            drive_of(store, "coded")._cache.forget()
            assert StoreBatch.of_known(store, request) is None
        batch = StoreBatch(store, request) if number == 1 else StoreBatch.of_known(store, request)
        assert batch is not None
        assert (batch.coded, batch.record(0), batch.status.tolist()) == ([0], entry, [pb.UNAVAILABLE, pb.OK])
        batch.close()
    store.delete(BUCKET, "coded")
    assert StoreBatch.of_known(store, request) is None


def test_a_deleted_or_replaced_coded_object_leaves_no_garbage(store: Store, tmp_path: Path) -> None:
    for name in ("deleted", "buried", "replaced"):
        put(store, name, LARGE)
        code(store, name)
    store.delete(BUCKET, "deleted")
    store.delete(BUCKET, "buried", keep_tombstone=True)
    put(store, "replaced", b"new")
    assert read(store, "replaced") == b"new"
    with pytest.raises(ObjectDeleted):
        read(store, "buried")
    assert names(store) == ["replaced"]
    assert len(object_files(tmp_path / "drive")) == 1


def test_only_an_older_state_gives_way(store: Store) -> None:
    first = put(store, "a", LARGE)
    entry = first._replace(path=fmt.coded_path(LATER_GROUP), offset=0)
    damaged = entry._replace(checksum=entry.checksum ^ 1)
    second = put(store, "a", b"newer")
    assert store.write_coded(BUCKET, [("a", entry)]) == [second]
    assert store.write_coded(BUCKET, [("missing", entry)]) == [entry]
    assert store.write_coded(BUCKET, [("missing", damaged)]) == [entry], "another content of the same version"
    older_group = entry._replace(path=fmt.coded_path(GROUP))
    assert store.write_coded(BUCKET, [("missing", older_group)]) == [entry]
    newer = entry._replace(counter=second.counter + 1)
    assert store.write_coded(BUCKET, [("a", newer)]) == [newer]


def test_a_file_of_the_same_version_replaces_a_coded_entry(store: Store) -> None:
    put(store, "a", LARGE, metadata={"who": "x"})
    entry = code(store, "a")

    def restore(data: bytes) -> CatalogEntry:
        with store.begin_put(BUCKET, "a", entry.metadata, version=entry.version) as upload:
            upload.write(data)
            return upload.commit()

    assert restore(b"something else") == entry
    plain = restore(LARGE)
    assert plain.has_file and plain.version == entry.version
    assert read(store, "a") == LARGE
    assert code(store, "a") != entry, "the same group is no newer, but a file gives way to it"


def test_a_snapshot_sees_a_coded_version_after_it_ended(store: Store) -> None:
    put(store, "a", LARGE)
    store.snapshots.create(BUCKET, "s")
    entry = code(store, "a")
    put(store, "a", b"new")
    assert store.head(f"{BUCKET}@s", "a") == entry
    with pytest.raises(ObjectCoded):
        read(store, "a", bucket=f"{BUCKET}@s")
    store.snapshots.delete(BUCKET, "s")
    assert read(store, "a") == b"new"


def test_a_coded_entry_moves_with_its_name_to_another_drive(tmp_path: Path) -> None:
    with store_at(tmp_path / "one") as store:
        entries = {}
        for number in range(20):
            put(store, f"{number}", LARGE)
            entries[f"{number}"] = code(store, f"{number}")
        store.pool.add_drive(tmp_path / "two")
        move_all(store)
        assert {name: store.head(BUCKET, name) for name in entries} == entries
        assert len({drive_of(store, name) for name in entries}) == 2
    assert_sound(tmp_path / "one", tmp_path / "two")


def test_a_rebuilt_catalog_keeps_the_coded_entries_of_the_old_one(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "plain", b"here")
        put(store, "coded", LARGE)
        entry = code(store, "coded")
    rebuild([tmp_path / "drive"], all_drives=True)
    with store_at(tmp_path / "drive") as store:
        assert read(store, "plain") == b"here"
        assert store.head(BUCKET, "coded") == entry


def test_a_rebuilt_catalog_has_the_file_of_a_version_that_is_coded_as_well(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", LARGE, metadata={"who": "x"})
        [file] = object_files(tmp_path / "drive")
        shutil.copy2(file, tmp_path / "kept")  # with its identity
        entry = code(store, "a")
    shutil.copy2(tmp_path / "kept", file)
    rebuild([tmp_path / "drive"], all_drives=True)
    with store_at(tmp_path / "drive") as store:
        assert read(store, "a") == LARGE
        assert store.head(BUCKET, "a")[:5] == entry[:5]
        assert store.head(BUCKET, "a").metadata == {"who": "x"}


def test_a_rebuilt_catalog_keeps_the_coded_versions_that_snapshots_see(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", LARGE)
        store.snapshots.create(BUCKET, "s")
        entry = code(store, "a")
        put(store, "a", b"new")
    rebuild([tmp_path / "drive"], all_drives=True)
    with store_at(tmp_path / "drive") as store:
        assert store.head(f"{BUCKET}@s", "a") == entry
        assert read(store, "a") == b"new"
