"""Archives that lie, are cut, blow up or name members oddly, over every transport: a status in its place, no mix."""

from __future__ import annotations

import functools
import gzip
import io
import random
import struct
import tarfile
import threading
import zipfile
from pathlib import Path

import lz4.frame
import pytest
import zstandard
from conformance_kit import MiB, contents
from hypothesis import HealthCheck, given, settings

from ais_loader import Bucket, Client, Entry, Status, connect, errors
from ais_loader.errors import ArchiveError
from ais_loader.testing import seeded_bytes
from tests.store.archives.archive_kit import in_zip, served
from tests.store.archives.mutations import HARMS, Harm, harmed
from tests.store.store_kit import flip_a_byte
from tests.table import table
from tests.tar_kit import packed_tar

WAIT_S = 180.0
GOOD = {"a.bin": seeded_bytes(3_000, seed=1), "b.bin": seeded_bytes(70_000, seed=2), "empty": b""}
BOMB_BYTES = 100 * MiB


def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
    fields = struct.pack("100s24x12s12s8sc100s8s247x", name, size, b"0" * 11, b" " * 8, kind, b"", b"ustar\x0000")
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def edited(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


@functools.cache
def bombs() -> dict[str, bytes]:
    """Each unpacks to a thousand times its size."""
    tar = packed_tar({"zeros": bytes(BOMB_BYTES)})
    return {
        "bomb.tar.gz": gzip.compress(tar, 9),
        "bomb.tar.zst": zstandard.ZstdCompressor().compress(tar),
        "bomb.zip": in_zip({"zeros": bytes(BOMB_BYTES)}),
    }


@functools.cache
def bad() -> dict[str, tuple[bytes, type[errors.LoaderError]]]:
    tar, zipped = packed_tar(GOOD), in_zip(GOOD)
    packed = {
        "tar": tar,
        "zip": zipped,
        "tar.gz": gzip.compress(tar),
        "tar.zst": zstandard.ZstdCompressor().compress(tar),
        "tar.lz4": lz4.frame.compress(tar, content_checksum=True),
    }
    damaged = {f"cut.{kind}": data[: len(data) // 2] for kind, data in packed.items()}
    central = zipped.index(b"PK\1\2")
    damaged |= {
        "size.tar": edited(tar, 124, b"77777777777\0"),
        "sum.tar": edited(tar, 0, b"z"),
        "sum.tar.gz": edited(packed["tar.gz"], len(packed["tar.gz"]) - 8, b"\1\2\3\4"),
        "sum.tar.lz4": edited(packed["tar.lz4"], len(packed["tar.lz4"]) - 4, b"\1\2\3\4"),
        "size.zip": edited(edited(zipped, central + 24, struct.pack("<L", 2_999)), 22, struct.pack("<L", 2_999)),
        "sum.zip": edited(edited(zipped, central + 16, bytes(4)), 14, bytes(4)),
        "record.tar": header(b"x", b"%011o" % 40, b"x") + padded(b"12 path=abc\n" + b"y" * 28),
        "empty.tar": b"",
    }
    other = {"not.tar.zst": tar, "not.tar": packed["tar.gz"], "not.zip": tar}
    return {
        **{name: (data, errors.ArchiveDamaged) for name, data in damaged.items()},
        **{name: (data, errors.NotAnArchive) for name, data in other.items()},
        **{name: (data, errors.ArchiveTooLarge) for name, data in bombs().items()},
    }


@pytest.mark.slow
def test_archives_that_cannot_be_served_say_why_and_are_objects_like_any_other(client: Client, bucket: Bucket) -> None:
    bucket.put("good.tar", packed_tar(GOOD))
    for name, (data, _) in bad().items():
        bucket.put(name, data)
    entries = [Entry(bucket.name, name, "a.bin") for name in bad()]
    between = [entry for bad_one in entries for entry in (bad_one, Entry(bucket.name, "good.tar", "b.bin"))]
    for _ in range(2):  # also when it is known already
        items = list(client.get_batch(between, on_error="placeholder"))
        assert [item.tobytes() for item in items[1::2]] == [GOOD["b.bin"]] * len(entries)
        for (name, (_, error)), item in zip(bad().items(), items[::2], strict=True):
            assert type(item.error) is error and repr(name) in str(item.error), (name, item.error)
            assert item.status is (Status.CORRUPT if error is errors.ArchiveDamaged else Status.FAILED), name
    for name, (data, error) in bad().items():
        with pytest.raises(error, match=repr(name)):
            bucket.get(name, member="a.bin")
        with pytest.raises(error, match=repr(name)):
            list(bucket.members(name))
        assert bucket.get(name) == data


@functools.cache
def with_one_unreadable() -> dict[str, bytes]:
    """Archives with a member `holes` that is listed only, and others."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("holes", b"text" * 100, zipfile.ZIP_BZIP2)
        for name, data in GOOD.items():
            archive.writestr(name, data)
    tar = header(b"holes", b"00000000000", b"S") + packed_tar(GOOD)
    volume = header(b"holes", b"00000000003", b"M") + padded(b"end") + packed_tar(GOOD)
    packed = {"s.tar.gz": gzip.compress(tar), "s.tar.zst": zstandard.ZstdCompressor().compress(tar)}
    return {"s.zip": file.getvalue(), "s.tar": tar, "volume.tar": volume, **packed}


@table("name", ["s.zip", "s.tar", "volume.tar", "s.tar.gz", "s.tar.zst"])
def test_a_member_that_cannot_be_read_takes_no_other_with_it(client: Client, bucket: Bucket, name: str) -> None:
    bucket.put(name, with_one_unreadable()[name])
    assert [member.name for member in bucket.members(name)] == ["holes", *GOOD]
    for wanted in ({"a.bin"}, GOOD):
        entries = [Entry(bucket.name, name, member) for member in ("holes", *wanted)]
        refused, *others = client.get_batch(entries, on_error="placeholder")
        assert [item.tobytes() for item in others] == [GOOD[member] for member in wanted]
        assert type(refused.error) is errors.ArchiveUnsupported and refused.status is Status.FAILED
    for read in (
        lambda: bucket.get(name, member="holes"),
        lambda: bucket.get(name, member="holes", start=0, length=0),
        lambda: list(client.get_batch([Entry(bucket.name, name, "holes")])),
    ):
        with pytest.raises(errors.ArchiveUnsupported, match=f"'{name}' has the member 'holes', which is "):
            read()


@pytest.mark.parametrize("kind", ["tar", "zip", "tar.gz", "tar.zst", "tar.lz4"])
def test_an_archive_damaged_since_it_was_read_is_named_with_its_member(tmp_path: Path, kind: str) -> None:
    members = {"a.bin": seeded_bytes(300_000, seed=1), "b.bin": seeded_bytes(300_000, seed=2)}
    name = f"shard.{kind}"
    data = {
        "zip": lambda: in_zip(members, zipfile.ZIP_DEFLATED),
        "tar": lambda: packed_tar(members),
        "tar.gz": lambda: gzip.compress(packed_tar(members)),
        "tar.zst": lambda: zstandard.ZstdCompressor(write_checksum=True).compress(packed_tar(members)),
        "tar.lz4": lambda: lz4.frame.compress(packed_tar(members), content_checksum=True, block_linked=False),
    }[kind]()
    with connect(tmp_path / "store") as client:
        client.create_bucket("b").put(name, data)
        assert client.bucket("b").get(name, member="a.bin") == members["a.bin"]
    (stored,) = (path for path in (tmp_path / "store" / "objects").rglob("*") if path.is_file())
    flip_a_byte(stored, len(data) // 4)
    with connect(tmp_path / "store") as client:
        for read in (
            lambda: client.bucket("b").get(name, member="a.bin"),
            lambda: client.bucket("b").get(name, member="a.bin", start=10, length=200_000, verify=True),
            lambda: list(client.get_batch([Entry("b", name, "a.bin")])),
            lambda: client.get_batch([Entry("b", name, "a.bin"), Entry("b", name, "b.bin")]).tobytes(),
        ):
            with pytest.raises((errors.ArchiveError, errors.CorruptObject)) as caught:
                read()
            assert name in str(caught.value) and "a.bin" in str(caught.value), caught.value


def test_odd_names_are_names_and_archives_in_archives_are_members(client: Client, bucket: Bucket) -> None:
    inner = packed_tar({"a": b"of the inner one"})
    named = [
        ("../../etc/passwd", b"up"),
        ("/etc/passwd", b"root"),
        ("./a", b"dot"),
        ("a", b"first"),
        ("a//b", b"two"),
        ("inner.tar", inner),
        ("a", b"last"),
        ("grüße/日本", b"unicode"),
        ("n" * 101, b"long"),
        ("d/" * 99 + "x", b"x"),
    ]
    for shard, data in (
        ("s.tar", packed_tar(named, tar_format=tarfile.GNU_FORMAT)),
        ("s.tar.gz", packed_tar(named, "w:gz")),
        ("s.zip", in_zip(dict(named))),
    ):
        bucket.put(shard, data)
        wanted = dict(named)
        assert contents(client.get_batch([Entry(bucket.name, shard, name) for name in wanted])) == list(wanted.values())
        assert sorted(member.name for member in bucket.members(shard)) == sorted(wanted)
        with pytest.raises(errors.MemberNotFound):
            bucket.get(shard, member="inner.tar/a")
        with pytest.raises(errors.MemberNotFound):
            bucket.get(shard, member="etc/passwd")


@settings(
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(harm=HARMS)
def test_a_harmed_archive_fares_as_it_does_by_itself(client: Client, bucket: Bucket, harm: Harm) -> None:
    name, data = harmed(harm)
    bucket.put(name, data)
    try:
        wanted = served(data, name)
    except ArchiveError as error:
        with pytest.raises(errors.ArchiveError) as caught:
            list(bucket.members(name))
        assert type(caught.value).__name__ == type(error).__name__
        (item,) = client.get_batch([Entry(bucket.name, name, "a.wav")], on_error="placeholder")
        assert type(item.error) is type(caught.value)
    else:
        listed = [member.name for member in bucket.members(name)]
        assert listed == list(wanted)
        if wanted:
            assert contents(client.get_batch([Entry(bucket.name, name, member) for member in listed])) == list(
                wanted.values()
            )


def shard_of(kind: str, seed: int) -> tuple[dict[str, bytes], bytes]:
    """The same names and sizes whatever the seed, so that a mix would go unnoticed but for its bytes."""
    members = {name: seeded_bytes(size, seed=seed) for name, size in (("a", 9_000), ("b", 3 * MiB), ("c", 100))}
    tar = packed_tar(members)
    return members, {
        "s.tar": lambda: tar,
        "s.tar.gz": lambda: gzip.compress(tar, 1),
        "s.zip": lambda: in_zip(members),
        "s.tar.zst": lambda: zstandard.ZstdCompressor(level=1).compress(tar),
    }[kind]()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s.tar", "s.tar.gz", "s.tar.zst", "s.zip"])
def test_a_shard_overwritten_while_it_is_read_gives_old_or_new_bytes(client: Client, bucket: Bucket, name: str) -> None:
    old, new = shard_of(name, 1), shard_of(name, 2)
    bucket.put(name, old[1])
    entries = [Entry(bucket.name, name, member) for member in random.Random(1).choices("abc", weights=(4, 2, 4), k=12)]
    begun = iter(client.get_batch(entries))
    first = [next(begun)]
    writing = threading.Event()
    failed: list[Exception] = []

    def overwrite() -> None:
        try:
            for turn in range(6):
                bucket.put(name, (new if turn % 2 == 0 else old)[1])
        except errors.LoaderError as error:
            failed.append(error)
        finally:
            writing.set()

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        for entry, item in zip(entries, [*first, *begun], strict=True):
            assert item.tobytes() in (old[0][entry.member or ""], new[0][entry.member or ""])
        done = False
        while not done:
            done = writing.is_set()
            for member in "abc":
                assert bucket.get(name, member=member) in (old[0][member], new[0][member])
            for entry, item in zip(entries, client.get_batch(entries), strict=True):
                assert item.tobytes() in (old[0][entry.member or ""], new[0][entry.member or ""])
    finally:
        writer.join(WAIT_S)
    assert not writer.is_alive() and failed == []
    assert [bucket.get(name, member=member) for member in "abc"] == list(old[0].values())
