"""Opening a file over every transport: its properties and its bytes are of one version."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from ais_loader import Bucket
from ais_loader.errors import ArchiveError, BucketNotFound, InvalidRequest, MemberNotFound, NotAnArchive, ObjectNotFound
from ais_loader.objects.object_file import BLOCK_BYTES
from ais_loader.objects.pinned import WHOLE_BYTES
from ais_loader.testing import seeded_bytes
from tests.tar_kit import packed_tar

DATA = seeded_bytes(3_000_001, seed=11)
SIZES = [0, 1, 10_240, WHOLE_BYTES - 1, WHOLE_BYTES, WHOLE_BYTES + 1, BLOCK_BYTES, BLOCK_BYTES + 1, len(DATA)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verify", [True, False])
def test_objects_of_all_sizes_have_their_bytes_and_properties(bucket: Bucket, size: int, verify: bool) -> None:
    bucket.put("a", DATA[:size], metadata={"language": "fr", "rate": "16000", "z": "é"})
    for _ in range(2):  # the second time, a node has the object in its caches
        with bucket.open("a", verify=verify) as file:
            assert file.info == bucket.head("a")
            assert (file.read(), file.read(), file.tell()) == (DATA[:size], b"", size)
            file.seek(0)
            assert file.read() == DATA[:size]
        with bucket.reader("a", verify=verify) as reader:
            assert b"".join(reader.chunks()) == DATA[:size]
        with bucket.reader("a", verify=verify) as reader:
            assert b"".join(iter(lambda reader=reader: reader.read(70_000), b"")) == DATA[:size]  # type: ignore[misc]


@pytest.mark.parametrize("step", [1000, WHOLE_BYTES // 2, WHOLE_BYTES, WHOLE_BYTES + 1])
def test_reads_of_any_size_go_on_where_the_last_one_ended(bucket: Bucket, step: int) -> None:
    bucket.put("a", DATA)
    with bucket.open("a") as file:
        assert b"".join(iter(lambda: file.read(step), b"")) == DATA
    with bucket.open("a") as file:
        buffer = bytearray(step)
        assert (file.readinto(buffer), buffer) == (step, DATA[:step])
        assert file.peek(1)[:1] == DATA[step : step + 1]
        assert file.read() == DATA[step:]


def test_a_reader_that_begins_at_the_end_has_the_beginning_too(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    with bucket.open("a") as file:
        file.seek(-8, io.SEEK_END)
        assert file.read(8) == DATA[-8:]
        file.seek(-70_000, io.SEEK_END)
        assert file.read(69_000) == DATA[-70_000:-1_000]
        file.seek(4)
        assert file.read(WHOLE_BYTES) == DATA[4 : 4 + WHOLE_BYTES]
        file.seek(WHOLE_BYTES)
        assert file.read(10) == DATA[WHOLE_BYTES : WHOLE_BYTES + 10]
    with bucket.open("a") as file:
        file.seek(WHOLE_BYTES - 5)
        assert file.read(10) == DATA[WHOLE_BYTES - 5 : WHOLE_BYTES + 5]


def test_what_cannot_be_opened_says_why(bucket: Bucket) -> None:
    first = bucket.put("a", b"one").version
    for opening in (bucket.open, bucket.reader):
        with pytest.raises(ObjectNotFound, match="nothing"):
            opening("nothing")
        with pytest.raises(ObjectNotFound, match="folder"):
            opening("folder/")
        with pytest.raises(BucketNotFound):
            getattr(bucket.client.bucket("nowhere"), opening.__name__)("a")
        with pytest.raises(InvalidRequest, match="timeout_s"):
            opening("a", timeout_s=0)
    second = bucket.put("a", b"two").version
    with pytest.raises(ObjectNotFound, match="version"):
        bucket.open("a", version=first)
    with bucket.open("a", version=second) as file:
        assert file.read() == b"two"
    bucket.delete("a")
    with pytest.raises(ObjectNotFound):
        bucket.open("a")


@pytest.mark.parametrize("size", [10_240, WHOLE_BYTES, WHOLE_BYTES + 1, len(DATA)])
def test_an_object_that_is_overwritten_after_it_was_opened_is_never_mixed(bucket: Bucket, size: int) -> None:
    data, other = DATA[:size], DATA[::-1][:size]
    bucket.put("a", data)
    with bucket.open("a") as file:
        bucket.put("a", other)
        try:
            found = file.read()
        except ObjectNotFound as gone:
            assert "version" in str(gone)
        else:
            assert found == data
            assert size <= WHOLE_BYTES  # all that can have come with the answer
    with bucket.open("a") as file:
        assert file.read() == other


def test_a_large_object_that_is_deleted_after_it_was_opened_has_no_bytes_left(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    with bucket.open("a") as file:
        bucket.delete("a")
        file.seek(WHOLE_BYTES)
        with pytest.raises(ObjectNotFound):
            file.read(1)
        assert file.tell() == WHOLE_BYTES


def test_a_snapshot_is_opened_as_it_was(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    bucket.put("small", b"one")
    bucket.snapshot("then")
    try:
        then = bucket.client.bucket(bucket.name, snapshot="then")
        bucket.put("a", b"other")
        bucket.delete("small")
        with then.open("a") as file, then.open("small") as small:
            assert (file.read(), small.read()) == (DATA, b"one")
        with pytest.raises(ObjectNotFound):
            then.open("later")
    finally:
        bucket.delete_snapshot("then")


@pytest.mark.parametrize(("name", "mode"), [("s.tar", "w:"), ("s.tar.gz", "w:gz")])
@pytest.mark.parametrize("verify", [True, False])
def test_members_of_all_sizes_have_their_bytes_and_the_archive_s_properties(
    bucket: Bucket, name: str, mode: str, verify: bool
) -> None:
    bucket.put(name, packed_tar({f"m{size}": DATA[:size] for size in SIZES}, mode), metadata={"language": "fr"})
    archive, members = bucket.head(name), {member.name: member for member in bucket.members(name)}
    for size in SIZES:
        with bucket.open(name, member=f"m{size}", verify=verify) as file:
            assert file.info == replace(archive, size_bytes=size, checksum=members[f"m{size}"].checksum)
            assert (file.read(), file.read(), file.tell()) == (DATA[:size], b"", size)
            file.seek(size // 2)
            assert file.read(1_000) == DATA[size // 2 : size][:1_000]
        with bucket.open(name, member=f"m{size}", version=archive.version, verify=verify) as file:
            assert file.read() == DATA[:size]


def test_a_member_that_cannot_be_opened_says_why(bucket: Bucket) -> None:
    first = bucket.put("s.tar", packed_tar({"m": b"one", "folder/n": b"two"})).version
    bucket.put("a.bin", b"no archive")
    bucket.put("s.zip", b"no archive either")
    for member in ("nobody", "", "folder", "folder/"):
        with pytest.raises(MemberNotFound):
            bucket.open("s.tar", member=member)
    with pytest.raises(NotAnArchive):
        bucket.open("a.bin", member="m")
    with pytest.raises(ArchiveError):
        bucket.open("s.zip", member="m")
    with pytest.raises(ObjectNotFound, match="nothing"):
        bucket.open("nothing.tar", member="m")
    with pytest.raises(BucketNotFound):
        bucket.client.bucket("nowhere").open("s.tar", member="m")
    with pytest.raises(InvalidRequest, match="timeout_s"):
        bucket.open("s.tar", member="m", timeout_s=0)
    second = bucket.put("s.tar", packed_tar({"m": b"other"})).version
    with pytest.raises(ObjectNotFound, match="version"):
        bucket.open("s.tar", member="m", version=first)
    with bucket.open("s.tar", member="m", version=second) as file:
        assert file.read() == b"other"


@pytest.mark.parametrize("size", [10_240, WHOLE_BYTES, WHOLE_BYTES + 1, len(DATA)])
def test_a_member_whose_archive_is_overwritten_after_it_was_opened_is_never_mixed(bucket: Bucket, size: int) -> None:
    bucket.put("s.tar", packed_tar({"m": DATA[:size]}))
    with bucket.open("s.tar", member="m") as file:
        bucket.put("s.tar", packed_tar({"m": DATA[::-1][:size]}))
        try:
            found = file.read()
        except ObjectNotFound as gone:
            assert "version" in str(gone)
        else:
            assert found == DATA[:size]
            assert size <= WHOLE_BYTES  # all that can have come with the answer
    with bucket.open("s.tar", member="m") as file:
        assert file.read() == DATA[::-1][:size]


@pytest.mark.slow
def test_a_member_in_a_snapshot_is_opened_as_it_was(bucket: Bucket) -> None:
    bucket.put("s.tar", packed_tar({"m": b"one", "large": DATA}))
    bucket.snapshot("then")
    try:
        bucket.put("s.tar", packed_tar({"n": b"two"}))
        then = bucket.client.bucket(bucket.name, snapshot="then")
        with then.open("s.tar", member="m") as small, then.open("s.tar", member="large") as large:
            assert (small.read(), large.read()) == (b"one", DATA)
        with pytest.raises(MemberNotFound):
            then.open("s.tar", member="n")
    finally:
        bucket.delete_snapshot("then")
