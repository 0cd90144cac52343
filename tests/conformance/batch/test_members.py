"""Members of archives, over every transport: the bytes that tarfile and zipfile give, in any order."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from conformance_kit import MiB, contents

from ais_loader import Bucket, Client, Entry, Status, errors
from ais_loader.testing import seeded_bytes
from tests.store.archives.archive_kit import WRITTEN_BY_BSDTAR, run, tar_members
from tests.tar_kit import packed_tar

MEMBERS = {
    **{f"en/{at:04d}.wav": seeded_bytes(137 * at % 9_000, seed=at) for at in range(150)},
    "large.bin": seeded_bytes(5 * MiB + 3, seed=1000),
    "text.txt": b"a line that can be packed\n" * 40_000,
    "ä/" + "n" * 200: b"a name that ustar cannot hold",
    "empty": b"",
}


def zipped(members: Mapping[str, bytes], compression: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return packed.getvalue()


def zst_frames(data: bytes, frame_bytes: int) -> bytes:
    compressor = zstandard.ZstdCompressor()
    return b"".join(compressor.compress(data[at : at + frame_bytes]) for at in range(0, len(data), frame_bytes))


SHARDS: dict[str, Callable[[], bytes]] = {
    "plain.tar": lambda: packed_tar(MEMBERS),
    "gzip.tar.gz": lambda: packed_tar(MEMBERS, "w:gz"),
    "one-frame.tar.zst": lambda: zstandard.ZstdCompressor().compress(packed_tar(MEMBERS)),
    "frames.tar.zst": lambda: zst_frames(packed_tar(MEMBERS), MiB // 2),
    "blocks.tar.lz4": lambda: lz4.frame.compress(
        packed_tar(MEMBERS), block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX256KB
    ),
    "linked.tar.lz4": lambda: lz4.frame.compress(packed_tar(MEMBERS), block_linked=True),
    "stored.zip": lambda: zipped(MEMBERS, zipfile.ZIP_STORED),
    "deflated.zip": lambda: zipped(MEMBERS, zipfile.ZIP_DEFLATED),
}
_MADE: dict[str, bytes] = {}


@pytest.fixture(params=SHARDS)
def shard(request: pytest.FixtureRequest, bucket: Bucket) -> str:
    name = str(request.param)
    if name not in _MADE:
        _MADE[name] = SHARDS[name]()
    bucket.put(name, _MADE[name])
    return name


@pytest.mark.slow
def test_members_come_in_the_order_asked_as_often_as_asked(client: Client, bucket: Bucket, shard: str) -> None:
    names = random.Random(3).choices(list(MEMBERS), k=120) + list(MEMBERS)
    bucket.put("plain", b"an object between members")
    entries = [Entry(bucket.name, shard, name) for name in names]
    entries[50] = Entry(bucket.name, "plain")
    wanted = [MEMBERS[name] for name in names]
    wanted[50] = b"an object between members"
    assert client.get_batch(entries).tobytes() == wanted
    assert contents(client.get_batch(entries)) == wanted


def test_ranges_of_members_are_those_of_their_bytes(client: Client, bucket: Bucket, shard: str) -> None:
    ranges = [
        ("large.bin", MiB - 1, 4 * MiB + 2),
        ("text.txt", 100, 5_000),
        ("en/0033.wav", 0, 0),
        ("large.bin", 7, None),
    ]
    ranges += [("empty", 0, None), ("text.txt", len(MEMBERS["text.txt"]), None), ("en/0020.wav", 5, 10)]
    entries = [Entry(bucket.name, shard, name, start, length) for name, start, length in ranges]
    wanted = [MEMBERS[name][start : None if length is None else start + length] for name, start, length in ranges]
    assert contents(client.get_batch(entries)) == wanted
    assert contents(client.get_batch(entries, verify_ranges=True)) == wanted


def test_one_member_is_read_whole_or_in_part(bucket: Bucket, shard: str) -> None:
    assert bucket.get(shard, member="large.bin") == MEMBERS["large.bin"]
    assert bucket.get(shard, member="text.txt", start=3, length=8, verify=True) == MEMBERS["text.txt"][3:11]
    with pytest.raises(errors.MemberNotFound, match=r"no member 'en/nobody\.wav'"):
        bucket.get(shard, member="en/nobody.wav")
    with pytest.raises(errors.RangeError, match="member 'empty'"):
        bucket.get(shard, member="empty", start=1)


def test_failures_have_their_status_in_their_place(client: Client, bucket: Bucket, shard: str) -> None:
    bucket.put("broken.tar", packed_tar(MEMBERS)[:5_000])
    bucket.put("really.tar.gz", packed_tar(MEMBERS))
    entries = [
        Entry(bucket.name, shard, "en/0001.wav"),
        Entry(bucket.name, shard, "nobody"),
        Entry(bucket.name, shard, "en/0001.wav", start=138),
        Entry(bucket.name, "none.tar", "x"),
        Entry(bucket.name, "broken.tar", "en/0001.wav"),
        Entry(bucket.name, "really.tar.gz", "en/0001.wav"),
        Entry(bucket.name, shard, "en/0001.wav", version="99.99.99"),
        Entry(bucket.name, shard, "en/0002.wav"),
    ]
    items = list(client.get_batch(entries, on_error="placeholder"))
    assert [item.status for item in items] == [
        Status.OK,
        Status.MEMBER_NOT_FOUND,
        Status.RANGE,
        Status.NOT_FOUND,
        Status.CORRUPT,
        Status.FAILED,
        Status.NOT_FOUND,
        Status.OK,
    ]
    assert [type(item.error) for item in items[1:7]] == [
        errors.MemberNotFound,
        errors.RangeError,
        errors.ObjectNotFound,
        errors.ArchiveDamaged,
        errors.NotAnArchive,
        errors.ObjectNotFound,
    ]
    assert (items[0].tobytes(), items[7].tobytes()) == (MEMBERS["en/0001.wav"], MEMBERS["en/0002.wav"])


@pytest.mark.slow
def test_shards_of_other_writers_are_read_as_by_tarfile(client: Client, bucket: Bucket, tmp_path: Path) -> None:
    import webdataset

    for name, data in MEMBERS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    (tmp_path / ("h" * 150)).hardlink_to(tmp_path / "large.bin")
    shards = {f"bsdtar/{path.stem}.tar": path.read_bytes() for path in WRITTEN_BY_BSDTAR.glob("*.tar")}
    for how in ("gnu", "posix"):
        shards[f"{how}.tar"] = run(["tar", f"--format={how}", "-cf", "-", *MEMBERS, "h" * 150], cwd=tmp_path)
    with webdataset.TarWriter(str(tmp_path / "w.tar")) as writer:
        for name, data in MEMBERS.items():
            writer.write({"__key__": name, "bin": data})
    shards["webdataset.tar"] = (tmp_path / "w.tar").read_bytes()
    for shard, data in shards.items():
        bucket.put(shard, data)
        wanted = tar_members(data)
        assert contents(client.get_batch([Entry(bucket.name, shard, name) for name in wanted])) == list(wanted.values())
        assert sorted(member.name for member in bucket.members(shard)) == sorted(wanted)


def test_a_shard_put_again_has_its_new_members_and_no_old_ones(client: Client, bucket: Bucket, shard: str) -> None:
    assert bucket.get(shard, member="en/0001.wav") == MEMBERS["en/0001.wav"]
    changed = {"en/0001.wav": b"new", "only": b"here"}
    bucket.put("s.tar", packed_tar(MEMBERS))
    assert bucket.get("s.tar", member="en/0002.wav") == MEMBERS["en/0002.wav"]
    bucket.put("s.tar", packed_tar(changed))
    assert bucket.get("s.tar", member="en/0001.wav") == b"new"
    with pytest.raises(errors.MemberNotFound):
        bucket.get("s.tar", member="en/0002.wav")


def test_urls_name_members(client: Client, bucket: Bucket) -> None:
    bucket.put("a/s.tar", packed_tar(MEMBERS))
    url = f"ais://{bucket.name}/a/s.tar/en/0007.wav"
    assert client.get_batch([url]).tobytes() == [MEMBERS["en/0007.wav"]]


def test_shards_stored_together_are_indexed_too(client: Client, bucket: Bucket) -> None:
    shards = {
        f"{at}.tar": packed_tar({f"{n}": seeded_bytes(100 + n, seed=at * 100 + n) for n in range(20)})
        for at in range(30)
    }
    bucket.put_many(shards.items())
    entries = [Entry(bucket.name, f"{at}.tar", f"{n}") for n in range(20) for at in range(30)]
    random.Random(1).shuffle(entries)
    assert client.get_batch(entries, colocation="shard").tobytes() == [
        seeded_bytes(100 + int(entry.member or 0), seed=int(entry.name[:-4]) * 100 + int(entry.member or 0))
        for entry in entries
    ]


def test_members_are_listed_in_the_order_of_the_archive(client: Client, bucket: Bucket, shard: str) -> None:
    found = list(bucket.members(shard, page_size=40))
    assert [member.name for member in found] == list(MEMBERS)
    assert [member.size_bytes for member in found] == list(map(len, MEMBERS.values()))
    assert {member.version for member in found} == {bucket.head(shard).version}
    assert contents(client.get_batch([member.entry() for member in found[::7]])) == list(MEMBERS.values())[::7]
    assert [member.name for member in bucket.members(shard, "en/001", page_size=3)] == [
        f"en/001{digit}.wav" for digit in range(10)
    ]
    assert list(bucket.members(shard, "nobody")) == []


def test_a_listing_of_members_is_of_one_version_of_the_archive(bucket: Bucket) -> None:
    bucket.put("s.tar", packed_tar(MEMBERS))
    listing = bucket.members("s.tar", page_size=10)
    assert next(listing).name == "en/0000.wav"
    bucket.put("s.tar", packed_tar({"a": b"1"}))
    with pytest.raises(errors.ObjectNotFound, match="version"):
        list(listing)
    for name, error in (("nothing.tar", errors.ObjectNotFound), ("plain", errors.NotAnArchive)):
        bucket.put("plain", b"x")
        with pytest.raises(error):
            list(bucket.members(name))
    with pytest.raises(errors.InvalidRequest, match="page_size=0"):
        bucket.members("s.tar", page_size=0)
