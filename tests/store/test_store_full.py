"""A drive without room: puts are refused whole, nothing that was acknowledged is lost, and room makes it go on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ais_loader.errors import DriveFull, LoaderError, ObjectNotFound
from storage_node.store.archives.archive import index_shard
from storage_node.store.archives.index_format import ShardState
from storage_node.store.chunked_put import spool_for
from storage_node.store.drive.catalog import WriteBatch
from storage_node.store.files import staged_file
from storage_node.store.format import Version
from storage_node.store.read.object_reader import open_member
from storage_node.store.store import Store
from tests.store.archives.archive_kit import BytesSource
from tests.store.small_drive import InjectedDrive, SmallDrive, small_drive
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, object_files, put, read, store_at
from tests.tar_kit import packed_tar

MIB = 1 << 20


@pytest.fixture(params=["as this user may", "injected"])
def small(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDrive]:
    if request.param == "injected":
        yield InjectedDrive(tmp_path / "drive", monkeypatch)
        return
    with small_drive(tmp_path, monkeypatch) as drive:
        yield drive


def fill(store: Store) -> dict[str, bytes]:
    """Put objects until one is refused; what was acknowledged."""
    kept: dict[str, bytes] = {}
    with pytest.raises(DriveFull, match="no space left"):
        for number in range(200):
            data = bytes([number]) * MIB
            put(store, f"{number:03}", data)
            kept[f"{number:03}"] = data
    return kept


def again(action: Callable[[], object], seconds: float = 60.0) -> None:
    """Repeat until it works: RocksDB takes a few seconds to notice that there is room."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            action()
            return
        except LoaderError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(0.05)


@pytest.mark.slow
def test_a_put_that_does_not_fit_is_refused_and_deleting_makes_room(small: SmallDrive) -> None:
    with store_at(small.root) as store:
        kept = fill(store)
        assert len(kept) > 10
        assert contents(store) == kept
        for name in list(kept)[:3]:
            store.delete(BUCKET, name)
            del kept[name]
        put(store, "new", b"n" * MIB)
        kept["new"] = b"n" * MIB
        assert contents(store) == kept
    with Store.open([small.root]) as store:
        assert contents(store) == kept
    assert_sound(small.root)


