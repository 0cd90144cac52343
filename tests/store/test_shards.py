"""Indexes of shards on a drive: made when the shard is put, made again when they are lost, gone when it is."""

from __future__ import annotations

import gc
import resource
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import EmbeddedOptions, Entry, connect
from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge, CorruptObject, MemberNotFound
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.archives import open_archives as shards
from storage_node.store.archives.open_archives import ShardLimits
from storage_node.store.read.batch import StoreBatch
from storage_node.store.read.object_reader import open_member
from storage_node.store.store import Store
from tests.open_files import open_files
from tests.store.store_kit import BUCKET, assert_sound, drive_of, file_of, flip_a_byte, put, read, store_at
from tests.table import table
from tests.tar_kit import packed_tar

MEMBERS = {f"{at}.bin": seeded_bytes(at * 311, seed=at) for at in range(50)}


def member(store: Store, shard: str, name: str) -> bytes:
    return b"".join(open_member(store, BUCKET, shard, name))


def indexes(root: Path) -> list[Path]:
    return sorted((root / shards.FOLDER_NAME).glob("*.index"))


def test_a_shard_that_is_put_has_its_index_before_anybody_asks(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "plain.bin", packed_tar(MEMBERS))
        assert indexes(root) == []
        with store.begin_put(BUCKET, "s.tar") as upload:
            data = packed_tar(MEMBERS)
            for at in range(0, len(data), 777):
                upload.write(data[at : at + 777])
            upload.commit()
        assert len(indexes(root)) == 1
        # What the bytes are, the index knows: it is not made again from a file that has changed since.
        flip_a_byte(file_of(store, "s.tar"), data.index(MEMBERS["7.bin"]))
        assert member(store, "s.tar", "8.bin") == MEMBERS["8.bin"]
        with pytest.raises(CorruptObject):
            member(store, "s.tar", "7.bin")


