"""A bucket that wants archives in many frames: what is stored, what is said of it, and what is left as it came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conformance_kit import contents

from ais_loader import Bucket, Client, Entry, errors
from ais_loader.objects.equal_files import without_equal
from ais_loader.objects.folder_walk import FileToStore
from ais_loader.testing import seeded_bytes
from ais_loader.wire.checksum import crc32c
from tests.tar_kit import packed_tar

zstandard = pytest.importorskip("zstandard")
frame = pytest.importorskip("lz4.frame")
MEMBERS = {f"m/{at:03d}": 20 * seeded_bytes(2000 + at, seed=at) for at in range(60)}  # small when packed
TAR = packed_tar(MEMBERS)


def one_frame(name: str) -> bytes:
    if name.endswith(".tar.zst"):
        data: bytes = zstandard.ZstdCompressor(level=1).compress(TAR)
    else:
        data = frame.compress(TAR, block_linked=True)
    return data


def frames_of_zst(data: bytes) -> int:
    count, rest = 0, data
    while rest:
        if rest[:4] == b"\x28\xb5\x2f\xfd":
            decoder = zstandard.ZstdDecompressor().decompressobj()
            decoder.decompress(rest)
            rest = decoder.unused_data
        else:  # a skippable one: the table
            rest = rest[8 + int.from_bytes(rest[4:8], "little") :]
        count += 1
    return count


def is_many(name: str, data: bytes) -> bool:
    """Whether there are places to begin to unpack at."""
    return frames_of_zst(data) > 8 if name.endswith(".tar.zst") else frame.get_frame_info(data)["block_linked"] is False


def unpacked(name: str, data: bytes) -> bytes:
    if name.endswith(".tar.zst"):
        with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
            plain: bytes = reader.read()
        return plain
    return bytes(frame.decompress(data))


@pytest.fixture
def wanting(client: Client, bucket_name: str) -> Iterator[Bucket]:
    yield client.create_bucket(f"{bucket_name}-w", reframe=True)
    client.delete_bucket(f"{bucket_name}-w", force=True)


def put(bucket: Bucket, name: str, data: bytes) -> None:
    bucket.put(name, data, metadata={"k": "v"}, checksum=crc32c(data))


def put_many(bucket: Bucket, name: str, data: bytes) -> None:
    bucket.put_many([("other", b"1"), (name, data, {"k": "v"}), ("another.tar.zst", b"2")])


@pytest.mark.parametrize("way", [put, put_many])
@pytest.mark.parametrize("name", ["s.tar.zst", "s.tar.lz4"])
def test_an_archive_in_one_frame_is_stored_in_many(
    wanting: Bucket, name: str, way: Callable[[Bucket, str, bytes], None]
) -> None:
    data = one_frame(name)
    assert not is_many(name, data)
    way(wanting, name, data)
    stored, info = wanting.get(name), wanting.head(name)
    assert is_many(name, stored) and unpacked(name, stored) == TAR
    assert (info.size_bytes, info.checksum) == (len(stored), crc32c(stored))
    assert info.metadata == {
        "k": "v",
        "ais-original-size": str(len(data)),
        "ais-original-crc32c": f"{crc32c(data):08x}",
    }
    batch = wanting.client.get_batch([Entry(wanting.name, name, member) for member in reversed(MEMBERS)])
    assert contents(batch) == list(reversed(MEMBERS.values()))
    assert [member.name for member in wanting.members(name)] == list(MEMBERS)


@pytest.mark.parametrize("case", ["broken", "many already", "plain", "gzip", "not an archive", "too much metadata"])
def test_what_need_not_or_cannot_be_changed_is_stored_as_it_came(wanting: Bucket, case: str) -> None:
    name, data, metadata = "s.tar.zst", one_frame("s.tar.zst"), {"k": "v"}
    if case == "broken":
        data = data[:-1000]
    elif case == "many already":
        wanting.put("first.tar.zst", data)
        data = wanting.get("first.tar.zst")
    elif case == "plain":
        name, data = "s.tar", TAR
    elif case == "gzip":
        name, data = "s.tar.gz", packed_tar(MEMBERS, "w:gz")
    elif case == "not an archive":
        name = "s.zst"
    else:
        metadata = {"k": "v" * 4080}
    info = wanting.put(name, data, metadata=metadata)
    assert wanting.get(name) == data
    assert (info.size_bytes, info.checksum, info.metadata) == (len(data), crc32c(data), metadata)


@pytest.mark.slow
def test_bytes_that_were_not_announced_are_refused_and_other_buckets_keep_what_comes(
    wanting: Bucket, bucket: Bucket
) -> None:
    data = one_frame("s.tar.zst")
    with pytest.raises(errors.ContentMismatch):
        wanting.put("s.tar.zst", data, checksum=1)
    with pytest.raises(errors.ObjectNotFound):
        wanting.head("s.tar.zst")
    bucket.put("s.tar.zst", data)
    assert bucket.get("s.tar.zst") == data
    bucket.set(reframe=True)
    bucket.put("s.tar.zst", data)
    assert is_many("s.tar.zst", bucket.get("s.tar.zst"))
    assert bucket.head("s.tar.zst").metadata["ais-original-size"] == str(len(data))


def test_a_put_that_skips_what_is_there_knows_what_was_sent(wanting: Bucket, tmp_path: Path) -> None:
    data = one_frame("s.tar.lz4")
    wanting.put("s.tar.lz4", data)
    (tmp_path / "same").write_bytes(data)
    (tmp_path / "stored").write_bytes(wanting.get("s.tar.lz4"))
    same, stored = (
        FileToStore(str(path), "s.tar.lz4", path.stat().st_size) for path in (tmp_path / "same", tmp_path / "stored")
    )
    assert without_equal(wanting, [same]) == ([], 1)
    assert without_equal(wanting, [stored]) == ([stored], 0)
