"""One object at a time: what is put is what is read, whole and in ranges, and each state has a higher version."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ais_loader.errors import BucketNotFound, Closed, ContentMismatch, InvalidRequest, ObjectNotFound, RangeError
from storage_node.store.checksum import crc32c
from storage_node.store.format import BLOCK_BYTES, BLOCKS_PER_CHUNK
from storage_node.store.read.object_reader import CHUNK_BYTES, open_object
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, assert_sound, drive_of, names, object_files, put, read, store_at
from tests.table import table

SIZES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES - 1, 5 * BLOCK_BYTES + 7)


@pytest.fixture
def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    with store_at(tmp_path / "drive") as opened:
        yield opened


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@table("size", SIZES)
def test_an_object_comes_back_whatever_its_size(store: Store, size: int) -> None:
    data = noise(size)
    record = put(store, "a", data)
    assert (record.size_bytes, record.checksum) == (size, crc32c(data))
    assert read(store, "a") == data
    chunks = list(open_object(store, BUCKET, "a"))
    assert all(0 < len(chunk) <= CHUNK_BYTES for chunk in chunks)


@table("size", SIZES)
def test_ranges_are_exact_with_and_without_verifying_their_blocks(store: Store, size: int) -> None:
    data = noise(size)
    put(store, "a", data)
    edges = {0, 1, size // 2, size - 1, size, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 4 * BLOCK_BYTES}
    starts = sorted(edge for edge in edges if 0 <= edge <= size)
    for start in starts:
        for verify in (False, True):
            assert read(store, "a", start=start, verify=verify) == data[start:]
            for stop in (stop for stop in starts if stop >= start):
                assert read(store, "a", start=start, length=stop - start, verify=verify) == data[start:stop]


@table(("start", "length"), [(-1, None), (0, -1), (11, None), (0, 11), (10, 1), (5, 6), (2**63, 1)])
def test_a_range_that_does_not_lie_within_the_object_is_refused(store: Store, start: int, length: int | None) -> None:
    put(store, "a", bytes(10))
    with pytest.raises(RangeError):
        read(store, "a", start=start, length=length)


def test_the_block_checksums_do_not_depend_on_how_the_bytes_came_in(store: Store) -> None:
    data = noise(4 * BLOCK_BYTES + 100)
    expected = [crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    cuts = random.Random(1)
    layouts = [[BLOCK_BYTES], [BLOCK_BYTES, 1], [1, BLOCK_BYTES - 1], [BLOCK_BYTES + 1], [0, BLOCK_BYTES, 0], [100]]
    layouts += [[cuts.randrange(BLOCK_BYTES * 2) for _ in range(4)] for _ in range(20)]
    for layout in layouts:
        with store.begin_put(BUCKET, "a") as upload:
            at = 0
            for size in layout:
                upload.write(data[at : at + size])
                at = min(at + size, len(data))
            upload.write(data[at:])
            record = upload.commit()
        assert record.checksum == crc32c(data)
        assert drive_of(store).block_checksums(record, 0, 5) == expected, layout
        assert read(store, "a", start=7, verify=True) == data[7:]


def test_an_object_of_more_blocks_than_one_value_holds_is_verified_to_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage_node.store.format.BLOCKS_PER_CHUNK", 3)
    data = noise(10 * BLOCK_BYTES + 5)
    record = put(store, "a", data)
    assert BLOCKS_PER_CHUNK == 1024
    assert read(store, "a", start=1, verify=True) == data[1:]
    expected = [crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES)]
    assert drive_of(store).block_checksums(record, 2, 9) == expected[2:9]


def test_overwriting_leaves_one_object_with_the_newer_bytes_and_a_higher_version(store: Store) -> None:
    versions = [put(store, "a", b"%d" % number).version for number in range(20)]
    assert versions == sorted(set(versions))
    assert (read(store, "a"), names(store)) == (b"19", ["a"])


def test_versions_keep_growing_after_a_restart(tmp_path: Path) -> None:
    versions = []
    for number in range(4):
        with store_at(tmp_path / "drive") as store:
            versions += [put(store, "a", b"%d" % number).version, put(store, "b", b"").version]
    assert versions == sorted(set(versions))


def test_a_pinned_version_is_served_or_gone(store: Store) -> None:
    first = str(put(store, "a", b"1").version)
    assert read(store, "a", version=first) == b"1"
    put(store, "a", b"2")
    with pytest.raises(ObjectNotFound, match=f"version {first} is gone"):
        read(store, "a", version=first)


def test_a_deleted_object_is_gone_and_can_be_put_again(store: Store) -> None:
    before = put(store, "a", b"1").version
    store.delete(BUCKET, "a")
    for action in (lambda: read(store, "a"), lambda: store.head(BUCKET, "a"), lambda: store.delete(BUCKET, "a")):
        with pytest.raises(ObjectNotFound, match="no object 'a'"):
            action()
    assert names(store) == []
    assert put(store, "a", b"2").version > before
    assert read(store, "a") == b"2"


def test_metadata_comes_back_and_a_new_version_does_not_inherit_it(store: Store) -> None:
    metadata = {"sprache": "grüß", "": "", "k": "v" * 3000}
    assert put(store, "a", b"", metadata=metadata).metadata == metadata
    assert store.head(BUCKET, "a").metadata == metadata
    put(store, "a", b"")
    assert store.head(BUCKET, "a").metadata == {}


@pytest.mark.parametrize("metadata", [{"k": "v" * 4096}, {"k": 1}, {1: "v"}, {"k": "\ud800"}, {"\udfff": ""}])
def test_metadata_that_is_too_large_or_not_text_is_refused(store: Store, metadata: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="metadata"):
        put(store, "a", b"", metadata=metadata)
    assert names(store) == []


def test_an_upload_that_is_not_committed_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with store.begin_put(BUCKET, "a") as upload:
        upload.write(b"half")
    with pytest.raises(InvalidRequest, match="committed or aborted"):
        upload.commit()
    assert names(store) == []
    assert not object_files(tmp_path / "drive") and not list((tmp_path / "drive" / "staging").iterdir())


@pytest.mark.parametrize("announced", [{"size_bytes": 4}, {"checksum": 1}, {"size_bytes": 5, "checksum": 0}])
def test_an_object_that_is_not_what_was_announced_is_not_stored(
    store: Store, tmp_path: Path, announced: dict[str, int]
) -> None:
    with pytest.raises(ContentMismatch, match="announced"):
        store.stage(BUCKET, "a", [b"he", b"llo"], {}, **announced)
    store.stage(BUCKET, "a", [b"he", b"llo"], {}, 5, crc32c(b"hello")).commit()
    assert read(store, "a") == b"hello"
    assert not list((tmp_path / "drive" / "staging").iterdir())


def test_a_group_commits_in_order_and_failures_stay_in_their_places(store: Store) -> None:
    uploads = [store.stage(BUCKET, f"{number}", [b"%d" % number], {}) for number in range(4)]
    uploads[2].abort()
    refused = BucketNotFound("given by the caller")
    results = store.commit_many([uploads[0], refused, uploads[2], uploads[3], uploads[3]])
    assert [type(result).__name__ for result in results] == [
        "CatalogEntry",
        "BucketNotFound",
        "InvalidRequest",
        "CatalogEntry",
        "InvalidRequest",
    ]
    assert results[1] is refused
    assert names(store) == ["0", "3"]


def test_two_objects_of_one_name_in_a_group_end_with_the_later_one(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"old")
        uploads = [store.stage(BUCKET, "a", [b"%d" % number], {}) for number in range(3)]
        put(store, "a", b"overtakes the group's first versions")
        versions = [result.version for result in store.commit_many(uploads)]  # type: ignore[union-attr]
        assert versions == sorted(set(versions))
        assert store.head(BUCKET, "a").version == versions[-1]
        assert read(store, "a") == b"2"
    assert len(object_files(tmp_path / "drive")) == 1
    assert_sound(tmp_path / "drive")


def test_a_reader_that_was_opened_before_an_overwrite_finishes_with_the_old_bytes(store: Store) -> None:
    old, new = noise(9 * BLOCK_BYTES, 1), noise(9 * BLOCK_BYTES, 2)
    put(store, "a", old)
    reader = open_object(store, BUCKET, "a", verify=True)
    got = next(reader)
    put(store, "a", new)
    drive_of(store).reap(everything=True)
    assert got + b"".join(reader) == old
    assert read(store, "a") == new


def test_the_file_of_a_replaced_object_goes_after_the_grace_period(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", bytes(BLOCK_BYTES + 1))
        drive = drive_of(store)
        drive._garbage._grace_s = 3600.0
        put(store, "a", b"new")
        assert len(object_files(tmp_path / "drive")) == 2
        assert drive.reap() == 0
        assert drive.reap(everything=True) == 1
        assert len(object_files(tmp_path / "drive")) == 1
        assert list(drive.catalog.scan(b"b")) == list(drive.catalog.scan(b"g")) == []


def test_garbage_beyond_its_limit_goes_before_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.store.drive.ended_versions.MAX_GARBAGE_BYTES", 2500)
    with store_at(tmp_path / "drive") as store:
        drive_of(store)._garbage._grace_s = 3600.0
        for _ in range(10):
            put(store, "a", bytes(1000))
        assert len(object_files(tmp_path / "drive")) == 3


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1")
        upload = store.stage(BUCKET, "b", [b"2"], {})
    for action in (
        lambda: read(store, "a"),
        lambda: put(store, "a", b""),
        lambda: names(store),
        lambda: store.delete(BUCKET, "a"),
        lambda: store.create_bucket("b"),
        lambda: store.delete_bucket(BUCKET),
        upload.commit,
        store.pool.states,
    ):
        with pytest.raises(Closed):
            action()
    store.close()
    assert_sound(tmp_path / "drive")
