"""Members appended to plain tars: old bytes kept, nothing lost, and other tools read what comes of it."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ais_loader import Bucket, Entry, errors
from ais_loader.objects.compose_request import INLINE_BYTES
from ais_loader.objects.put_spec import PARTS_PREFIX
from ais_loader.testing import seeded_bytes

OLD = {"en/a.wav": seeded_bytes(1000), "en/empty": b"", "en/zeros": bytes(5000)}
NEW = {
    "en/b.wav": seeded_bytes(700, seed=1),
    "n" * 100: b"ustar",
    "deep/" * 60 + "näme 日本": b"pax",
    "e": b"",
    "z": bytes(2048),
}


def tar_of(members: dict[str, bytes], *, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tar_format) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return out.getvalue()


def members_of(data: bytes) -> list[tuple[str, bytes]]:
    """As the standard library reads them, to the last byte."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        found = [(member.name, tar.extractfile(member).read()) for member in tar.getmembers()]  # type: ignore[union-attr]
    assert len(data) % tarfile.RECORDSIZE == 0 and data.endswith(bytes(1024))
    return found


def check(bucket: Bucket, shard: str, expected: dict[str, bytes]) -> None:
    assert members_of(bucket.get(shard)) == list(expected.items())
    listed = [(member.name, member.size_bytes) for member in bucket.members(shard)]
    assert listed == [(name, len(data)) for name, data in expected.items()]
    batch = bucket.client.get_batch([Entry(bucket.name, shard, name) for name in expected])
    assert [item.tobytes() for item in batch] == list(expected.values())


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_members_follow_those_that_are_there(bucket: Bucket, tar_format: int) -> None:
    before = tar_of(OLD, tar_format=tar_format)
    bucket.put("a.tar", before, metadata={"k": "v"})
    info = bucket.append_members("a.tar", list(NEW.items()))
    check(bucket, "a.tar", OLD | NEW)
    assert info.metadata == {"k": "v"} and bucket.head("a.tar") == info
    end = before.rstrip(b"\0")
    assert bucket.get("a.tar").startswith(end)
    bucket.append_members("a.tar", [("last", b"x")])
    check(bucket, "a.tar", OLD | NEW | {"last": b"x"})


def test_however_a_tar_ends_members_can_be_appended(bucket: Bucket) -> None:
    whole = tar_of(OLD)
    end = 3 * 512 + 1024 + 5120
    for at, tail in enumerate((b"", bytes(100), bytes(512), bytes(1024), bytes(30_000))):
        bucket.put(f"{at}.tar", whole[:end] + tail)
        bucket.append_members(f"{at}.tar", list(NEW.items()))
        check(bucket, f"{at}.tar", OLD | NEW)


def test_a_tar_that_is_not_there_or_has_nothing_in_it_is_begun(bucket: Bucket) -> None:
    for name, data in [("absent.tar", None), ("nothing.tar", b""), ("end.tar", bytes(10_240))]:
        if data is not None:
            bucket.put(name, data)
        bucket.append_members(name, list(NEW.items()))
        check(bucket, name, NEW)
    bucket.append_members("none.tar", [])
    assert bucket.get("none.tar") == bytes(10_240)


def test_more_than_fits_a_request_is_appended_in_one_step_too(bucket: Bucket) -> None:
    bucket.put("a.tar", tar_of(OLD))
    large = {"large": seeded_bytes(INLINE_BYTES), "small": b"x"}
    bucket.append_members("a.tar", list(large.items()))
    check(bucket, "a.tar", OLD | large)
    assert list(bucket.objects(PARTS_PREFIX)) == []


def test_what_cannot_be_appended_changes_nothing(bucket: Bucket) -> None:
    whole = tar_of(OLD)
    stored = {
        "a.tar": whole,
        "joined.tar": whole + whole,
        "cut.tar": whole[:700],
        "a.tar.gz": b"\x1f\x8b" + bytes(600),
        "a.zip": b"PK\x03\x04" + bytes(600),
        "a.bin": whole,
    }
    for name, data in stored.items():
        bucket.put(name, data)
    wrong: list[tuple[type[errors.LoaderError], str, list[tuple[str, bytes]]]] = [
        (errors.MemberExists, "a.tar", [("new", b"x"), ("en/a.wav", b"y")]),
        (errors.MemberExists, "a.tar", [("new", b"x"), ("new", b"y")]),
        (errors.InvalidName, "a.tar", [("", b"x")]),
        (errors.InvalidName, "a.tar", [("a/", b"x")]),
        (errors.InvalidName, "a.tar", [("a\0", b"x")]),
        (errors.InvalidName, "a.tar", [("/a", b"x")]),
        (errors.InvalidName, "a.tar", [("a/../../b", b"x")]),
        (errors.InvalidName, "a.tar", [("a//b", b"x")]),
        (errors.InvalidName, "a.tar", [("\ud800", b"x")]),
        (errors.ArchiveUnsupported, "joined.tar", [("new", b"x")]),
        (errors.ArchiveUnsupported, "a.tar.gz", [("new", b"x")]),
        (errors.ArchiveUnsupported, "a.zip", [("new", b"x")]),
        (errors.ArchiveDamaged, "cut.tar", [("new", b"x")]),
        (errors.NotAnArchive, "a.bin", [("new", b"x")]),
        (errors.NotAnArchive, "absent.bin", [("new", b"x")]),
        (errors.ArchiveUnsupported, "absent.tar.gz", [("new", b"x")]),
    ]
    for error, name, members in wrong:
        with pytest.raises(error):
            bucket.append_members(name, members)
    assert {info.name: bucket.get(info.name) for info in bucket.objects()} == stored
    with pytest.raises(TypeError):
        bucket.append_members("a.tar", [(5, b"x")])  # type: ignore[list-item]


@pytest.mark.slow
def test_of_several_who_append_members_at_once_nobody_loses_any(bucket: Bucket) -> None:
    bucket.put("a.tar", tar_of(OLD))

    def write(writer: int) -> None:
        for at in range(4):
            bucket.append_members("a.tar", [(f"{writer}/{at}", seeded_bytes(100 * at, seed=writer))], timeout_s=300)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    found = dict(members_of(bucket.get("a.tar")))
    added = {f"{writer}/{at}": seeded_bytes(100 * at, seed=writer) for writer in range(3) for at in range(4)}
    assert found == OLD | added and len(members_of(bucket.get("a.tar"))) == len(found)


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar command on this machine")
def test_the_tar_command_reads_what_was_appended_to_what_it_wrote(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a").write_bytes(OLD["en/a.wav"])
    (tmp_path / "old" / ("l" * 200)).write_bytes(b"long")
    subprocess.run(["tar", "-cf", tmp_path / "a.tar", "-C", tmp_path, "old"], check=True, timeout=60)
    bucket.put("a.tar", tmp_path / "a.tar")
    bucket.append_members("a.tar", list(NEW.items()))
    (tmp_path / "b.tar").write_bytes(bucket.get("a.tar"))
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        ["tar", "-xf", tmp_path / "b.tar", "-C", tmp_path / "out"], check=True, capture_output=True, timeout=60
    )
    assert done.stderr == b""
    assert (tmp_path / "out" / "old" / ("l" * 200)).read_bytes() == b"long"
    assert {name: (tmp_path / "out" / name).read_bytes() for name in NEW} == NEW
