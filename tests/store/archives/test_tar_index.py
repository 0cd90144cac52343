"""One pass over a tar finds what `tarfile` finds, whoever wrote it and however it is cut into chunks."""

from __future__ import annotations

import io
import re
import struct
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.errors import ArchiveDamaged, ArchiveTooLarge, ArchiveUnsupported, LoaderError, MemberNotFound
from storage_node.store.archives.archive import Archive
from storage_node.store.archives.member import ArchiveLimits
from storage_node.store.archives.tar_index import TarIndexer
from storage_node.store.checksum import crc32c
from tests.data import utterances
from tests.example_count import examples
from tests.store.archives.archive_kit import (
    NAMES,
    WRITTEN_BY_BSDTAR,
    BytesSource,
    content,
    index_of,
    make_tar,
    open_archive,
    our_name,
    read_member,
    run,
    served,
    tar_members,
)
from tests.table import table

SIZES = [0, 1, 511, 512, 513, 70_000] * 3
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def header(name: bytes, size: bytes, kind: bytes = b"0", *, magic: bytes = b"ustar\x0000", link: bytes = b"") -> bytes:
    """A header by hand, with a right checksum."""
    fields = struct.pack(
        "100s8s8s8s12s12s8sc100s8s247s",
        name,
        b"0000644",
        b"0000000",
        b"0000000",
        size,
        b"00000000000",
        b" " * 8,
        kind,
        link,
        magic,
        b"",
    )
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def pax(kind: bytes, **records: bytes) -> bytes:
    body = b""
    for key, value in records.items():
        line = b" " + key.replace("__", ".").encode() + b"=" + value + b"\n"
        length = len(line) + 1
        while len(line) + len(str(length)) != length:
            length += 1
        body += str(length).encode() + line
    return header(b"pax", b"%011o" % len(body), kind) + padded(body)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


@table("tar_format", FORMATS.values(), ids=FORMATS.keys())
@table("encoding", ["utf-8", "latin-1"])
def test_every_format_of_tarfile_is_read_as_tarfile_reads_it(tar_format: int, encoding: str) -> None:
    names = [name for name in NAMES if tar_format != tarfile.USTAR_FORMAT or len(name.encode()) <= 100]
    names = [name for name in names if encoding == "utf-8" or name.isascii() or len(name) == 280]
    files = [(name, content(i, size)) for i, (name, size) in enumerate(zip(names, SIZES, strict=False))]
    tar = make_tar(files, tar_format, encoding)
    assert served(tar) == tar_members(tar)
    assert len(served(tar)) == len(files)
    assert list(index_of(tar).names()) == list(tar_members_in_order(tar))


def tar_members_in_order(tar: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return [our_name(name) for name in archive.getnames()]


def test_a_member_has_the_crc32c_of_its_bytes() -> None:
    files = [("a", content(1, 100_000)), ("b", b"")]
    assert [member.checksum for member in index_of(make_tar(files))] == [crc32c(data) for _, data in files]


def test_a_name_that_is_no_utf8_is_asked_for_with_its_odd_bytes_in_hexadecimal() -> None:
    tar = header(b"caf\xe9.wav", b"00000000003") + padded(b"abc") + pax(b"x", hdrcharset=b"BINARY", path=b"\xff" * 120)
    tar += header(b"short", b"00000000001") + padded(b"d")
    assert served(tar) == {r"caf\xe9.wav": b"abc", r"\xff" * 120: b"d"} == tar_members(tar)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(
    files=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 3000)), min_size=1, max_size=8),
    tar_format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    borders=st.lists(st.integers(0, 40_000), max_size=40),
)
def test_the_index_is_the_same_however_the_stream_is_cut(
    files: list[tuple[str, int]], tar_format: int, borders: list[int]
) -> None:
    tar = make_tar([(name, content(i, size)) for i, (name, size) in enumerate(files)], tar_format)
    assert list(index_of(tar, borders)) == list(index_of(tar))
    assert served(tar) == tar_members(tar)


def test_one_byte_at_a_time_is_enough() -> None:
    tar = make_tar([(name, content(1, 700)) for name in NAMES])
    assert list(index_of(tar, range(len(tar)))) == list(index_of(tar))


