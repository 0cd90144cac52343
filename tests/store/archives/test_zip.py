"""Zips are read as `zipfile` reads them; what lies or is not served is told."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ais_loader.errors import (
    ArchiveDamaged,
    ArchiveError,
    ArchiveTooLarge,
    ArchiveUnsupported,
    LoaderError,
    MemberCorrupt,
)
from storage_node.store.archives.archive import Archive, index_shard
from storage_node.store.archives.member import ArchiveLimits
from storage_node.store.checksum import crc32c
from tests.example_count import examples
from tests.store.archives.archive_kit import (
    NAMES,
    WRITTEN_BY_BSDTAR,
    BytesSource,
    content,
    in_zip,
    open_archive,
    read_member,
    run,
    served,
    zip_members,
)
from tests.table import table

FILES = {"a.wav": content(1, 5000), "dir/zeros": bytes(3_000_000), "empty": b"", "grüße/日本": b"text" * 100}


class Unseekable(io.RawIOBase):
    """Makes `zipfile` write data descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.data += data
        return len(data)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_stored_and_deflated_members_are_read_as_by_zipfile(method: int) -> None:
    data = in_zip(FILES, method)
    assert served(data, "s.zip") == FILES == zip_members(data)
    index = index_shard(BytesSource(data), "s.zip")
    assert [(m.name, m.size_bytes, m.checksum) for m in index] == [(n, len(d), crc32c(d)) for n, d in FILES.items()]


def test_odd_names_are_kept_as_they_are() -> None:
    files = {name: name.encode() for name in NAMES if "\\" not in name}
    assert served(in_zip(files), "s.zip") == files


def test_a_stored_member_is_a_range_of_the_file_and_a_deflated_one_is_none() -> None:
    for method, is_range in ((zipfile.ZIP_STORED, True), (zipfile.ZIP_DEFLATED, False)):
        data = in_zip(FILES, method)
        archive = open_archive(BytesSource(data), "s.zip")
        place = archive.file_range(archive.index.find("a.wav"))
        assert archive.index.find_many(["a.wav", "none"]).methods.tolist() == [method, 0]
        assert (place is not None) == is_range
        if place is not None:
            assert data[place[0] : place[0] + place[1]] == FILES["a.wav"]


def test_ranges_of_deflated_members_are_those_of_their_bytes() -> None:
    archive = open_archive(BytesSource(in_zip(FILES)), "s.zip")
    for start, length in ((0, 0), (17, 100), (4999, 1), (5000, None), (5000, 0), (1, 4999)):
        stop = None if length is None else start + length
        assert read_member(archive, "a.wav", start, length) == FILES["a.wav"][start:stop]


def test_zip64_and_data_descriptors_are_read() -> None:
    sink = Unseekable()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        for name, data in FILES.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as file:
                file.write(data)
    assert served(bytes(sink.data), "s.zip") == FILES


def test_a_zip64_directory_is_read() -> None:
    data = in_zip(FILES, zipfile.ZIP_STORED)
    end = data.rindex(b"PK\5\6")
    entries, length, offset = struct.unpack_from("<HLL", data, end + 10)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, entries, entries, length, offset)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    short = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    whole = data[:end] + end64 + locator + short
    assert served(whole, "s.zip") == FILES == zip_members(whole)
    assert served(b"#!/bin/sh\n" + whole, "s.zip") == FILES  # the locator is off by what stands in front


def test_a_program_in_front_a_comment_behind_and_cp437_names_are_read() -> None:
    data = in_zip({"cafe.wav": b"x"}).replace(b"cafe.wav", b"caf\x82.wav")
    data = b"#!/bin/sh\nexit\n" + data[:-2] + struct.pack("<H", 13) + b"one comment\n\n"
    assert served(data, "s.zip") == {"café.wav": b"x"} == zip_members(data)
    assert served(data.replace(b"one ", b"PK\5\6"), "s.zip") == {"café.wav": b"x"}


def test_directories_and_links_are_no_members_and_the_last_of_a_name_wins() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("dir/", b"")
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, b"target")
        archive.writestr("a", b"old")
        archive.writestr("b", b"b")
        archive.writestr("a", b"new")
    assert served(buffer.getvalue(), "s.zip") == {"b": b"b", "a": b"new"}