def test_members_of_closed_shards_are_read_without_opening_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their indexes are in memory. What happens to a shard is seen as with one that is open."""
    members = {"small": b"s" * 700, "large": seeded_bytes(900_000)}
    wanted = [(f"{shard}.tar", name) for name in ("small", "large", "small", "none") for shard in "abc"]
    request = pb.BatchRequest(bucket=[BUCKET], name=[shard for shard, _ in wanted], member=[name for _, name in wanted])

    def found(reading: StoreBatch, target_bytes: int = 1 << 20) -> list[bytes]:
        parts: dict[int, bytes] = {}
        for span in reading.spans(target_bytes):
            frame = reading.read(span)
            for index, part in zip(frame.index.tolist(), frame.entries(), strict=True):
                parts[index] = parts.get(index, b"") + bytes(part)
        return list(parts.values())

    with store_at(tmp_path / "drive", shard_limits=ShardLimits(open_shards=1)) as store:
        for shard in "abcd":
            put(store, f"{shard}.tar", packed_tar({**members, "mark": shard.encode()}))
        due = [members.get(name, b"") for _, name in wanted]
        assert found(StoreBatch(store, request)) == due
        assert member(store, "d.tar", "mark") == b"d"  # the only one that is open now
        with monkeypatch.context() as patch:
            patch.setattr(shards.OpenArchives, "_opened", None)
            ask = pb.BatchRequest(bucket=[BUCKET], name=request.name[:9], member=request.member[:9])
            for target_bytes in (1 << 20, 64 << 10, 5 << 20):
                assert found(StoreBatch(store, ask), target_bytes) == due[:9]
        reading = StoreBatch(store, ask)
        other = {name: data[::-1] + b"!" for name, data in members.items()}
        put(store, "a.tar", packed_tar(other))
        put(store, "b.tar", packed_tar({"elsewhere": b"1"}))
        store.delete(BUCKET, "c.tar")
        drive_of(store).reap(everything=True)
        ends = {"a.tar": pb.OK, "b.tar": pb.MEMBER_NOT_FOUND, "c.tar": pb.NOT_FOUND}
        due = [other[name] if shard == "a.tar" else b"" for shard, name in wanted[:9]]
        for one in (reading, StoreBatch(store, ask)):
            assert found(one) == due
            assert one.status.tolist() == [ends[shard] for shard, _ in wanted[:9]]


def test_no_descriptor_is_left_of_a_shard_that_is_replaced_before_a_large_member_is_read(tmp_path: Path) -> None:
    old, new = seeded_bytes(5 << 20, seed=1), seeded_bytes(5 << 20, seed=2)
    with store_at(tmp_path) as store:
        put(store, "s.tar", packed_tar({"large": old}))
        reading = StoreBatch(store, pb.BatchRequest(bucket=[BUCKET], name=["s.tar"], member=["large"]))
        former = file_of(store, "s.tar")
        put(store, "s.tar", packed_tar({"large": new}))
        drive_of(store).reap(everything=True)
        assert b"".join(bytes(reading.read(span).payload) for span in reading.spans()) == new
        reading.close()
        del reading
        gc.collect()
        assert [target for target in open_files().values() if str(former) in target] == []


@pytest.mark.slow
@table("harm", ["lost", "damaged", "empty", "of another shard", "folder lost"])
def test_an_index_that_is_no_good_is_made_again(tmp_path: Path, harm: str) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "s.tar", packed_tar(MEMBERS))
        (mine,) = indexes(root)
        put(store, "t.tar", packed_tar({"other": b"1"}))
        (other,) = (path for path in indexes(root) if path != mine)
    if harm == "lost":
        mine.unlink()
    elif harm == "damaged":
        flip_a_byte(mine, 200)
    elif harm == "empty":
        mine.write_bytes(b"")
    elif harm == "of another shard":
        shutil.copy(other, mine)
    else:
        shutil.rmtree(mine.parent)
    with store_at(root) as store:
        assert member(store, "s.tar", "7.bin") == MEMBERS["7.bin"]
        assert member(store, "t.tar", "other") == b"1"
        assert len(indexes(root)) == 2
    assert_sound(root)


def test_an_index_goes_with_its_shard(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "s.tar", packed_tar(MEMBERS))
        put(store, "t.tar", packed_tar(MEMBERS))
        before = indexes(root)
        put(store, "s.tar", packed_tar({"new": b"1"}))
        store.delete(BUCKET, "t.tar")
        for drive in store.drives:
            assert drive is not None
            drive.reap(everything=True)
        (left,) = indexes(root)
        assert left not in before
        assert member(store, "s.tar", "new") == b"1"
        with pytest.raises(MemberNotFound, match=r"'s\.tar' has no member '7\.bin'"):
            member(store, "s.tar", "7.bin")


def test_what_a_crash_left_is_swept(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "s.tar", packed_tar(MEMBERS))
    (index,) = indexes(root)
    orphan = index.with_name("00-00-" + 28 * "a" + ".1.index")
    shutil.copy(index, orphan)
    half = index.with_name(f".{index.name}.1.abcd")
    half.write_bytes(b"half of it")
    with store_at(root) as store:
        index.unlink()
        assert member(store, "s.tar", "7.bin") == MEMBERS["7.bin"]
    assert sorted((root / shards.FOLDER_NAME).iterdir()) == [index]


@pytest.mark.slow
def test_many_who_ask_first_share_one_index(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    names = list(MEMBERS) * 8
    with store_at(root) as store:
        put(store, "s.tar.gz", packed_tar(MEMBERS, "w:gz"))
        shutil.rmtree(root / shards.FOLDER_NAME)
        start = threading.Barrier(16)

        def ask(share: int) -> list[bytes]:
            start.wait(180)
            return [member(store, "s.tar.gz", name) for name in names[share::16]]

        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(ask, range(16)))
        for share, mine in enumerate(found):
            assert mine == [MEMBERS[name] for name in names[share::16]]
        drive, record = store.locate(BUCKET, "s.tar.gz")
        assert drive.shards.open(record, "s.tar.gz") is drive.shards.open(record, "s.tar.gz")


def test_a_reader_beside_the_writer_uses_its_indexes_and_writes_none(tmp_path: Path) -> None:
    root = tmp_path / "drive"
    with store_at(root) as writer, Store.open([root], mode="r") as reader:
        put(writer, "s.tar", packed_tar(MEMBERS))
        assert member(reader, "s.tar", "7.bin") == MEMBERS["7.bin"]
        put(writer, "t.tar", packed_tar(MEMBERS))
        for index in indexes(root):
            index.unlink()
        assert member(reader, "t.tar", "8.bin") == MEMBERS["8.bin"]
        assert indexes(root) == []
        put(writer, "s.tar", packed_tar({"7.bin": b"changed"}))
        eventually(lambda: member(reader, "s.tar", "7.bin") == b"changed")  # no later than any other object


def test_no_more_files_are_kept_open_than_allowed(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive", shard_limits=ShardLimits(open_shards=5)) as store:
        for at in range(40):
            put(store, f"{at}.tar", packed_tar({"a": b"%d" % at}))
        for _ in range(2):
            for at in range(40):
                assert member(store, f"{at}.tar", "a") == b"%d" % at
        objects = tmp_path / "drive" / "objects"
        assert len(open_files(objects)) <= 2 * 5


@table(("descriptors", "drives", "shards"), [(256, 1, 128), (20_000, 1, 2_500), (20_000, 16, 156), (1 << 20, 4, 4_096)])
def test_how_many_archives_stay_open_follows_the_limit_on_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, drives: int, shards: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert ShardLimits().of_drives(drives).open_shards == shards
    assert ShardLimits(open_shards=7).of_drives(drives).open_shards == 7


def test_indexes_outlive_the_descriptors_of_their_shards_within_their_bytes(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive", shard_limits=ShardLimits(open_shards=2)) as store:
        for at in range(12):
            put(store, f"{at}.tar", packed_tar({"m": b"%d" % at}))
        (drive,) = store.drives
        assert drive is not None
        for at in range(12):
            assert member(store, f"{at}.tar", "m") == b"%d" % at
        for path in indexes(tmp_path / "drive"):
            path.write_bytes(b"nobody reads this again")
        for at in range(12):
            assert member(store, f"{at}.tar", "m") == b"%d" % at
        one = drive.shards._indexes.size_bytes // 12
        store.delete(BUCKET, "3.tar")
        drive.reap(everything=True)
        assert drive.shards._indexes.size_bytes == 11 * one
    with store_at(tmp_path / "drive", shard_limits=ShardLimits(open_shards=2, index_bytes=5 * one)) as store:
        (drive,) = store.drives
        assert drive is not None
        for at in (*range(3), *range(4, 12), *range(3)):
            assert member(store, f"{at}.tar", "m") == b"%d" % at
            assert drive.shards._indexes.size_bytes <= 5 * one


def test_a_shard_without_members_is_an_object_and_says_why_each_time(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        data = packed_tar(MEMBERS)[:-20_000]
        put(store, "s.tar", data)
        assert read(store, "s.tar") == data
        for _ in range(2):
            with pytest.raises(ArchiveDamaged, match="byte"):
                member(store, "s.tar", "7.bin")
        put(store, "s.tar", packed_tar(MEMBERS))
        assert member(store, "s.tar", "7.bin") == MEMBERS["7.bin"]


@pytest.mark.slow
def test_a_shard_that_must_be_unpacked_is_unpacked_within_the_budget(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    members = {f"{at}": seeded_bytes(1 << 20, seed=at) for at in range(40)}
    packed = zstandard.ZstdCompressor(level=1).compress(packed_tar(members))
    with store_at(tmp_path / "drive") as store:
        put(store, "s.tar.zst", packed)
        drive, record = store.locate(BUCKET, "s.tar.zst")
        assert drive.shards.open(record, "s.tar.zst").archive.is_plain  # it is the copy that is read
        assert [member(store, "s.tar.zst", name) for name in ("39", "0", "20")] == [
            members[n] for n in ("39", "0", "20")
        ]
    limits = ShardLimits(copy_bytes=10 << 20)
    with store_at(tmp_path / "drive", shard_limits=limits) as store, pytest.raises(ArchiveTooLarge, match="budget"):
        member(store, "s.tar.zst", "39")


def test_archives_that_nobody_reads_give_their_decompressed_copies_back(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packer = zstandard.ZstdCompressor(level=1)
    with store_at(tmp_path / "drive", shard_limits=ShardLimits(copy_bytes=40 << 20)) as store:  # two copies
        for at in range(4):
            members = {"zeros": bytes(17 << 20), "m": b"%d" % at}
            put(store, f"{at}.tar.zst", packer.compress(packed_tar(members)))
        reading = open_member(store, BUCKET, "0.tar.zst", "zeros")
        for at in (0, 1, 2, 3, 0, 1):
            assert member(store, f"{at}.tar.zst", "m") == b"%d" % at
        assert b"".join(reading) == bytes(17 << 20)


def test_a_batch_of_more_archives_than_there_is_room_for_copies_of_is_read(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packer = zstandard.ZstdCompressor(level=1)
    options = EmbeddedOptions(shard_copy_bytes=40 << 20)  # two copies
    with connect(tmp_path / "store", options=options) as client:
        bucket = client.create_bucket("b")
        for at in range(4):
            members = {"zeros": bytes(17 << 20), "m": b"%d" % at}
            bucket.put(f"{at}.tar.zst", packer.compress(packed_tar(members)))
        wanted = [Entry("b", f"{at}.tar.zst", member="m") for at in (3, 0, 1, 2, 3)]
        wanted += [Entry("b", f"{at}.tar.zst", member="zeros", start=16 << 20, length=5) for at in range(4)]
        found = [bytes(item.data) for item in bucket.get_batch(wanted)]
        assert found == [b"3", b"0", b"1", b"2", b"3", *[bytes(5)] * 4]


def test_readers_of_an_archive_without_a_copy_share_its_descriptor_and_the_next_one_gets_a_copy(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor(level=1).compress(packed_tar({"zeros": bytes(17 << 20)}))
    with store_at(tmp_path / "drive", shard_limits=ShardLimits(copy_bytes=20 << 20)) as store:  # one copy
        entries = [put(store, f"{at}.tar.zst", packed) for at in range(2)]
        archives = drive_of(store).shards
        copied = archives.open(entries[0], "0.tar.zst")
        shared = archives.open(entries[1], "1.tar.zst")
        assert copied.archive.is_plain and not shared.archive.is_plain
        assert archives.open(entries[1], "1.tar.zst") is shared
        del copied, shared
        assert archives.open(entries[1], "1.tar.zst").archive.is_plain


def test_members_are_read_from_a_drive_that_takes_no_copies(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    members = {"zeros": bytes(17 << 20), "m": b"member"}
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, "s.tar.zst", zstandard.ZstdCompressor(level=1).compress(packed_tar(members)))
    shutil.rmtree(root / shards.FOLDER_NAME)
    (root / shards.FOLDER_NAME).touch()  # as on a drive that is mounted for reading only, no folder can be made there
    with Store.open([root], mode="r") as reader:
        assert member(reader, "s.tar.zst", "m") == b"member"


@pytest.mark.slow
@table("name", ["s.tar.zst", "s.tar.gz", "s.tar"])
def test_a_shard_that_was_damaged_never_gives_other_bytes_with_its_index_or_without(tmp_path: Path, name: str) -> None:
    zstandard = pytest.importorskip("zstandard")
    members = {"zeros": bytes(17 << 20), **MEMBERS}  # with so long a stretch a tar.zst is read through a copy
    data = packed_tar(members, "w:gz" if name.endswith("gz") else "w:")
    if name.endswith("zst"):
        data = zstandard.ZstdCompressor(level=1).compress(data)
    root = tmp_path / "drive"
    with store_at(root) as store:
        put(store, name, data)
        file = file_of(store, name)
    for at in (len(data) - 200_000, len(data) - 90_000):
        flip_a_byte(file, at)
        for has_index in (True, False):
            told = 0
            with store_at(root) as store:
                for path in [] if has_index else indexes(root):
                    path.unlink()
                for wanted in MEMBERS:
                    try:
                        assert member(store, name, wanted) == MEMBERS[wanted]
                    except (ArchiveDamaged, CorruptObject):
                        told += 1
            assert told > 0
        assert (told, indexes(root)) == (len(MEMBERS), [])  # none is made of what is damaged
        flip_a_byte(file, at)
        with store_at(root) as store:
            assert member(store, name, "49.bin") == MEMBERS["49.bin"]
            assert len(indexes(root)) == 1