@pytest.mark.slow
def test_an_overwrite_that_does_not_fit_leaves_the_old_object(small: SmallDrive) -> None:
    with store_at(small.root) as store:
        kept = fill(store)
        with pytest.raises(DriveFull):
            put(store, "000", bytes(2 * MIB))
        with pytest.raises(DriveFull):
            store.stage(BUCKET, "000", (bytes(MIB // 4) for _ in range(8)), {})
        assert contents(store) == kept
    assert_sound(small.root)


@pytest.mark.slow
def test_dead_files_make_room_before_their_grace_is_over(small: SmallDrive) -> None:
    with store_at(small.root) as store:
        for number in range(100):
            put(store, "same", bytes([number]) * (2 * MIB))
            assert read(store, "same") == bytes([number]) * (2 * MIB)
        assert len(object_files(small.root)) < 45
    assert_sound(small.root)


@pytest.mark.slow
def test_a_group_on_a_full_drive_fails_in_its_places_and_leaves_nothing(small: SmallDrive) -> None:
    with store_at(small.root) as store:
        kept = fill(store)
        uploads: list[object] = []
        for number in range(4):
            try:
                uploads.append(store.stage(BUCKET, f"group{number}", [bytes(MIB)], {}))
            except LoaderError as error:
                uploads.append(error)
        results = store.commit_many(uploads)  # type: ignore[arg-type]
        stored = {f"group{at}": bytes(MIB) for at, result in enumerate(results) if not isinstance(result, LoaderError)}
        assert any(isinstance(result, DriveFull) for result in results)
        assert contents(store) == {**kept, **stored}
    assert_sound(small.root)


@pytest.mark.slow
def test_a_drive_full_to_the_last_byte_loses_nothing_and_goes_on_when_there_is_room(small: SmallDrive) -> None:
    with store_at(small.root) as store:
        kept = {f"{number}": b"%d" % number * 100 for number in range(20)}
        for name, data in kept.items():
            put(store, name, data)
        staged = [store.stage(BUCKET, f"staged{number}", [b"x" * 1000], {}) for number in range(3)]
        overwriting = store.stage(BUCKET, "0", [b"new"], {})
        refused = 0
        small.leave(0)
        # The catalog's log has room reserved: its last bytes go first.
        with pytest.raises(DriveFull):
            for _ in range(100_000):
                drive_of(store).catalog.write(_filler(), sync=False)
        for upload in (*staged, overwriting):
            with pytest.raises(DriveFull):
                upload.commit()
            refused += 1
        with pytest.raises(DriveFull):
            store.delete(BUCKET, "1")
        small.leave(0)
        with pytest.raises(DriveFull):
            for number in range(1000):  # the last page of the record has room for some
                store.create_bucket(f"more{number}")
        assert refused == 4 and contents(store) == kept
        with pytest.raises(ObjectNotFound):
            read(store, "staged0")
        small.release()
        again(lambda: put(store, "0", b"newer"))
        kept["0"] = b"newer"
        store.delete(BUCKET, "1")
        del kept["1"]
        assert contents(store) == kept
    with Store.open([small.root]) as store:
        assert contents(store) == kept
    assert len(object_files(small.root)) == len(kept)
    assert_sound(small.root)


def test_a_commit_that_failed_for_room_is_gone_after_a_crash_too(small: SmallDrive) -> None:
    """The process ends before there is room again: intents are what names the files."""
    with store_at(small.root) as store:
        put(store, "a", b"old")
    store = Store.open([small.root])
    upload = store.stage(BUCKET, "a", [b"new"], {})
    small.leave(0)
    with pytest.raises(DriveFull):
        for _ in range(100_000):
            drive_of(store).catalog.write(_filler(), sync=False)
    with pytest.raises(DriveFull):
        upload.commit()
    drive = drive_of(store)
    drive.catalog.close()  # without the tidying of an orderly close
    drive.files.close()
    small.release()
    with Store.open([small.root]) as again_open:
        assert contents(again_open) == {"a": b"old"}
    assert len(object_files(small.root)) == 1
    assert_sound(small.root)


def _filler() -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    batch.put(b"x", bytes(4096))
    batch.delete(b"x")
    return batch


@pytest.mark.slow
def test_an_object_that_never_ends_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_file, "LARGE_BYTES", 8 * MIB)
    with small_drive(tmp_path, monkeypatch) as drive:
        if drive.kind != "mounted":
            pytest.skip("needs a file system of its own")
        with store_at(drive.root) as store:
            upload, fits = store.begin_put(BUCKET, "endless"), 0
            with pytest.raises(DriveFull):
                while True:
                    upload.write(bytes(MIB))
                    fits += 1
            assert fits > 40
            endless = store.begin_put(BUCKET, "endless")
            for _ in range(fits):
                endless.write(bytes(MIB))
            for number in range(3):
                put(store, f"{number}", bytes([number]) * MIB)
            endless.abort()
            assert contents(store) == {f"{number}": bytes([number]) * MIB for number in range(3)}


def test_members_are_read_from_a_full_drive_without_taking_its_last_bytes(small: SmallDrive) -> None:
    zstandard = pytest.importorskip("zstandard")
    members = {"zeros": bytes(17 << 20), "m": b"member"}  # so long a stretch is read through a decompressed copy
    with store_at(small.root) as store:
        put(store, "s.tar.zst", zstandard.ZstdCompressor(level=1).compress(packed_tar(members)))
        small.leave(8 * MIB)
        assert b"".join(open_member(store, BUCKET, "s.tar.zst", "m")) == b"member"
        copies = drive_of(store).shards._copies
        assert copies is not None and copies.used_bytes == 0, "what is left is for the catalog"
        small.leave(0)
        assert b"".join(open_member(store, BUCKET, "s.tar.zst", "m")) == b"member"


def test_what_is_kept_until_it_is_stored_leaves_the_last_bytes_of_a_drive(small: SmallDrive) -> None:
    with store_at(small.root) as store:
        small.leave(8 * MIB)
        with contextlib.closing(spool_for(store, "s.tar")) as spool:
            with pytest.raises(DriveFull, match="no space left while keeping an archive"):
                for _ in range(16):
                    spool.write(bytes(MIB))
            assert spool.size_bytes == MIB


def test_an_index_leaves_the_last_bytes_of_a_drive(small: SmallDrive) -> None:
    with store_at(small.root) as store:
        small.leave(8 * MIB)
        index = index_shard(BytesSource(packed_tar({"m": b"member"})), "s.tar")
        with pytest.raises(OSError, match="No space left"):
            index.save(small.root / "s.index", ShardState(Version(1, 1), 1, 1))
        assert not list(small.root.glob("*.index*")) and contents(store) == {}
