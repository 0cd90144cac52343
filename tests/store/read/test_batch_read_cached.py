"""Small files read only if nothing has to be waited for: all of them, verified, behind a prefix; or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.store.native import read_cached
from storage_node.store.read.batch_reader import CachedFile
from tests.store.batch_read_kit import Folder, content, crc
from tests.table import table

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder(tmp_path) as opened:
        yield opened


def file_in(folder: Folder, name: str, data: bytes) -> CachedFile:
    return folder.fd, folder.add(name, data), 0, len(data), crc(data)


def test_files_stand_behind_the_prefix_in_their_order(folder: Folder) -> None:
    contents = [content(i, size) for i, size in enumerate((10_000, 1, 0, 70_000))]
    files = [file_in(folder, f"f{i}", data) for i, data in enumerate(contents)]
    assert read_cached(b"head", tuple(files)) == b"".join([b"head", *contents])
    twice = (files[1], files[0], files[1])
    assert read_cached(b"", twice) == contents[1] + contents[0] + contents[1]
    assert read_cached(b"head", ()) == b"head"


@pytest.mark.parametrize("wrong", ["missing", "short", "checksum", "link"])
def test_one_wrong_file_and_there_is_no_answer(folder: Folder, wrong: str) -> None:
    good = file_in(folder, "good", content(1, 500))
    fd, path, offset, size, checksum = file_in(folder, "bad", content(2, 500))
    (folder.path / "link").symlink_to("bad")
    bad = {
        "missing": (fd, b"nowhere", offset, size, checksum),
        "short": (fd, path, offset, size + 1, checksum),
        "checksum": (fd, path, offset, size, checksum ^ 1),
        "link": (fd, b"link", offset, size, checksum),
    }[wrong]
    assert read_cached(b"", (good, bad, good)) is None
    assert read_cached(b"", (good, (fd, path, offset, size, checksum))) is not None


def test_what_lies_on_the_drive_alone_is_not_waited_for(folder: Folder) -> None:
    files = tuple(file_in(folder, f"f{i}", content(i, 40_000)) for i in range(4))
    folder.chill()
    answer = read_cached(b"", files)
    assert answer is None or answer == b"".join(content(i, 40_000) for i in range(4))  # some file systems keep pages


@table("files", [[(0, b"f", 1, 2)], ((0, b"f", 1),), ((0, "f", "1", 2),), (None,)])
def test_other_arguments_are_a_type_error(files: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_cached(b"", files)  # type: ignore[arg-type]