def test_the_last_of_a_name_wins_and_is_listed_once_in_its_own_place() -> None:
    tar = make_tar([("a", b"old"), ("b", b"b"), ("a", b"new")])
    index = index_of(tar)
    assert served(tar) == {"b": b"b", "a": b"new"} == tar_members(tar)
    assert (list(index.names()), index.hidden) == (["b", "a"], 1)


def test_hard_links_have_the_bytes_of_the_earlier_file_that_they_name() -> None:
    tar = header(b"a", b"00000000003") + padded(b"old")
    tar += header(b"first", b"00000000000", b"1", link=b"a")
    tar += header(b"second", b"00000000777", b"1", link=b"first")  # a size that means nothing
    tar += header(b"dangling", b"00000000000", b"1", link=b"nobody")
    tar += header(b"early", b"00000000000", b"1", link=b"z") + header(b"z", b"00000000001") + padded(b"z")
    tar += header(b"a", b"00000000003") + padded(b"new")
    tar += pax(b"x", linkpath=b"a") + header(b"third", b"00000000000", b"1", link=b"z")
    assert served(tar) == {"first": b"old", "second": b"old", "z": b"z", "a": b"new", "third": b"new"}


def test_what_is_no_regular_file_is_no_member_and_hides_one_of_its_name() -> None:
    tar = b"".join(header(name, b"00000000000") for name in (b"link", b"dir", b"device", b"pipe", b"kept"))
    tar += header(b"link", b"00000000000", b"2", link=b"kept") + header(b"dir/", b"00000000000", b"5")
    tar += header(b"device", b"00000000000", b"3") + header(b"pipe", b"00000000000", b"6")
    tar += header(b"label", b"00000000003", b"V") + padded(b"xyz") + header(b"old/", b"00000000000", b"\0", magic=b"")
    assert served(tar) == {"kept": b""}


def test_v7_headers_base_256_sizes_and_signed_checksums_are_read() -> None:
    signed = bytearray(header(b"\xe9" * 3, b"00000000002", magic=b""))
    summed = signed[:148] + b" " * 8 + signed[156:]
    signed[148:156] = b"%06o\0 " % sum(octet - 256 * (octet > 127) for octet in summed)
    tar = bytes(signed) + padded(b"v7") + header(b"b", b"\x80" + (5).to_bytes(11, "big"), magic=b"ustar  \0")
    tar += padded(b"large") + header(b"spaces", b"         2 \0", b"7") + padded(b"ok")
    assert served(tar) == {r"\xe9\xe9\xe9": b"v7", "b": b"large", "spaces": b"ok"} == tar_members(tar)


def test_pax_sizes_and_global_records_count_and_empty_ones_do_not() -> None:
    tar = pax(b"g", comment=b"from a tool", path=b"everywhere") + pax(b"x", size=b"600", path=b"sized/")
    tar += header(b"x", b"00000000000") + padded(b"s" * 600)
    tar += pax(b"g", path=b"") + pax(b"x", mtime=b"1.5") + header(b"plain", b"00000000001") + padded(b"p")
    assert served(tar) == {"sized": b"s" * 600, "plain": b"p"}


def test_nested_archives_are_members_like_any_other() -> None:
    inner = make_tar([("a", b"inner")])
    tar = make_tar([("inner.tar", inner), ("a", b"outer")])
    assert served(tar) == {"inner.tar": inner, "a": b"outer"}


def test_what_follows_the_end_of_the_tar_is_not_served_and_the_files_of_other_tars_are_counted() -> None:
    one, two, three = (make_tar([(name, name.encode() * size) for size in (0, 600)]) for name in "abc")
    for tail, hidden in (
        (b"", 0),
        (b"anything" + two, 0),
        (bytes(4096) + b"anything" * 64, 0),
        (two, 2),
        (two + three, 4),
        (two + b"anything" * 64 + three, 2),
        (two[:900], 1),
    ):
        assert served(one + tail) == {"a": b"a" * 600}
        assert index_of(one + tail).hidden == 1 + hidden, tail[:10]  # the first `a`


def test_a_member_that_is_named_in_another_way_is_suggested() -> None:
    index = index_of(make_tar([("./a/b.wav", b"x"), ("/c", b"y"), ("d", b"z")]))
    for name, near in (("a/b.wav", "./a/b.wav"), ("/a/b.wav", "./a/b.wav"), ("c", "/c"), ("./d", "d")):
        with pytest.raises(MemberNotFound, match=re.escape(f"has no member {name!r}; did you mean {near!r}?")):
            index.find(name)
    with pytest.raises(MemberNotFound, match=r"has no member 'e'$"):
        index.find("e")


