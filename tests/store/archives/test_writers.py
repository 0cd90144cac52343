"""Shards as WebDataset, Python, GNU tar and bsdtar write them, of one tree of awkward files: read as by `tarfile`.

bsdtar is seldom installed: what it wrote lies in `written_by_bsdtar` (`more`: by 3.6.2). Where it is, it writes anew.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import ArchiveDamaged, ArchiveUnsupported
from tests.store.archives.archive_kit import (
    WRITTEN_BY_BSDTAR,
    BytesSource,
    content,
    open_archive,
    packed_in_every_way,
    read_member,
    run,
    served,
    tar_members,
    zip_members,
)
from tests.table import table

LONG = "m" * 200
DEEP = "/".join(["d" * 90] * 3) + "/deep.txt"  # longer than the 256 bytes that ustar can hold
PREFIXED = "p" * 80 + "/" + "q" * 60
FILES = {
    "a.txt": b"hello",
    "empty": b"",
    "exact": b"x" * 512,
    "grüße/日本.flac": b"unicode",
    "n" * 100: b"100",
    PREFIXED: content(3, 1025),
    "n" * 101: b"101",
    LONG: content(1, 70_001),
    DEEP: b"over 256 in all",
}
LINKS = {"hard": "a.txt", "h" * 150: LONG}
SHORT = [name for name in FILES if len(name.encode()) <= 100 and name != "n" * 100]
FORMATS = {
    **{how: [*FILES, *LINKS] for how in ("gnu", "oldgnu", "posix")},
    "v7": [*SHORT, "hard"],
    "ustar": [*SHORT, PREFIXED, "hard"],
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, ns=(10**18 + 123_456_789,) * 2)  # PAX headers for its fraction
    for name, target in LINKS.items():
        (tmp_path / name).hardlink_to(tmp_path / target)
    (tmp_path / "soft").symlink_to("a.txt")
    (tmp_path / ("s" * 120)).symlink_to(LONG)
    (tmp_path / "dir" / "empty").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(4 << 20)
        file.seek(1 << 20)
        file.write(b"y" * 4096)
    return tmp_path


def held(name: str) -> bytes:
    return FILES[LINKS.get(name, name)]


@table("how", FORMATS)
@table("options", [[], ["-b", "1"], ["--label=a volume"]], ids=["plain", "blocks of one", "label"])
def test_gnu_tar(tree: Path, how: str, options: list[str]) -> None:
    names, others = FORMATS[how], ["soft", "dir"]
    if how in ("v7", "ustar"):
        options = [option for option in options if not option.startswith("--label")]  # they have no type for one
    else:
        others += ["s" * 120, "pipe"]
    tar = run(["tar", f"--format={how}", *options, "-c", *names, *others], cwd=tree)
    assert served(tar) == tar_members(tar) == {name: held(name) for name in names}


def test_gnu_tar_that_adds_joins_and_takes_stock(tree: Path) -> None:
    run(["tar", "-cf", "one.tar", "a.txt", LONG, "exact"], cwd=tree)
    (tree / "a.txt").write_bytes(b"changed")
    run(["tar", "-rf", "one.tar", "a.txt", "empty"], cwd=tree)
    added = (tree / "one.tar").read_bytes()
    assert (
        served(added)
        == tar_members(added)
        == {
            LONG: FILES[LONG],
            "exact": FILES["exact"],
            "a.txt": b"changed",
            "empty": b"",
        }
    )
    run(["tar", "-cf", "two.tar", DEEP, "hard"], cwd=tree)
    run(["tar", "-Af", "one.tar", "two.tar"], cwd=tree)
    joined = (tree / "one.tar").read_bytes()
    assert served(joined) == tar_members(joined)
    assert served(joined)[DEEP] == FILES[DEEP]
    # An incremental backup: directories with contents, of a type of their own, and times where ustar has a prefix,
    # which `tarfile` takes for one; GNU tar and we do not.
    stock = run(["tar", "--format=gnu", "-g", "snapshot", "-c", "dir", "grüße", "a.txt"], cwd=tree)
    assert b"D" in {stock[at + 156 : at + 157] for at in range(0, len(stock), 512)}
    listed = run(["tar", "-t", "--quoting-style=literal"], stock).decode().split()
    assert served(stock) == {"grüße/日本.flac": b"unicode", "a.txt": b"changed"}
    assert set(served(stock)) == {name for name in listed if not name.endswith("/")}
    assert sorted(tar_members(stock).values()) == sorted(served(stock).values())


def test_volumes_that_a_file_goes_beyond_are_damaged_and_the_last_one_has_its_own_files(tree: Path) -> None:
    volumes = ["-f", "one.tar", "-f", "two.tar", "-f", "three.tar", "-f", "four.tar"]
    run(["tar", "--format=gnu", "-M", "-L", "40", *volumes, "-c", LONG, "a.txt"], cwd=tree)
    with pytest.raises(ArchiveDamaged, match=r"byte \d+: the tar ends \d+ bytes before the end of a member"):
        served((tree / "one.tar").read_bytes())
    archive = open_archive(BytesSource((tree / "two.tar").read_bytes()), "two.tar")
    assert read_member(archive, "a.txt") == held("a.txt")
    with pytest.raises(ArchiveUnsupported, match="multi-volume"):
        read_member(archive, next(iter(archive.index)))


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tarfile(tree: Path, tar_format: int) -> None:
    names = [*SHORT, PREFIXED, "hard"] if tar_format == tarfile.USTAR_FORMAT else [*FILES, *LINKS]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tar_format) as archive:
        for name in [*names, "soft", "dir", "pipe"]:
            archive.add(tree / name, name)
    tar = packed.getvalue()
    assert served(tar) == tar_members(tar) == {name: held(name) for name in names}
    for name, shard in packed_in_every_way(tar).values():
        assert served(shard, name) == tar_members(tar)


def test_extended_headers_of_every_size_around_a_block() -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for length in (*range(440, 560), 1024, 5000, 70_000):
            info = tarfile.TarInfo(f"{length:05}" + "ä" * 60)
            info.pax_headers = {"comment": "c" * length, "VENDOR.key": "=\n 12 path=no\n"}
            info.size = length
            archive.addfile(info, io.BytesIO(content(length, length)))
    tar = packed.getvalue()
    assert served(tar) == tar_members(tar)
    assert len(served(tar)) == 123


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tgz"])
def test_webdataset(tmp_path: Path, suffix: str) -> None:
    import webdataset

    path = tmp_path / f"shard.{suffix}"
    samples = {
        "0001": content(1, 3000),
        "grüße/日本": b"",
        "deep/" * 60 + "key": content(2, 600),
        "with.dots/a b": b"x" * 512,
    }
    with webdataset.TarWriter(str(path), mtime=1.5, user="ä", group="g") as writer:
        for key, data in samples.items():
            writer.write({"__key__": key, "bin": data, "json": {"text": key}, "cls": 7, "txt": key})
    plain = path.read_bytes() if suffix == "tar" else run(["gzip", "-dc"], path.read_bytes())
    found = served(path.read_bytes(), path.name)
    assert found == tar_members(plain)
    assert [found[f"{key}.bin"] for key in samples] == list(samples.values())
    assert len(found) == 4 * len(samples)


def by_bsdtar(tar_format: str, *names: str) -> Callable[[Path], bytes]:
    return lambda tree: run(["env", "LC_ALL=C.UTF-8", "bsdtar", f"--format={tar_format}", "-cf", "-", *names], cwd=tree)


BSDTAR_LONG = WRITTEN_BY_BSDTAR / "more"
OF_BSDTAR: dict[str, Callable[[Path], bytes]] = {
    path.stem: lambda _, path=path: path.read_bytes()  # type: ignore[misc]
    for path in BSDTAR_LONG.glob("*.tar")
    if path.stem != "sparse"
}
if shutil.which("bsdtar"):
    OF_BSDTAR |= {
        f"{how}, by the one installed": by_bsdtar(how, *FORMATS["v7" if how == "v7" else "posix"], "soft", "dir")
        for how in ("pax", "gnutar", "v7")
    }


@pytest.mark.parametrize("how", OF_BSDTAR)
def test_bsdtar(tree: Path, how: str) -> None:
    tar = OF_BSDTAR[how](tree)
    found = served(tar)
    assert found == tar_members(tar)
    assert found.items() >= {"a.txt": b"hello", "hard": b"hello", "empty": b"", "grüße/日本.flac": b"unicode"}.items()
    if how in ("pax", "gnutar"):
        assert (found[DEEP], found[LONG], found["h" * 150]) == (b"over 256 in all", b"200", b"200")


def test_bsdtar_writes_zips_too() -> None:
    for name in ("long.zip", "stored.zip"):
        data = (BSDTAR_LONG / name).read_bytes()
        links = {"soft"}
        assert served(data, name) == {name: held for name, held in zip_members(data).items() if name not in links}
        assert served(data, name)["grüße/日本.flac"] == b"unicode"


def test_sparse_files_of_bsdtar_and_gnu_tar_are_refused_by_name(tree: Path) -> None:
    tars = [(BSDTAR_LONG / "sparse.tar").read_bytes(), run(["tar", "-S", "-c", "holes"], cwd=tree)]
    for tar in tars:
        with pytest.raises(ArchiveUnsupported, match=r"has the member '\w+', which is a sparse file"):
            served(tar)
