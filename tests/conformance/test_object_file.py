"""An object as a file, over every transport: the bytes, the positions, and one version to the end."""

from __future__ import annotations

import csv
import io
import random
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ais_loader import Bucket
from ais_loader.errors import InvalidRequest, MemberNotFound, ObjectNotFound
from ais_loader.objects.object_file import CHUNK_BYTES, FIRST_BYTES, KEPT_BYTES, Ramp, chunk_spans
from ais_loader.testing import seeded_bytes
from tests.tar_kit import packed_tar

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
    bucket.put("shard.tar", packed_tar({"x": b"one", "y/z": DATA}))
    with bucket.open("shard.tar") as file, tarfile.open(fileobj=file) as archive:
        member_file = archive.extractfile("y/z")
        assert member_file is not None and member_file.read() == DATA


def test_a_member_reads_as_a_file_of_its_own(bucket: Bucket) -> None:
    bucket.put("shard.tar", packed_tar({"x.wav": b"one", "x": DATA, "y": b"two"}))
    with bucket.open("shard.tar", member="x") as file:
        assert (file.size(), file.name) == (len(DATA), f"ais://{bucket.name}/shard.tar/x")
        file.seek(-5, io.SEEK_END)
        assert file.read(100) == DATA[-5:]
        file.seek(1_500_000)
        assert file.read(700_000) == DATA[1_500_000:2_200_000]
        bucket.put("shard.tar", packed_tar({"x": b"other"}))
        file.seek(0)
        with pytest.raises(ObjectNotFound):
            file.read()
    with pytest.raises(MemberNotFound, match=r"'x\.wav'"):
        bucket.open("shard.tar", member="x.wav")


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


@pytest.mark.slow
@pytest.mark.parametrize("read_ahead_bytes", [0, 100_000, 2 << 20, 64 << 20])
def test_random_reads_and_seeks_are_those_of_a_file(bucket: Bucket, read_ahead_bytes: int) -> None:
    data = seeded_bytes((5 << 20) + 12_345)
    bucket.put("a", data)
    choose, other = random.Random(7), io.BytesIO(data)
    with bucket.open("a", read_ahead_bytes=read_ahead_bytes) as file:
        for _ in range(300):
            step = choose.randrange(7)
            length = choose.choice([0, 1, 512, 70_000, 1 << 20, choose.randrange(3 << 20)])
            if step == 0:
                at = choose.randrange(len(data) + 10)
                assert file.seek(at) == other.seek(at)
            elif step == 1:
                back = -min(other.tell(), choose.randrange(4096))
                assert file.seek(back, io.SEEK_CUR) == other.seek(back, io.SEEK_CUR)
            elif step == 2:
                ours, theirs = bytearray(length), bytearray(length)
                assert (file.readinto(ours), ours) == (other.readinto(theirs), theirs)
            elif step == 3:
                some = file.peek(1)
                assert data[other.tell() : other.tell() + len(some)] == some
                assert bool(some) == (other.tell() < len(data))
            elif step == 4:
                part = file.read1(length)
                assert part == other.read(len(part)) and (part or not length or other.tell() >= len(data))
            else:
                assert file.read(length) == other.read(length)
            assert file.tell() == other.tell()
        assert file.read() == other.read()


def test_lines_are_read_as_those_of_a_text_file(bucket: Bucket) -> None:
    rows = [[str(at), "x" * (at % 50)] for at in range(2_000)]
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    bucket.put("a.csv", text.getvalue().encode())
    with bucket.open("a.csv") as file:
        assert list(csv.reader(io.TextIOWrapper(file, newline=""))) == rows
    with bucket.open("a.csv") as file:
        assert list(file) == text.getvalue().encode().splitlines(keepends=True)


def test_an_empty_object_is_an_empty_file(bucket: Bucket) -> None:
    bucket.put("a", b"")
    with bucket.open("a") as file:
        assert (file.read(), file.read(5), file.peek(), file.seek(3), file.read(1)) == (b"", b"", b"", 3, b"")
    with bucket.reader("a") as reader:
        assert list(reader.chunks()) == []