@table("how", ["gnu", "oldgnu", "ustar", "v7", "posix"])
def test_shards_of_gnu_tar_are_read_as_by_tarfile(tmp_path: Path, how: str) -> None:
    (tmp_path / "grüße").mkdir()
    names = ["a.txt", "grüße/b", "n" * 99] + ([] if how in ("ustar", "v7") else ["m" * 180])
    for i, name in enumerate(names):
        (tmp_path / name).write_bytes(content(i, 1000 * i))
    (tmp_path / "hard").hardlink_to(tmp_path / names[2])
    (tmp_path / "soft").symlink_to("a.txt")
    tar = run(["tar", f"--format={how}", "-c", *names, "hard", "soft", "grüße"], cwd=tmp_path)
    assert served(tar) == tar_members(tar)
    assert set(served(tar)) == {*names, "hard"}


@table(
    ("how", "pieces"),  # so many that the map takes several blocks, and few
    [(how, pieces) for how in ("gnu", "0.0", "0.1", "1.0") for pieces in (2, 60)],
)
def test_a_sparse_file_is_listed_and_refused_and_takes_no_other(tmp_path: Path, how: str, pieces: int) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(pieces << 16)
        for piece in range(pieces):
            file.seek(piece << 16)
            file.write(b"y")
    (tmp_path / "after").write_bytes(b"after" * 100)
    options = ["--format=gnu"] if how == "gnu" else ["--format=posix", f"--sparse-version={how}"]
    tar = run(["tar", "-S", *options, "-c", "holes", "after"], cwd=tmp_path)
    archive = open_archive(BytesSource(tar), "s.tar")
    assert list(archive.index.names()) == ["holes", "after"]
    assert read_member(archive, "after") == b"after" * 100
    for wanted in ("holes", next(iter(archive.index))):
        with pytest.raises(ArchiveUnsupported, match="'holes', which is a sparse file; store it with its holes filled"):
            read_member(archive, wanted)


@table("path", sorted(WRITTEN_BY_BSDTAR.glob("*.tar")), ids=lambda path: path.stem)
def test_shards_of_bsdtar_are_read_as_by_tarfile(path: Path) -> None:
    tar = path.read_bytes()
    assert served(tar) == tar_members(tar)
    assert served(tar).items() >= {"en/a.txt": b"hello", "en/hard.txt": b"hello", "en/grüße.wav": b"umlaut"}.items()


@pytest.mark.parametrize("compress", [False, True])
def test_shards_of_webdataset_with_real_speech_are_read_as_by_tarfile(tmp_path: Path, compress: bool) -> None:
    import webdataset

    path = tmp_path / ("shard.tar.gz" if compress else "shard.tar")
    spoken = utterances()[::9]
    with webdataset.TarWriter(str(path)) as writer:
        for row in spoken:
            writer.write({"__key__": row.name.removesuffix(".flac"), "flac": row.path.read_bytes(), "txt": row.text})
    plain = run(["gzip", "-dc"], path.read_bytes()) if compress else path.read_bytes()
    found = served(path.read_bytes(), path.name)
    assert found == tar_members(plain)
    assert [found[row.name] for row in spoken] == [row.path.read_bytes() for row in spoken]


