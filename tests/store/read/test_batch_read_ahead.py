"""Announcing files to the kernel: only what is not in the page cache, and nothing of it fails for whoever announces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from storage_node.store.native import announce, read_frame
from tests.store.batch_read_kit import Folder, columns, content, open_descriptors, whole_files
from tests.table import table

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with Folder(tmp_path) as opened:
        yield opened


def is_cached(path: Path, size: int) -> bool:
    """Whether all of it is in the page cache; asking has no effect on what is not."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(size)], 0, os.RWF_NOWAIT) == size
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def forgets(folder: Folder) -> bool:
    """Some file systems (tmpfs, overlays) keep their pages or cannot tell; nothing is announced on those."""
    probe = folder.path / "probe"
    probe.write_bytes(bytes(8192))
    folder.chill()
    try:
        return not is_cached(probe, 8192)
    except OSError:
        return False


def test_cold_files_are_announced_and_come_without_being_read(folder: Folder) -> None:
    cold_bytes = 20 * 50_000 if forgets(folder) else 0
    paths, contents = folder.add_many(20, 50_000)
    args = whole_files(folder, paths, contents)[:4]
    assert announce(*args) == 0

    def chilled_and_announced() -> bool:
        """The look at whether a byte is there has the kernel fetch it, which may be faster than the answer."""
        folder.chill()
        return bool(announce(*args) == cold_bytes)

    eventually(chilled_and_announced)
    eventually(lambda: not cold_bytes or all(is_cached(folder.path / path.decode(), 50_000) for path in paths))
    assert announce(*args) == 0


def test_a_reader_says_when_it_had_to_wait_for_the_drive(folder: Folder) -> None:
    paths, contents = folder.add_many(5, 20_000)
    args = (b"", -1, *whole_files(folder, paths, contents))

    def has_waited(waited: bytes = b"\0") -> bool:
        flag = bytearray(waited)
        assert read_frame(*args, flag) == b"".join(contents)
        return flag == b"\1"

    def has_waited_when_cold() -> bool:
        folder.chill()
        return has_waited()

    # The kernel may drop pages whenever it likes, and keep some that another processor has just touched.
    eventually(lambda: not has_waited())
    if forgets(folder):
        eventually(has_waited_when_cold)
    assert has_waited(b"\1")  # left as it is


def test_what_cannot_be_opened_is_left_to_whoever_reads_it(folder: Folder) -> None:
    (folder.path / "link").symlink_to("f0")
    path = folder.add("f0", content(0, 3000))
    before = open_descriptors(folder)
    for wanted in ([b"nowhere"], [b"link"], [path, b"nowhere", path], [b""], []):
        announced = announce(*columns(folder.fd, wanted, [0] * len(wanted), [3000] * len(wanted))[:4])
        assert announced in (0, 3000, 6000)
    assert announce(*columns(-1, [path, b""], [0, 0], [0, 0])[:4]) == 0  # nothing is wanted of them
    assert open_descriptors(folder) == before


@table("wrong", ["path", "offset", "length of columns"])
def test_other_arguments_are_refused(folder: Folder, wrong: str) -> None:
    dirfds, paths, offsets, lengths, *_ = columns(folder.fd, [b"f", b"g"], [0, 0], [1, 1])
    args = {
        "path": (dirfds, ["f", "g"], offsets, lengths),
        "offset": (dirfds, paths, columns(0, [b"f"] * 2, [0, -1], [0, 0])[2], lengths),
        "length of columns": (dirfds, paths, offsets, lengths[:1]),
    }[wrong]
    with pytest.raises((TypeError, ValueError)):
        announce(*args)
