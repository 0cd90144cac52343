"""Uploads of a store: what is pending stays so wherever it goes, and ends with one commit that keeps the version."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import VersionConflict
from ais_loader.wire.reserved import REMOTE_ETAG, REMOTE_PENDING
from storage_node.store.drive.preconditions import parse_condition
from storage_node.store.format import encode_metadata
from storage_node.store.fsck.fsck import check
from storage_node.store.fsck.rebuild import rebuild
from storage_node.store.store import Store
from tests.store.drives_kit import move_all
from tests.store.store_kit import BUCKET, put, read, store_at

MARK = {REMOTE_PENDING: '["",false]'}
COPY = {REMOTE_ETAG: '"e"'}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with store_at(tmp_path / "a", tmp_path / "b") as store:
        yield store


def delete(store: Store, name: str) -> None:
    store.delete(BUCKET, name, keep_tombstone=True, raw_metadata=encode_metadata(MARK))


def uuid_of(store: Store) -> bytes:
    return store.bucket(BUCKET).uuid_bytes


def pending(store: Store) -> dict[str, bool]:
    """Names, and whether they are deletions."""
    return {name: entry.is_tombstone for _, name, entry in store.uploads.pending()}


def test_what_is_pending_is_found_after_a_restart_and_ends_in_its_version(tmp_path: Path) -> None:
    with store_at(tmp_path / "a") as store:
        version = put(store, "object", b"1", metadata=MARK).version
        put(store, "other", b"2")
        delete(store, "gone")
        delete(store, "other")
        assert store.uploads.begin(uuid_of(store), "object", version, b'"e0"')
    with store_at(tmp_path / "a") as store:
        assert pending(store) == {"object": False, "gone": True, "other": True}
        assert store.uploads.attempt(uuid_of(store), "object") == b'"e0"'
        assert not store.uploads.settle(uuid_of(store), "object", version._replace(counter=1), b"")
        assert store.uploads.settle(uuid_of(store), "object", version, encode_metadata(COPY))
        assert pending(store) == {"gone": True, "other": True}
        assert store.head(BUCKET, "object").version == version
        assert store.head(BUCKET, "object").metadata == COPY
    with store_at(tmp_path / "a") as store:
        assert pending(store) == {"gone": True, "other": True}
        assert read(store, "object") == b"1"


def test_a_later_write_begins_a_new_upload(store: Store) -> None:
    first = put(store, "a", b"1", metadata=MARK).version
    store.uploads.begin(uuid_of(store), "a", first, b'"e0"')
    put(store, "a", b"2", metadata=MARK)
    assert store.uploads.attempt(uuid_of(store), "a") == b""
    assert not store.uploads.begin(uuid_of(store), "a", first, b'"e0"')
    assert not store.uploads.settle(uuid_of(store), "a", first, encode_metadata(COPY))
    assert pending(store) == {"a": False}
    put(store, "a", b"3")
    assert pending(store) == {}


def test_a_fetched_copy_does_not_replace_what_is_pending(store: Store) -> None:
    delete(store, "gone")
    put(store, "kept", b"mine", metadata=MARK)
    for name in ("gone", "kept"):
        with store.begin_put(BUCKET, name, COPY) as upload, pytest.raises(VersionConflict):
            upload.require(parse_condition(True, "") if name == "gone" else None)
            upload.write(b"theirs")
            upload.commit()
    assert pending(store) == {"gone": True, "kept": False}
    assert store.delete_many(BUCKET, ["kept"], copies_only=True) and read(store, "kept") == b"mine"


@pytest.mark.parametrize("size_bytes", [10, 300_000])
def test_it_moves_to_another_drive(store: Store, size_bytes: int) -> None:
    names = [f"{at}" for at in range(40)]
    for name in names:
        put(store, name, name.encode() * size_bytes, metadata=MARK)
        delete(store, f"gone-{name}")
    expected = dict.fromkeys(names, False) | {f"gone-{name}": True for name in names}
    assert pending(store) == expected
    store.pool.retire_drive(store.record.current.drives[0])
    move_all(store)
    assert pending(store) == expected
    assert all(read(store, name) == name.encode() * size_bytes for name in names)


def test_it_is_found_again_when_the_catalog_is_rebuilt(tmp_path: Path) -> None:
    root = tmp_path / "a"
    with store_at(root) as store:
        put(store, "pending", b"1" * 300_000, metadata=MARK)
        done = put(store, "done", b"2" * 300_000, metadata=MARK).version
        store.uploads.settle(uuid_of(store), "done", done, encode_metadata(COPY))
    shutil.rmtree(root / "catalog")
    rebuild([root])
    with store_at(root) as store:
        assert pending(store) == {"pending": False}
        assert store.head(BUCKET, "done").metadata == COPY


def test_a_deletion_that_is_uploaded_is_forgotten_unless_something_newer_is_there(store: Store) -> None:
    for name in ("a", "b"):
        delete(store, name)
    versions = {name: entry.version for _, name, entry in store.uploads.pending()}
    put(store, "b", b"newer", metadata=MARK)
    for name, version in versions.items():
        store.uploads.settle(uuid_of(store), name, version, b"")
        store.uploads.forget_deletion(uuid_of(store), name, version)
    assert store.uploads.newest(uuid_of(store), "a") is None
    assert read(store, "b") == b"newer" and pending(store) == {"b": False}


def test_the_doctor_finds_nothing_wrong_with_what_was_uploaded(tmp_path: Path) -> None:
    root = tmp_path / "a"
    with store_at(root) as store:
        uploads = [store.stage(BUCKET, f"{at}", [b"%d" % at], dict(MARK), grouped=True) for at in range(5)]
        versions = [result.version for result in store.commit_many(uploads) if not isinstance(result, Exception)]
        for at, version in enumerate(versions):
            assert store.uploads.settle(uuid_of(store), f"{at}", version, encode_metadata(COPY))
        put(store, "pending", b"1", metadata=MARK)
        delete(store, "gone")
    report = check([root], checksums=True)
    assert report.healthy and not report.findings
    shutil.rmtree(root / "catalog")
    rebuild([root])
    with store_at(root) as store:
        assert all(read(store, f"{at}") == b"%d" % at for at in range(5))