def test_zips_of_bsdtar_and_info_zip_are_read_as_by_zipfile(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("zip")
    (folder / "grüße").write_bytes(b"x" * 5000)
    (folder / "b").write_bytes(content(1, 5000))
    for locale in ("C", "C.UTF-8"):
        run(["env", f"LC_ALL={locale}", "zip", "-q", f"{locale}.zip", "grüße", "b"], cwd=folder)
        by_info_zip = (folder / f"{locale}.zip").read_bytes()
        assert served(by_info_zip, "s.zip") == zip_members(by_info_zip)
        assert sorted(served(by_info_zip, "s.zip").values()) == sorted([b"x" * 5000, content(1, 5000)])
    by_bsdtar = WRITTEN_BY_BSDTAR.joinpath("deflated.zip").read_bytes()
    links = {"en/soft"}
    assert served(by_bsdtar, "s.zip") == {n: d for n, d in zip_members(by_bsdtar).items() if n not in links}


def with_one_unreadable(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield reasons, and zips with a member `a` that cannot be read for that reason, and a member `b` that can."""
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("a", b"text" * 100, method)
            archive.writestr("b", b"more" * 100, zipfile.ZIP_DEFLATED)
        yield f"packed by method {method}", buffer.getvalue()
    (folder / "a").write_bytes(b"secret" * 100)
    (folder / "b").write_bytes(b"more" * 100)
    for level in ("-0", "-9"):
        run(["zip", "-q", level, "-P", "key", f"s{level}.zip", "a"], cwd=folder)
        run(["zip", "-q", f"s{level}.zip", "b"], cwd=folder)
        yield "encrypted", (folder / f"s{level}.zip").read_bytes()


def test_a_member_that_cannot_be_read_is_listed_and_refused_and_takes_no_other(tmp_path: Path) -> None:
    for reason, data in with_one_unreadable(tmp_path):
        archive = open_archive(BytesSource(data), "s.zip")
        assert list(archive.index.names()) == ["a", "b"]
        assert read_member(archive, "b") == b"more" * 100
        for wanted in ("a", next(iter(archive.index))):
            with pytest.raises(ArchiveUnsupported, match=f"'a', which is {reason}; sto"):
                read_member(archive, wanted)


def edited(data: bytes, at: int, fmt: str, value: int) -> bytes:
    return data[:at] + struct.pack(fmt, value) + data[at + struct.calcsize(fmt) :]


DATA = in_zip({"a": b"text" * 500, "b": b"more" * 500})
CENTRAL, END = DATA.index(b"PK\1\2"), DATA.index(b"PK\5\6")
SECOND = DATA.index(b"PK\3\4", 4)
LIES = {
    "ends without a central directory": DATA[:-1],
    "in a directory of 0 bytes": edited(DATA, END + 12, "<L", 0),
    "in a directory of 5 bytes": edited(DATA, END + 12, "<L", 5),
    "of the zip directory is none": edited(DATA, CENTRAL, "<L", 0),
    "different sizes or checksums": edited(DATA, CENTRAL + 24, "<L", 1_000),
    "different methods": edited(DATA, CENTRAL + 10, "<H", 0),
    "another name in its own header": edited(DATA, 30, "<B", 98),
    "has no header here": edited(DATA, CENTRAL + 42, "<L", 3),
    "has no header before": edited(DATA, CENTRAL + 42, "<L", 1 << 30),
    "would end after byte": edited(edited(DATA, CENTRAL + 20, "<L", 1 << 30), 18, "<L", 1 << 30),
    "unpacks to more than its 1999": edited(edited(DATA, CENTRAL + 24, "<L", 1999), 22, "<L", 1999),
    "of 2001 bytes ends 1 bytes too early": edited(edited(DATA, CENTRAL + 24, "<L", 2001), 22, "<L", 2001),
    "does not match its CRC-32": edited(edited(DATA, CENTRAL + 16, "<L", 1), 14, "<L", 1),
    "not the deflate data": edited(DATA, 31, "<L", 0xFFFFFFFF),
    "announces 0 entries, its directory has 2": edited(DATA, END + 8, "<L", 0),
    "announces 1 entries, its directory has 2": edited(DATA, END + 8, "<L", 1 << 16 | 1),
    "zip64 field that is not there": edited(DATA, CENTRAL + 24, "<L", 0xFFFFFFFF),
}


@table("lie", LIES)
def test_a_lying_zip_is_told_with_the_byte_where_it_is(lie: str) -> None:
    with pytest.raises(ArchiveDamaged, match=r"byte \d+:.*" + lie):
        served(LIES[lie], "s.zip")


@pytest.mark.slow
def test_a_number_of_entries_without_zip64_is_counted_modulo_65536() -> None:
    files = {f"{number:05}": b"" for number in range(65_540)}
    data = in_zip(files, zipfile.ZIP_STORED)
    at64, end = data.rindex(b"PK\6\6"), data.rindex(b"PK\5\6")
    length, offset = struct.unpack_from("<QQ", data, at64 + 40)
    old = data[:at64] + data[end : end + 8] + struct.pack("<HHLLH", 4, 4, length, offset, 0)
    with zipfile.ZipFile(io.BytesIO(old)) as archive:
        assert list(index_shard(BytesSource(old), "s.zip").names()) == list(files) == archive.namelist()


def test_a_signature_behind_the_directory_is_no_entry() -> None:
    signature = b"PK\5\5" + struct.pack("<H", 4) + b"sign"
    end = struct.unpack_from("<L", DATA, END + 12)[0] + len(signature)
    assert served(DATA[:END] + signature + edited(DATA[END:], 12, "<L", end), "s.zip") == zip_members(DATA)


def test_members_that_overlap_are_refused() -> None:
    inner = in_zip({"b": b"more" * 500}, zipfile.ZIP_STORED)
    data = in_zip({"a": inner}, zipfile.ZIP_STORED)
    end, central = data.rindex(b"PK\5\6"), data.rindex(b"PK\1\2")
    entry = inner[inner.index(b"PK\1\2") : inner.index(b"PK\5\6")]
    entry = edited(entry, 42, "<L", data.index(inner))
    both = data[:end] + entry + data[end:]
    new_end = both.rindex(b"PK\5\6")
    both = edited(edited(both, new_end + 8, "<L", 2 << 16 | 2), new_end + 12, "<L", new_end - central)
    with pytest.raises(ArchiveDamaged, match="inside another one"):
        served(both, "s.zip")


def test_a_bomb_is_stopped_by_what_it_claims() -> None:
    bomb = in_zip({"zeros": bytes(20_000_000)})
    assert len(bomb) < 20_000_000 / 900
    with pytest.raises(ArchiveTooLarge, match="a bomb"):
        index_shard(BytesSource(bomb), "s.zip", ArchiveLimits(free_bytes=1 << 20))
    with pytest.raises(ArchiveTooLarge, match="3 entries; at most 2"):
        index_shard(BytesSource(in_zip(dict.fromkeys("abc", b""))), "s.zip", ArchiveLimits(members=2))


def test_a_member_that_changed_under_its_index_is_found_out() -> None:
    data = in_zip({"a": content(1, 3000)}, zipfile.ZIP_STORED)
    changed = data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
    with pytest.raises(MemberCorrupt):
        read_member(Archive(BytesSource(changed), index_shard(BytesSource(data), "s.zip")), "a")


@settings(max_examples=examples(300), deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(1, 255)), max_size=4),
    cut=st.integers(0, 1 << 16),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
@example(flips=[(5135, 64)], cut=1, method=zipfile.ZIP_STORED)  # the number of the zip version that is needed
def test_a_damaged_zip_gives_a_typed_error_or_bytes_of_its_checksum(
    flips: list[tuple[int, int]], cut: int, method: int
) -> None:
    data = bytearray(in_zip({"a": content(1, 300), "b": b"text" * 50, "c": b""}, method))
    for at, mask in flips:
        data[at % len(data)] ^= mask
    kept = bytes(data[: cut % (len(data) + 1)] if cut % 4 == 0 else data)
    try:
        archive = open_archive(BytesSource(kept), "s.zip")
    except LoaderError as error:
        assert isinstance(error, ArchiveError)
        return
    # A damaged version number says that a later zip is needed, which the reference would refuse, and stays a number.
    with (
        mock.patch.object(zipfile, "MAX_EXTRACT_VERSION", 255),
        zipfile.ZipFile(io.BytesIO(kept)) as reference,
    ):
        checksums = {info.CRC for info in reference.infolist()}
    for member in archive.index:
        assert zlib.crc32(read_member(archive, member)) in checksums
