"""Where a plain tar ends, whoever wrote it, and which tars cannot be gone on with."""

from __future__ import annotations

import io
import itertools
import tarfile

import pytest

from ais_loader.errors import ArchiveDamaged, ArchiveError, ArchiveUnsupported, NotAnArchive
from storage_node.store.archives.source import BytesSource
from storage_node.store.archives.tar_end import TarEnd, find_end
from tests.store.archives.archive_kit import NAMES, WRITTEN_BY_BSDTAR, make_tar
from tests.table import table

FILES = [(name, bytes(at * 100 % 1500)) for at, name in enumerate(NAMES)]
FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


def end_of(data: bytes, name: str = "a.tar", wanted: tuple[bytes, ...] = ()) -> TarEnd:
    return find_end(BytesSource(data), name, wanted)


def true_end(data: bytes) -> int:
    """What `tarfile` says."""
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        last = tar.getmembers()[-1]
        return last.offset_data + (-(-last.size // 512) * 512 if last.isreg() else 0)


@pytest.mark.parametrize("tar_format", FORMATS[1:])
def test_the_end_is_behind_the_last_member_whatever_follows_it(tar_format: int) -> None:
    for count in (1, len(FILES)):
        tar = make_tar(FILES[:count], tar_format)
        at = true_end(tar)
        for tail in (0, 1, 511, 512, 1024, 1025, 10_240, 100_000):
            assert end_of(tar[:at] + bytes(tail)) == (at, [])


@table("archive", sorted(WRITTEN_BY_BSDTAR.glob("*.tar")), ids=lambda path: path.name)
def test_the_end_of_what_bsdtar_wrote(archive: object) -> None:
    data = archive.read_bytes()  # type: ignore[attr-defined]
    assert end_of(data).at == true_end(data)


def test_a_tar_of_nothing_ends_where_it_begins() -> None:
    for data in (b"", bytes(512), bytes(1024), bytes(10_240), bytes(100)):
        assert end_of(data) == (0, [])


def test_directories_and_links_are_members_too() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in [("d", tarfile.DIRTYPE), ("l", tarfile.SYMTYPE), ("h", tarfile.LNKTYPE)]:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "x" * 200
            tar.addfile(member)
    found = end_of(out.getvalue(), wanted=(b"d", b"h", b"nobody"))
    assert (found.at, found.found) == (true_end(out.getvalue()), [b"d", b"h"])


def test_members_are_found_by_their_names_however_they_are_written() -> None:
    for tar_format in FORMATS[1:]:
        tar = make_tar(FILES, tar_format)
        wanted = tuple(name.encode() for name in NAMES)
        assert end_of(tar, wanted=wanted).found == [name.encode() for name in NAMES]


def test_zeros_in_the_last_member_are_not_its_end() -> None:
    tar = make_tar([("a", bytes(5000))])
    assert end_of(tar).at == 512 + 5120


@table("cut", [1, 500, 512, 600, 1023, 1100, 1535])
def test_a_tar_that_ends_within_something_is_damaged(cut: int) -> None:
    tar = make_tar([("a", b"x" * 600)])
    with pytest.raises(ArchiveDamaged):
        end_of(tar[:cut])


def test_what_cannot_be_gone_on_with_is_refused() -> None:
    one = make_tar([("a", b"x")])
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "z"}) as tar:
        tar.addfile(tarfile.TarInfo("a"))
    zstd, gzip = b"\x28\xb5\x2f\xfd" + bytes(600), b"\x1f\x8b\x08" + bytes(600)
    wrong: list[tuple[type[ArchiveError], bytes, str, str]] = [
        (ArchiveUnsupported, one + one, "a.tar", "joined"),
        (ArchiveUnsupported, one + b"x", "a.tar", "joined"),
        (ArchiveUnsupported, out.getvalue(), "a.tar", "global header"),
        (ArchiveUnsupported, zstd, "a.tar.zst", "compressed"),
        (NotAnArchive, gzip, "a.tar", "gzip"),
        (NotAnArchive, one, "a.bin", "no members"),
    ]
    for error, data, name, message in wrong:
        with pytest.raises(error, match=message):
            end_of(data, name)


def test_any_cut_and_any_flipped_header_byte_ends_in_an_answer_or_an_archive_error() -> None:
    tar = make_tar(FILES[:3])
    for at, value in itertools.product(range(0, 512, 7), (0, 0x31, 0xFF)):
        damaged = tar[:at] + bytes([value]) + tar[at + 1 :]
        try:
            assert 0 <= end_of(damaged).at <= len(damaged)
        except ArchiveError:
            continue
