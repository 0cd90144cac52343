"""Small objects that were put together and share a file: whole stores, real files."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from ais_loader.errors import CorruptObject, NotAnArchive, VersionConflict
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.checksum import crc32c
from storage_node.store.drive.preconditions import Condition
from storage_node.store.files import segments
from storage_node.store.files.segment_format import MAX_OBJECT_BYTES
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.fsck import fsck as doctor
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.object_reader import open_member, open_object
from storage_node.store.store import Store
from tests.store.drives_kit import files_on
from tests.store.segment_kit import lose_begin, lose_end
from tests.store.snapshot_kit import at, reap, retained
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    drive_of,
    flip_a_byte,
    kinds,
    object_files,
    put,
    read,
    store_at,
)

OBJECTS = {f"{number:03d}": bytes([number]) * (number * 977 % 20_000 + 1) for number in range(100)}


def put_group(store: Store, objects: Mapping[str, bytes]) -> list[CatalogEntry]:
    uploads = [store.stage(BUCKET, name, [data], {"of": name}, grouped=True) for name, data in objects.items()]
    results = store.commit_many(uploads)
    assert not [result for result in results if isinstance(result, Exception)]
    return results  # type: ignore[return-value]


def used_bytes(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in object_files(root))


def segment_of(store: Store, name: str) -> Path:
    drive, record = store.locate(BUCKET, name)
    assert record.offset
    return drive.root / "objects" / os.fsdecode(record.path.rpartition(b"/")[0])


def batch(store: Store, names: list[str], **how: object) -> StoreBatch:
    return StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=names, **how))  # type: ignore[arg-type]


def delivered(open_batch: StoreBatch) -> list[bytes | int]:
    """The bytes of each entry, or its status."""
    found: list[bytes | int] = []
    for span in open_batch.spans():
        frame = open_batch.read(span)
        data, offset = bytes(frame.payload), 0
        for size, status in zip(frame.size.tolist(), frame.status.tolist(), strict=True):
            found.append(status or data[offset : offset + size])
            offset += size
    return found


def test_a_group_is_one_file_and_every_object_of_it_is_what_was_put(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        assert len(object_files(tmp_path)) == 1 and files_on(tmp_path) == len(OBJECTS)
        assert contents(store) == OBJECTS
        wanted = [*OBJECTS, "001", "050", "000"]
        assert delivered(batch(store, wanted)) == [OBJECTS[name] for name in wanted]
        starts = [len(OBJECTS[name]) // 2 for name in wanted]
        lengths = [-1 if at % 2 else 1 for at in range(len(wanted))]
        ranges = delivered(batch(store, wanted, start=starts, length=lengths))
        assert ranges == [
            OBJECTS[name][start : None if length < 0 else start + length]
            for name, start, length in zip(wanted, starts, lengths, strict=True)
        ]
        assert read(store, "042", start=5, length=7) == OBJECTS["042"][5:12]
        assert store.head(BUCKET, "007").metadata == {"of": "007"}
    [drive] = doctor.check([tmp_path]).drives
    assert (drive.objects, drive.files) == (len(OBJECTS), 1)
    with Store.open([tmp_path], mode="r") as reader:
        assert contents(reader) == OBJECTS
    assert_sound(tmp_path)


def test_what_is_large_or_an_archive_or_alone_has_a_file_of_its_own(tmp_path: Path) -> None:
    group = {"a": b"1", "b": b"2", "large": bytes(MAX_OBJECT_BYTES + 1), "most": bytes(MAX_OBJECT_BYTES), "x.tar": b""}
    with store_at(tmp_path) as store:
        found = dict(zip(group, put_group(store, group), strict=True))
        assert {name for name, record in found.items() if record.offset} == {"a", "b", "most"}
        (alone,) = put_group(store, {"alone": b"3"})
        assert not alone.offset
        assert contents(store) == {**group, "alone": b"3"}
        with pytest.raises(NotAnArchive):
            open_member(store, BUCKET, "a", "member")
    assert_sound(tmp_path)


def test_what_goes_gives_its_pages_back_and_the_last_one_the_file(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        names = list(OBJECTS)
        for gone, left in ((names[::2], names[1::2]), (names[1::4], names[3::4])):
            store.delete_many(BUCKET, gone)
            reap(store)
            data_bytes = sum(len(OBJECTS[name]) for name in left)
            assert data_bytes <= used_bytes(tmp_path) <= data_bytes + (len(left) + 12) * 4096
            assert contents(store) == {name: OBJECTS[name] for name in left}
        assert files_on(tmp_path) == 25
    assert_sound(tmp_path)
    with store_at(tmp_path) as store:
        store.delete_many(BUCKET, names[3::4])
        reap(store)
        assert not object_files(tmp_path)


def test_without_holes_in_files_the_room_comes_back_with_the_last_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: int) -> int:
        segments.ctypes.set_errno(errno.EOPNOTSUPP)
        return -1

    monkeypatch.setattr(segments, "_fallocate", cannot)
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        before = used_bytes(tmp_path)
        names = list(OBJECTS)
        store.delete_many(BUCKET, names[1:])
        reap(store)
        assert used_bytes(tmp_path) == before and contents(store) == {"000": OBJECTS["000"]}
        store.delete(BUCKET, "000")
        reap(store)
        assert not object_files(tmp_path)


def test_an_object_that_is_replaced_and_reaped_under_a_reader_is_read_as_it_is_now(tmp_path: Path) -> None:
    """A batch that was planned long before it is read, as a process that stood still would."""
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        # What is small may leave its page to others, and can be read for longer.
        names = [name for name, data in OBJECTS.items() if len(data) > 8192]
        n = len(names)
        whole, parts = batch(store, names), batch(store, names, start=[1] * n, length=[2] * n)
        pinned = batch(store, names, version=[str(store.head(BUCKET, name).version) for name in names])
        put_group(store, dict.fromkeys(names[::2], b"new"))
        store.delete(BUCKET, names[1])
        reap(store)
        now = {**OBJECTS, **dict.fromkeys(names[::2], b"new")}
        wanted: list[bytes | int] = [now[name] for name in names]
        wanted[1] = pb.NOT_FOUND
        assert delivered(whole) == wanted
        assert delivered(parts) == [found if isinstance(found, int) else found[1:3] for found in wanted]
        gone = [pb.NOT_FOUND if at % 2 == 0 or at == 1 else OBJECTS[name] for at, name in enumerate(names)]
        assert delivered(pinned) == gone
        assert drive_of(store).faults.checksum_errors == 0


def test_what_is_opened_before_it_is_replaced_is_read_to_its_end(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        reader = open_object(store, BUCKET, "050")
        put(store, "050", b"new")
        reap(store)
        assert b"".join(reader) == OBJECTS["050"] and read(store, "050") == b"new"


def test_a_damaged_object_is_told_and_its_neighbours_are_well(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        _, record = store.locate(BUCKET, "050")
        flip_a_byte(segment_of(store, "050"), record.offset + 3)
        for how in ({}, {"start": 1, "length": 1}):
            with pytest.raises(CorruptObject, match="do not match"):
                read(store, "050", **how)  # type: ignore[arg-type]
        assert drive_of(store).faults.checksum_errors == 2
        found = delivered(batch(store, ["049", "050", "051"]))
        assert found == [OBJECTS["049"], pb.CORRUPT, OBJECTS["051"]]
    assert kinds(doctor.check([tmp_path], checksums=True)) == ["corrupt"]
    doctor.repair([tmp_path], checksums=True, drop_damaged=True)
    with store_at(tmp_path) as store:
        assert contents(store) == {name: data for name, data in OBJECTS.items() if name != "050"}
    assert_sound(tmp_path)


def test_one_that_must_not_be_put_is_left_out_of_the_file(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        drive_of(store)._garbage._grace_s = 3600.0
        put(store, "b", b"there")
        uploads = [store.stage(BUCKET, name, [name.encode() * 5000], {}, grouped=True) for name in ("a", "b", "c", "b")]
        uploads[1].require(Condition(if_absent=True))
        _, b, _, again = store.commit_many(uploads)
        assert isinstance(b, VersionConflict) and isinstance(again, CatalogEntry)
        assert contents(store) == {name: name.encode() * 5000 for name in "abc"}
        assert files_on(tmp_path) == 4  # and the one that was there before, for readers
        reap(store)
        assert files_on(tmp_path) == 3
    assert_sound(tmp_path)


def test_a_group_none_of_which_is_newer_leaves_nothing(tmp_path: Path) -> None:
    newer = Version(9, 1 << 40, 3)
    with store_at(tmp_path) as store:
        for version, data in ((newer, b"new"), (Version(9, 1, 3), b"old")):
            uploads = [store.stage(BUCKET, name, [data], {}, grouped=True) for name in "abc"]
            for upload in uploads:
                upload.assign(version)
            assert [record.version for record in store.commit_many(uploads)] == [newer] * 3  # type: ignore[union-attr]
        assert set(contents(store).values()) == {b"new"} and len(object_files(tmp_path)) == 1
        assert not os.listdir(tmp_path / "staging")


def test_what_a_snapshot_sees_stays_in_its_segment_and_survives_a_rebuild(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        store.snapshots.create(BUCKET, "s")
        store.delete_many(BUCKET, list(OBJECTS)[:50])
        put_group(store, dict.fromkeys(list(OBJECTS)[50:75], b"new"))
        reap(store)
        now = contents(store)
        assert contents(store, at("s")) == OBJECTS and len(retained(store)) == 75
    assert_sound(tmp_path)
    shutil.rmtree(tmp_path / "catalog")
    doctor.rebuild([tmp_path])
    with store_at(tmp_path) as store:
        assert (contents(store), contents(store, at("s"))) == (now, OBJECTS)
        store.snapshots.delete(BUCKET, "s")
        reap(store)
        assert contents(store) == now and files_on(tmp_path) == 50
    assert_sound(tmp_path)


def test_a_rebuilt_catalog_has_the_living_and_not_the_dead(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        store.delete_many(BUCKET, list(OBJECTS)[::3])
        put_group(store, dict.fromkeys(list(OBJECTS)[1::3], b"new"))
        now = contents(store)  # and nothing is reaped: their bytes are all there
    shutil.rmtree(tmp_path / "catalog")
    doctor.rebuild([tmp_path])
    doctor.repair([tmp_path])
    with store_at(tmp_path) as store:
        assert contents(store) == now and store.head(BUCKET, "002").metadata == {"of": "002"}
    assert_sound(tmp_path)


@pytest.mark.slow
def test_objects_of_a_segment_that_has_lost_both_indexes_are_read_and_get_files_of_their_own(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        store.delete(BUCKET, "000")
        lose_begin(segment_of(store, "001"))
        lose_end(segment_of(store, "001"))
    left = {name: data for name, data in OBJECTS.items() if name != "000"}
    with store_at(tmp_path) as store:
        assert contents(store) == left
    assert set(kinds(doctor.check([tmp_path], checksums=True))) == {"file-identity"}
    doctor.repair([tmp_path], checksums=True)
    # Nothing names the segment any more, but it cannot say that there is nothing in it.
    assert kinds(doctor.repair([tmp_path])) == ["segment-damaged"]
    doctor.repair([tmp_path], drop_damaged=True)
    with store_at(tmp_path) as store:
        assert contents(store) == left and len(object_files(tmp_path)) == len(left)
    assert_sound(tmp_path)


def test_an_entry_that_was_begun_elsewhere_goes_on_in_a_segment(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        data, version = OBJECTS["050"], str(store.head(BUCKET, "050").version)
        for start, length in ((0, -1), (10, 3000)):
            wanted = data[start:][: None if length < 0 else length]
            how = {"start": [start, 0], "length": [length, -1], "resume_offset": 700, "resume_version": version}
            for replaced in (False, True):
                batch_of = batch(store, ["050", "051"], resume_checksum=crc32c(wanted[:700]), **how)
                if replaced:
                    put(store, "050", b"new")
                    reap(store)
                frames = [batch_of.read(span) for span in batch_of.spans()]
                if replaced:
                    # Whoever asks again gets the new version, which does not have this range.
                    assert frames[0].status.tolist() == [pb.RANGE if start else pb.UNAVAILABLE]
                    put_group(store, {"050": data, "unused": b""})
                    version = how["resume_version"] = str(store.head(BUCKET, "050").version)
                else:
                    assert bytes(frames[0].payload) == wanted[700:] and frames[0].completes_entry
                    assert frames[0].checksum.tolist() == [crc32c(wanted)]
                assert bytes(frames[1].payload) == OBJECTS["051"]
        assert drive_of(store).faults.checksum_errors == 0


def test_on_a_drive_so_full_that_nothing_can_be_written_room_is_made_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    write = os.pwrite

    def full_until_punched(fd: int, data: bytes, offset: int) -> int:
        if os.fstat(fd).st_blocks * 512 >= before:
            refused.append(offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data, offset)

    with store_at(tmp_path) as store:
        put_group(store, OBJECTS)
        before = used_bytes(tmp_path)
        large = next(name for name, data in OBJECTS.items() if len(data) > 15_000)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full_until_punched)
            store.delete(BUCKET, large)
            reap(store)
        assert len(refused) == 2 and used_bytes(tmp_path) < before  # of the deletion, and of the removal
        assert contents(store) == {name: data for name, data in OBJECTS.items() if name != large}
    assert_sound(tmp_path)