DAMAGED = {
    "empty": (b"", "byte 0"),
    "no tar at all": (b"\x01" * 1024, "byte 0: no tar header"),
    "a wrong checksum": (header(b"a", b"00000000000").replace(b"a", b"b", 1), "byte 0: the tar header's checksum"),
    "half a header": (header(b"a", b"00000000000")[:300], "byte 300: the tar ends within a header"),
    "a member cut short": (header(b"a", b"00000001000") + b"x" * 100, "byte 612: the tar ends 412 bytes before"),
    "padding cut short": (header(b"a", b"00000000001") + b"x", "byte 513"),
    "a size that is no number": (header(b"a", b"0o777"), "byte 0: the tar header's size"),
    "a negative size": (header(b"a", b"\xff" * 12), "byte 0: the tar header's size"),
    "a size of 2**80": (header(b"a", b"\x80\x01" + bytes(10)), "byte 0: the tar header's size"),
    "a size that ends behind every file": (header(b"a", b"\x80\0\0\0\x7f" + b"\xff" * 7), "byte 0: a member of"),
    "a pax size that is no number": (pax(b"x", size=b"-1") + header(b"a", b"00000000000"), "byte 1024: .*'-1'"),
    "pax records that lie": (header(b"p", b"00000000010", b"x") + padded(b"99 path=x\n"), "byte 512: not a record"),
    "pax records without an end": (header(b"p", b"00000000010", b"x") + padded(b"8 path=xy"), "byte 512: not a record"),
    "a pax record without a space behind a sound one": (
        header(b"p", b"00000000050", b"x") + padded(b"12 path=abc\n" + b"y" * 28),
        "byte 524: not a record",
    ),
    "a pax record without digits": (
        header(b"p", b"00000000010", b"x") + padded(b" path=x\n"),
        "byte 512: not a record",
    ),
    "a pax header without a member": (pax(b"x", path=b"x"), "byte 1024: .*before its member"),
    "junk between members": (make_tar([("a", b"a")])[:1024] + b"junk" * 128, "byte 1024: no tar header"),
}


@table(("tar", "message"), DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_tar_is_told_with_the_byte_where_it_is(tar: bytes, message: str) -> None:
    with pytest.raises(ArchiveDamaged, match=message):
        index_of(tar)


def test_the_rest_of_a_file_of_another_volume_is_refused_and_takes_no_other() -> None:
    archive = open_archive(
        BytesSource(header(b"a", b"00000000003", b"M") + padded(b"end") + make_tar([("b", b"b")])), "s.tar"
    )
    assert read_member(archive, "b") == b"b"
    with pytest.raises(ArchiveUnsupported, match="'a', which is part of a multi-volume archive"):
        read_member(archive, "a")


@table(
    ("limits", "message"),
    [
        (ArchiveLimits(members=2), "more than 2 entries"),
        (ArchiveLimits(name_bytes=50), "a name of 600 bytes"),
        (ArchiveLimits(names_bytes=500), "names take more than 500"),
        (ArchiveLimits(header_bytes=100), "an extended header of"),
    ],
)
def test_limits_hold(limits: ArchiveLimits, message: str) -> None:
    indexer = TarIndexer(limits)
    with pytest.raises(ArchiveTooLarge, match=message):
        indexer.feed(make_tar([("a", b""), ("b", b""), ("x" * 600, b"")]))


def test_extended_headers_without_end_take_no_memory() -> None:
    indexer = TarIndexer()
    tracemalloc.start()
    try:
        for number in range(300):
            indexer.feed(pax(b"gx"[number % 2 :][:1], **{f"vendor__{number}": bytes([65]) * 50_000}))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 20


def test_an_extended_header_that_claims_gigabytes_takes_no_memory() -> None:
    with pytest.raises(ArchiveTooLarge, match="an extended header"):
        index_of(header(b"L", b"77777777777", b"L"))


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(
    data=st.data(),
    tar_format=st.sampled_from(list(FORMATS.values())),
    flips=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(1, 255)), max_size=3),
)
def test_a_damaged_tar_gives_a_typed_error_or_what_its_bytes_say(
    data: st.DataObject, tar_format: int, flips: list[tuple[int, int]]
) -> None:
    tar = bytearray(make_tar([("a" * 60, content(1, 900)), ("b" * 90, content(2, 10)), ("link", b"")], tar_format))
    for at, mask in flips:
        tar[at % 4096] ^= mask
    kept = bytes(tar[: data.draw(st.integers(0, len(tar)))])
    try:
        archive = open_archive(BytesSource(kept), "s.tar")
    except LoaderError:
        return
    for member in archive.index:
        got = read_member(archive, member)
        assert got == kept[member.offset_bytes : member.offset_bytes + member.size_bytes]
        assert crc32c(got) == member.checksum


def test_a_member_that_changed_under_its_index_is_found_out() -> None:
    tar = make_tar([("a", content(1, 3000))])
    archive = Archive(BytesSource(tar[:1000] + b"!" + tar[1001:]), index_of(tar))
    with pytest.raises(LoaderError, match="CRC-32C") as caught:
        read_member(archive, "a")
    assert caught.value.kind == "member-corrupt"
    assert read_member(archive, "a", 0, 10) == content(1, 3000)[:10]
    with pytest.raises(LoaderError, match="CRC-32C"):
        archive.verify(archive.index.find("a"))
