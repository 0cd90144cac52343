"""Reading objects of stored files into memory of the caller, and out of mappings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node.store.native import StoredFile, copy_into, read_frame, read_into, read_list
from storage_node.store.read.batch_reader import Failure, FailureCode
from tests.store.batch_read_kit import FILE_SYSTEMS, Folder, columns, content, crc, folder_on, open_descriptors
from tests.table import table

pytestmark = pytest.mark.on_disk  # which answers RWF_NOWAIT
SIZE = 5000
ENOUGH = 10
"""Reads after which a segment is mapped."""


@pytest.fixture(params=FILE_SYSTEMS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Folder]:
    with folder_on(request.param, tmp_path) as opened:
        yield opened


class Segment:
    """A file of ten objects, as a StoredFile."""

    def __init__(self, folder: Folder, name: str = "segment", seed: int = 0) -> None:
        self.fd = folder.fd
        self.objects = [content(seed + at, SIZE) for at in range(10)]
        self.path = folder.path / name
        self.file = StoredFile(folder.add(name, b"".join(self.objects)), True)

    def columns(self, wanted: list[int]) -> tuple[Any, ...]:
        checksums = [crc(self.objects[at]) for at in wanted]
        return columns(
            self.fd, [self.file] * len(wanted), [SIZE * at for at in wanted], [SIZE] * len(wanted), checksums
        )

    def read(self, wanted: list[int]) -> bytes | Failure:
        target = bytearray(b"head" + bytes(SIZE * len(wanted)))
        failed = read_into(target, 4, *self.columns(wanted), bytearray(1))
        return bytes(target) if failed is None else failed

    def due(self, wanted: list[int]) -> bytes:
        return b"head" + b"".join(self.objects[at] for at in wanted)

    def warm(self) -> None:
        for _ in range(ENOUGH):
            assert self.read([0, 1]) == self.due([0, 1])
        assert self.file.is_mapped


def test_pieces_fill_the_target_in_request_order(folder: Folder) -> None:
    segment = Segment(folder)
    for wanted in ([3, 1, 1, 9, 0], [], list(range(10)) * 20):
        for _ in range(ENOUGH):
            assert segment.read(wanted) == segment.due(wanted)
    segment.warm()
    args = segment.columns([2, 7])
    assert read_list(*args) == [segment.objects[2], segment.objects[7]]
    frame = read_frame(bytes(8), 0, *args)
    assert frame == array("I", args[4]).tobytes() + segment.objects[2] + segment.objects[7]


def test_mapped_files_files_and_paths_in_one_call(folder: Folder) -> None:
    segment = Segment(folder)
    segment.warm()
    other = content(99, 300_000)
    path = folder.add("other", other)
    alone = StoredFile(path, False)
    paths = [segment.file, alone, segment.file, segment.file, alone]
    offsets, lengths = [SIZE, 0, 0, 9 * SIZE, 100], [SIZE, 300_000, SIZE, SIZE, 7]
    pieces = [segment.objects[1], other, segment.objects[0], segment.objects[9], other[100:107]]
    args = columns(folder.fd, paths, offsets, lengths, [crc(piece) for piece in pieces])
    target = bytearray(sum(lengths))
    assert read_into(target, 0, *args, bytearray(1)) is None
    assert bytes(target) == b"".join(pieces)
    assert read_list(*args) == pieces


def test_damage_in_a_mapped_file_is_found(folder: Folder) -> None:
    segment = Segment(folder)
    segment.warm()
    with segment.path.open("r+b") as opened:
        opened.seek(4 * SIZE + 17)
        opened.write(bytes((segment.objects[4][17] ^ 1,)))
    assert segment.read([3, 4, 5]) == (1, FailureCode.CHECKSUM, 0)
    assert segment.read([3, 5]) == segment.due([3, 5])


def test_no_descriptor_is_left_open_after_damage_on_both_sides_of_a_copy(folder: Folder) -> None:
    segment = Segment(folder)
    with segment.path.open("r+b") as opened:
        for at in (2, 4, 6):
            opened.seek(SIZE * at)
            opened.write(bytes(SIZE))
    segment.warm()
    before = open_descriptors(folder)
    assert segment.read([1, 2, 3, 4, 5, 6, 7]) == (1, FailureCode.CHECKSUM, 0)
    assert open_descriptors(folder) == before


@table("left", [0, 4 * SIZE + 10, 6 * SIZE])
def test_a_mapped_file_that_was_cut_short_is_an_error_of_its_entries(folder: Folder, left: int) -> None:
    segment = Segment(folder, f"segment-{left}")
    segment.warm()
    os.truncate(segment.path, left)
    at = left // SIZE
    assert segment.read([0, 9][left == 0 :]) == (int(left > 0), FailureCode.SHORT, 0)
    assert segment.read([9, 0]) == (0, FailureCode.SHORT, 0)
    if at:
        assert segment.read(list(range(at))) == segment.due(list(range(at)))


def test_a_removed_file_is_an_error_or_its_own_bytes(folder: Folder) -> None:
    segment = Segment(folder)
    segment.warm()
    segment.path.unlink()
    replaced = Segment(folder, seed=50)
    came = segment.read([1])
    assert came == segment.due([1])
    assert replaced.read([1]) == replaced.due([1])


def test_targets_that_do_not_fit_are_refused(folder: Folder) -> None:
    segment = Segment(folder)
    args = (*segment.columns([0]), bytearray(1))
    for target, first in ((bytearray(SIZE), 1), (bytearray(SIZE + 1), 0), (bytearray(SIZE), -1), (bytearray(2), 3)):
        with pytest.raises(ValueError, match="do not fill a target"):
            read_into(target, first, *args)
    with pytest.raises((BufferError, TypeError)):
        read_into(bytes(SIZE), 0, *args)


def test_many_threads_read_what_is_cut_short_meanwhile(folder: Folder) -> None:
    segment = Segment(folder)
    segment.warm()
    wrong: list[object] = []

    def work() -> None:
        for _ in range(300):
            came = segment.read([0, 9, 5])
            if came != segment.due([0, 9, 5]) and came[0] not in (1, 2):
                wrong.append(came)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    os.truncate(segment.path, 2 * SIZE)
    for thread in threads:
        thread.join(180)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert segment.read([0, 1]) == segment.due([0, 1])


def test_copies_are_made_of_mapped_pieces_only(folder: Folder) -> None:
    segment = Segment(folder)
    target = bytearray(b"head" + bytes(2 * SIZE))
    assert not copy_into(target, 4, *segment.columns([3, 4]))
    segment.warm()
    assert copy_into(target, 4, *segment.columns([3, 4]))
    assert bytes(target) == segment.due([3, 4])
    other = StoredFile(folder.add("other", segment.objects[4]), False)
    mixed = columns(folder.fd, [segment.file, other], [SIZE * 3, 0], [SIZE] * 2, [crc(segment.objects[3])] * 2)
    assert not copy_into(target, 4, *mixed)
    with segment.path.open("r+b") as opened:
        opened.seek(4 * SIZE)
        opened.write(bytes(10))
    assert not copy_into(target, 4, *segment.columns([3, 4]))
    os.truncate(segment.path, 0)
    assert not copy_into(target, 4, *segment.columns([3, 5]))


# -- in processes of their own, whose handlers are theirs

PROGRAM = """
import faulthandler, mmap, os, signal, sys
from pathlib import Path
from tests.store.batch_read_kit import Folder
from tests.store.read.test_batch_read_mapped import Segment
from storage_node.store.read.batch_reader import FailureCode

