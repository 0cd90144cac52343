"""A batch as an archive, over every transport: the members, their order, placeholders, and what standard tools say."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import lz4.frame
import pytest
import zstandard

from ais_loader import Bucket, Entry, Item
from ais_loader.errors import Closed, InvalidName, InvalidRequest, ObjectNotFound
from ais_loader.objects.archive import FORMATS, ArchiveFormat, ArchiveNames
from ais_loader.testing import seeded_bytes
from tests.tar_kit import packed_tar

OBJECTS = {
    "a": seeded_bytes(100, seed=1),
    "empty": b"",
    "large": seeded_bytes(2_500_000, seed=2),
    "in/folders/ä f": seeded_bytes(511, seed=3),
    "n" * 300: seeded_bytes(512, seed=4),
}


@pytest.fixture
def filled(bucket: Bucket) -> Bucket:
    bucket.put_many(OBJECTS.items())
    return bucket


def entries_of(bucket: Bucket, names: list[str]) -> list[Entry]:
    return [Entry(bucket.name, name) for name in names]


def members(packed: bytes, archive: ArchiveFormat) -> list[tuple[str, bytes]]:
    """In the order of the archive."""
    if archive == "zip":
        with zipfile.ZipFile(io.BytesIO(packed)) as opened:
            assert opened.testzip() is None
            return [(info.filename, opened.read(info)) for info in opened.infolist()]
    plain = {
        "tar": lambda: packed,
        "tar.gz": lambda: gzip.decompress(packed),
        "tar.lz4": lambda: lz4.frame.decompress(packed),
        "tar.zst": lambda: zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed)).read(),
    }[archive]()
    assert len(plain) % tarfile.RECORDSIZE == 0
    found = []
    with tarfile.open(fileobj=io.BytesIO(plain), mode="r:") as opened_tar:
        for member in opened_tar:
            file = opened_tar.extractfile(member)
            assert file is not None
            found.append((member.name, file.read()))
    return found


@pytest.mark.parametrize("archive", FORMATS)
def test_members_are_the_entries_in_their_order(filled: Bucket, archive: ArchiveFormat, tmp_path: Path) -> None:
    names = ["large", "a", "in/folders/ä f", "a", "empty", "n" * 300]
    path = tmp_path / "out"
    made = filled.client.get_batch(entries_of(filled, names), archive=archive).write_to(path)
    wanted = [(f"{filled.name}/{name}", OBJECTS[name]) for name in names]
    assert members(path.read_bytes(), archive) == wanted
    assert (made.entries, made.delivered, made.failed) == (6, 6, 0)
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("archive", FORMATS)
def test_a_file_a_path_and_chunks_are_the_same_bytes_each_time(
    filled: Bucket, archive: ArchiveFormat, tmp_path: Path
) -> None:
    client, entries = filled.client, entries_of(filled, list(OBJECTS))
    file = io.BytesIO()
    client.get_batch(entries, archive=archive).write_to(file)
    client.get_batch(entries, archive=archive).write_to(tmp_path / "out")
    assert file.getvalue() == (tmp_path / "out").read_bytes()
    assert b"".join(client.get_batch(entries, archive=archive)) == file.getvalue()


@pytest.mark.parametrize("archive", FORMATS)
def test_what_is_missing_has_an_empty_member_in_its_place(filled: Bucket, archive: ArchiveFormat) -> None:
    file = io.BytesIO()
    entries = [Entry(filled.name, "a"), Entry(filled.name, "gone"), Entry("nobucket", "x"), Entry(filled.name, "empty")]
    made = filled.client.get_batch(entries, archive=archive, archive_names="object", on_error="placeholder")
    made.write_to(file)
    assert members(file.getvalue(), archive) == [
        ("a", OBJECTS["a"]),
        ("__404__/gone", b""),
        ("__404__/x", b""),
        ("empty", b""),
    ]
    assert made.failed == 2


def test_the_reason_is_a_placeholders_comment(filled: Bucket) -> None:
    file = io.BytesIO()
    entries = [Entry(filled.name, "gone")]
    filled.client.get_batch(entries, archive="tar", on_error="placeholder").write_to(file)
    with tarfile.open(fileobj=io.BytesIO(file.getvalue())) as opened:
        (member,) = opened.getmembers()
        assert "gone" in member.pax_headers["comment"]


@pytest.mark.parametrize("archive", FORMATS)
def test_an_error_leaves_no_file_and_no_archive_that_looks_whole(
    filled: Bucket, archive: ArchiveFormat, tmp_path: Path
) -> None:
    entries = entries_of(filled, ["a", "large", "gone", "a"])
    (tmp_path / "out").write_bytes(b"from before")
    with pytest.raises(ObjectNotFound):
        filled.client.get_batch(entries, archive=archive).write_to(tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"from before"
    assert len(list(tmp_path.iterdir())) == 1
    file = io.BytesIO()
    with pytest.raises(ObjectNotFound):
        filled.client.get_batch(entries, archive=archive).write_to(file)
    if archive == "zip":
        with pytest.raises(zipfile.BadZipFile):
            zipfile.ZipFile(io.BytesIO(file.getvalue()))


def test_two_that_write_to_one_path_leave_a_whole_archive_and_touch_no_other_file(
    filled: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, entries = tmp_path / "out", entries_of(filled, ["a", "large"])
    (tmp_path / "out.part").write_bytes(b"of another program")
    first, second = (filled.client.get_batch(entries, archive="tar") for _ in range(2))
    name_of = first.name_of

    def name_after_second(item: Item, size_bytes: int) -> str:
        if not second.delivered:
            second.write_to(path)
        return name_of(item, size_bytes)

    monkeypatch.setattr(first, "name_of", name_after_second)
    first.write_to(path)
    assert members(path.read_bytes(), "tar") == [(f"{filled.name}/{name}", OBJECTS[name]) for name in ("a", "large")]
    assert (tmp_path / "out.part").read_bytes() == b"of another program"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "out.part"]


@pytest.mark.parametrize("archive", FORMATS)
def test_an_empty_batch_is_an_empty_archive(filled: Bucket, archive: ArchiveFormat) -> None:
    file = io.BytesIO()
    filled.client.get_batch([], archive=archive).write_to(file)
    assert members(file.getvalue(), archive) == []


@pytest.mark.parametrize("archive", FORMATS)
def test_the_standard_tools_extract_it(filled: Bucket, archive: ArchiveFormat, tmp_path: Path) -> None:
    tool = {"tar.lz4": "lz4", "tar.zst": "zstd", "zip": "unzip"}.get(archive, "tar")
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not on this machine")
    names = ["large", "a", "in/folders/ä f", "empty"]
    path = tmp_path / f"out.{archive}"
    filled.client.get_batch(entries_of(filled, names), archive=archive).write_to(path)
    target = tmp_path / "extracted"
    target.mkdir()
    if archive == "zip":
        subprocess.run(["unzip", "-q", path, "-d", target], check=True, timeout=180, env={"LC_ALL": "C.UTF-8"})
    elif tool != "tar":
        piped = subprocess.run([tool, "-dc", path], check=True, timeout=180, stdout=subprocess.PIPE)
        subprocess.run(["tar", "-x", "-C", target], check=True, timeout=180, input=piped.stdout)
    else:
        subprocess.run(["tar", "-xf", path, "-C", target], check=True, timeout=180)
    for name in names:
        assert (target / filled.name / name).read_bytes() == OBJECTS[name]


def test_an_archive_is_written_once_and_a_second_try_leaves_what_there_is(filled: Bucket, tmp_path: Path) -> None:
    path = tmp_path / "out"
    made = filled.client.get_batch(entries_of(filled, ["a"]), archive="tar").write_to(path)
    whole = path.read_bytes()
    for again in (lambda: made.write_to(path), lambda: made.write_to(io.BytesIO()), lambda: list(made)):
        with pytest.raises(InvalidRequest, match="delivered once"):
            again()
    closed = filled.client.get_batch(entries_of(filled, ["a"]), archive="tar")
    closed.close()
    with pytest.raises(Closed):
        closed.write_to(path)
    assert path.read_bytes() == whole and [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.slow
@pytest.mark.parametrize("archive", ["tar", "tar.gz", "zip"])
def test_large_entries_pass_in_pieces(filled: Bucket, archive: ArchiveFormat) -> None:
    large = seeded_bytes((12 << 20) + 5)
    filled.put("large", large)
    entries = entries_of(filled, ["large", "a", "none", "large"])
    made = filled.client.get_batch(entries, archive=archive, on_error="placeholder")
    chunks = list(made)
    assert max(map(len, chunks)) < 6 << 20  # frames have at most 4 MiB
    assert (made.delivered, made.failed) == (4, 1)
    packed = io.BytesIO(b"".join(chunks))
    if archive == "zip":
        with zipfile.ZipFile(packed) as opened:
            found = [opened.read(member) for member in opened.infolist()]
    else:
        with tarfile.open(fileobj=packed) as tar:
            found = [tar.extractfile(member).read() for member in tar]  # type: ignore[union-attr]
    assert found == [large, OBJECTS["a"], b"", large]
    abandoned = filled.client.get_batch(entries, archive=archive, on_error="placeholder")
    begun = iter(abandoned)
    assert next(begun)
    begun.close()  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match="delivered once"):
        list(abandoned)


def test_other_formats_and_names_are_refused(filled: Bucket) -> None:
    with pytest.raises(InvalidRequest, match=r"archive='rar': one of 'tar', 'tar\.gz'"):
        filled.client.get_batch([], archive="rar")  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="archive_names='x'"):
        filled.client.get_batch([], archive="tar", archive_names="x")  # type: ignore[call-overload]


@pytest.mark.parametrize("names", ["bucket", "object"])
@pytest.mark.parametrize("member", ["../../etc/x", "a/../../x", "/etc/x", "a//x", ".."])
def test_no_member_is_named_like_a_path_that_leads_elsewhere(
    bucket: Bucket, member: str, names: ArchiveNames, tmp_path: Path
) -> None:
    bucket.put("s.tar", packed_tar({"./plain": b"1", member: b"2"}))
    plain, other = Entry(bucket.name, "s.tar", "./plain"), Entry(bucket.name, "s.tar", member)
    with pytest.raises(InvalidName, match="entry 1 would be the member"):
        bucket.client.get_batch([plain, other], archive="tar", archive_names=names).write_to(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    assert next(iter(bucket.client.get_batch([other]))).tobytes() == b"2"
    made = io.BytesIO()
    bucket.client.get_batch([plain], archive="tar", archive_names="object").write_to(made)
    assert members(made.getvalue(), "tar") == [("s.tar/./plain", b"1")]
    with pytest.raises(InvalidName):
        missing = Entry(bucket.name, "../x")
        bucket.client.get_batch([missing], archive="zip", archive_names=names, on_error="placeholder")