def test_a_closed_file_says_that_it_is_closed(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    file = bucket.open("a")
    file.read(100)
    file.close()
    file.close()
    for use in (lambda: file.read(10), lambda: file.seek(0), file.tell, file.peek, lambda: file.readinto(bytearray(1))):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_file_can_only_be_read(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    with bucket.open("a") as file:
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
        assert file.name == f"ais://{bucket.name}/a"
    with bucket.reader("a") as reader:
        assert (reader.readable(), reader.seekable(), reader.writable()) == (True, False, False)
        with pytest.raises(io.UnsupportedOperation):
            reader.seek(0)


def test_a_wrong_size_of_the_read_ahead_is_refused(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    with pytest.raises(InvalidRequest, match="read_ahead_bytes=-1"):
        bucket.open("a", read_ahead_bytes=-1)


def test_a_stream_gives_the_object_in_views_or_in_reads_of_any_size(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    with bucket.reader("a") as reader:
        views = list(reader.chunks())
    assert b"".join(views) == DATA
    assert all(len(view) <= CHUNK_BYTES and view.readonly for view in views)
    with bucket.reader("a", verify=True) as reader:
        buffer = bytearray(1_000_001)
        assert reader.read(7) == DATA[:7]
        assert reader.readinto(buffer) == len(buffer) and buffer == DATA[7 : 7 + len(buffer)]
        assert b"".join(reader.chunks()) == DATA[7 + len(buffer) :]
        assert reader.read() == b""


def test_threads_that_share_a_file_each_get_whole_reads(bucket: Bucket) -> None:
    bucket.put("a", DATA)
    parts: list[bytes] = []
    with bucket.open("a") as file:

        def read() -> None:
            while part := file.read(10_000):
                parts.append(part)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
    assert sorted(parts) == sorted(DATA[at : at + 10_000] for at in range(0, len(DATA), 10_000))


# -- under libraries that want a file


@pytest.mark.slow
def test_zipfile_reads_an_archive_through_it(bucket: Bucket) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", DATA)
        archive.writestr("b/c", b"two")
    bucket.put("a.zip", packed.getvalue())
    with bucket.open("a.zip") as file, zipfile.ZipFile(file) as archive:
        assert archive.read("b/c") == b"two"
        assert archive.read("a") == DATA


def test_soundfile_reads_real_speech_through_it(bucket: Bucket) -> None:
    import soundfile

    path = next((Path(__file__).parents[1] / "data" / "speech" / "en").iterdir())
    bucket.put("speech", path)
    with bucket.open("speech") as file:
        samples, rate = soundfile.read(file)
    expected, expected_rate = soundfile.read(path)
    assert rate == expected_rate
    assert np.array_equal(samples, expected)


def test_pil_reads_an_image_through_it(bucket: Bucket) -> None:
    packed = io.BytesIO()
    image = Image.frombytes("RGB", (300, 200), seeded_bytes(300 * 200 * 3))
    image.save(packed, "PNG")
    bucket.put("a.png", packed.getvalue())
    with bucket.open("a.png") as file:
        assert Image.open(file).tobytes() == image.tobytes()


def test_torch_loads_a_checkpoint_through_it(bucket: Bucket) -> None:
    import torch

    packed = io.BytesIO()
    tensors = {"a": torch.arange(100_000), "b": torch.eye(30)}
    torch.save(tensors, packed)
    bucket.put("a.pt", packed.getvalue())
    with bucket.open("a.pt") as file:
        loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded["a"], tensors["a"]) and torch.equal(loaded["b"], tensors["b"])


# -- what is asked for


def test_spans_cover_the_bytes_and_end_at_the_borders_of_chunks() -> None:
    for start, stop in ((0, 0), (0, 1), (5, CHUNK_BYTES), (CHUNK_BYTES - 1, 3 * CHUNK_BYTES + 1)):
        spans = list(chunk_spans(start, stop))
        assert sum(length for _, length in spans) == stop - start
        assert [at for at, _ in spans] == [start + sum(n for _, n in spans[:i]) for i in range(len(spans))]
        assert all((at + length) % CHUNK_BYTES == 0 for at, length in spans[:-1])


def test_a_reader_that_goes_straight_on_gets_more_and_more_up_to_the_limit() -> None:
    ramp, size, limit = Ramp(32 << 20), 1 << 40, 32 << 20
    position = planned = 0
    ahead = []
    while position < 400 << 20:
        planned = ramp.request_until(position, planned, 4096, size)
        ahead.append(planned - position)
        position = min(planned, position + CHUNK_BYTES // 8)
    assert ahead[0] == FIRST_BYTES
    assert max(ahead) == limit
    assert min(ahead[200:]) >= limit // 2 - CHUNK_BYTES


def test_a_large_read_is_asked_for_at_once_and_no_more_than_the_limit() -> None:
    assert Ramp(64 << 20).request_until(0, 0, 10 << 20, 1 << 40) == 10 << 20
    assert Ramp(8 << 20).request_until(0, 0, 10 << 20, 1 << 40) == 8 << 20
    assert Ramp(8 << 20).request_until(5, 5, 10 << 20, 100) == 100


def test_what_has_been_read_is_kept_in_bounds(bucket: Bucket) -> None:
    bucket.put("a", seeded_bytes(5 * CHUNK_BYTES))
    with bucket.open("a") as file:
        while file.read(300_000):
            assert sum(len(chunk) for _, chunk in file._kept) <= KEPT_BYTES + CHUNK_BYTES