def send() -> None:
    os.kill(os.getpid(), signal.SIGBUS)

def fault() -> None:
    with open(sys.argv[1] + "/short", "w+b") as file:
        file.truncate(1)
        with mmap.mmap(file.fileno(), 1) as mapped:
            file.truncate(0)
            mapped[0]

def cut() -> None:
    os.truncate(segment.path, 0)
    assert segment.read([1]) == (0, FailureCode.SHORT, 0)

with Folder(Path(sys.argv[1])) as folder:
    segment = Segment(folder)
    {before}
    segment.warm()
    {then}
print("went on", flush=True)
"""


def outcome(folder: Path, before: str, then: str) -> tuple[int, str]:
    program = PROGRAM.format(before=before, then=then)
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=180, check=False
    )
    return done.returncode, done.stdout + done.stderr


HANDLER = "signal.signal(signal.SIGBUS, lambda *_: print('theirs', flush=True))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "then", "code", "says"),
    [
        ("pass", "cut()", 0, "went on\n"),
        (HANDLER, "cut()", 0, "went on\n"),
        ("pass", f"{HANDLER}; cut()", 0, "went on\n"),
        (HANDLER, "send()", 0, "theirs\nwent on\n"),
        ("signal.signal(signal.SIGBUS, signal.SIG_IGN)", "send()", 0, "went on\n"),
        ("pass", "send()", -signal.SIGBUS, ""),
    ],
)
def test_signals_that_are_not_ours_go_where_they_went(
    tmp_path: Path, before: str, then: str, code: int, says: str
) -> None:
    assert outcome(tmp_path, before, then) == (code, says)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["send()", "fault()"])
def test_a_handler_that_came_later_and_passes_the_signal_back_ends_the_process_once(tmp_path: Path, fault: str) -> None:
    code, says = outcome(tmp_path, "pass", f"faulthandler.enable(); segment.read([1]); {fault}")
    assert (code, says.count("Bus error")) == (-signal.SIGBUS, 1)
