"""An object as a file, over every transport: the bytes, the positions, and one version to the end."""

from __future__ import annotations

import io
import tarfile

import pytest

from ais_loader import Bucket
from ais_loader.errors import ObjectNotFound
from ais_loader.testing import seeded_bytes

DATA = seeded_bytes(3_000_001)


def test_a_file_reads_as_the_object_from_beginning_to_end(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    with bucket.open("a") as file:
        assert file.read(10) == DATA[:10]
        assert file.read() == DATA[10:]
        assert file.read() == b""
        assert file.info.size_bytes == len(DATA)


def test_seeking_reaches_every_place_and_nothing_before_the_beginning(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    with bucket.client.open(f"ais://{bucket.name}/a") as file:
        assert file.seek(-5, io.SEEK_END) == len(DATA) - 5
        assert file.read(100) == DATA[-5:]
        assert file.seek(1_500_000) == 1_500_000
        assert file.read(2_000_000) == DATA[1_500_000:]
        assert file.seek(10_000_000) == 10_000_000
        assert file.read(1) == b""
        with pytest.raises(ValueError, match="before the beginning"):
            file.seek(-1)


def test_tarfile_reads_an_archive_through_it(bucket: Bucket) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, data in (("x", b"one"), ("y/z", DATA)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    bucket.put("shard.tar", packed.getvalue())
    with bucket.open("shard.tar") as file, tarfile.open(fileobj=file) as archive:
        member_file = archive.extractfile("y/z")
        assert member_file is not None and member_file.read() == DATA


def test_a_replaced_object_is_never_read_as_a_mix(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    with bucket.open("a") as file:
        first = file.read(1 << 20)
        bucket.put("a", b"other")
        with pytest.raises(ObjectNotFound, match="version"):
            file.read()
    assert first == DATA[: 1 << 20]


def test_opening_what_is_not_there_says_so(bucket: Bucket) -> None:
    with pytest.raises(ObjectNotFound):
        bucket.open("nothing")
