"""The chain of an audit log: whatever happens to its files is found, and the log goes on after every stop."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.testing import eventually
from storage_node.security.audit import log as log_module
from storage_node.security.audit.log import AuditLog, LogPlace
from storage_node.store.store_record import AuditEnd
from tests.security.audit_kit import NODE, append, files_of, lines_in, log_in, run, verify
from tests.table import table

FILE_BYTES = 2_000


def filled(folder: Path, lines: int = 40, files: int = 100) -> list[Path]:
    """The files of a log of several files."""
    with log_in(folder, file_bytes=FILE_BYTES, files=files) as log:
        for number in range(lines):
            append(log, 1, number)
            log._thread.submit(lambda: None).result()  # one write for each line
    found = files_of(folder)
    assert len(found) > 3
    return found


def test_a_log_has_each_line_once_in_order_in_files_of_its_owner(tmp_path: Path) -> None:
    files = filled(tmp_path / "log")
    lines = lines_in(tmp_path / "log")
    assert [one["number"] for one in lines if one["event"] == "change"] == list(range(40))
    assert [one["seq"] for one in lines] == list(range(1, len(lines) + 1))
    assert {one["node"] for one in lines} == {NODE}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o700
    verdict = verify(files)
    assert (verdict.problem, verdict.is_closed, verdict.lines) == ("", True, len(lines))
    assert "ok " in run("verify", tmp_path) and "ok " in run("verify", *files)
    assert "ok " in run("verify", tmp_path, "--expect", verdict.last.sum)


@pytest.mark.slow
def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    with log_in(tmp_path / "log") as log:
        append(log, 3)
    (path,) = files_of(tmp_path / "log")
    data = path.read_bytes()
    for at in range(len(data)):
        for bit in (1, 0x20, 0x80):
            path.write_bytes(data[:at] + bytes((data[at] ^ bit,)) + data[at + 1 :])
            assert verify([path]).problem, at
    path.write_bytes(data)
    assert not verify([path]).problem


def test_the_first_broken_line_is_named(tmp_path: Path) -> None:
    files = filled(tmp_path)
    lines = files[1].read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"number":', b'"Number":')
    files[1].write_bytes(b"".join(lines))
    assert f"BROKEN {files[1]}, line 3: the line was changed" in run("verify", tmp_path, fails=True)


def cut_line(files: list[Path]) -> None:
    lines = files[1].read_bytes().splitlines(keepends=True)
    files[1].write_bytes(b"".join(lines[:2] + lines[3:]))


def cut_last_line(files: list[Path]) -> None:
    lines = files[1].read_bytes().splitlines(keepends=True)
    files[1].write_bytes(b"".join(lines[:-1]))


def swap_lines(files: list[Path]) -> None:
    lines = files[1].read_bytes().splitlines(keepends=True)
    lines[2], lines[3] = lines[3], lines[2]
    files[1].write_bytes(b"".join(lines))


def repeat_line(files: list[Path]) -> None:
    lines = files[1].read_bytes().splitlines(keepends=True)
    files[1].write_bytes(b"".join([*lines[:3], lines[2], *lines[3:]]))


def swap_files(files: list[Path]) -> None:
    one, other = files[1].read_bytes(), files[2].read_bytes()
    files[1].write_bytes(other)
    files[2].write_bytes(one)


def empty(files: list[Path]) -> None:
    files[1].write_bytes(b"")


def tear(files: list[Path]) -> None:
    os.truncate(files[-1], files[-1].stat().st_size - 5)


@table(
    ("damage", "problem"),
    [
        (cut_line, "lines are missing before it"),
        (cut_last_line, "lines are missing before it"),
        (swap_lines, "lines are missing before it"),
        (repeat_line, "the line is out of order"),
        (swap_files, "it is another one"),
        (empty, "the file is empty"),
        (tear, "the end is missing"),
        (lambda files: files[1].unlink(), "1 files before it are missing, from number 2 on"),
        (lambda files: files[0].unlink(), "files before it are missing: the log was kept from file 1 on"),
    ],
)
def test_what_is_removed_or_moved_is_found(
    tmp_path: Path, damage: Callable[[list[Path]], object], problem: str
) -> None:
    damage(filled(tmp_path))
    assert problem in run("verify", tmp_path, fails=True)


def test_files_in_another_order_are_found(tmp_path: Path) -> None:
    files = filled(tmp_path)
    assert "out of order" in run("verify", files[0], files[1], files[0], fails=True)
    assert "missing" in run("verify", files[0], files[2], files[1], fails=True)


def test_lines_of_another_log_are_found(tmp_path: Path) -> None:
    mine, other = filled(tmp_path / "mine"), filled(tmp_path / "other")
    mine[2].write_bytes(other[2].read_bytes())
    assert "does not follow" in run("verify", tmp_path / "mine", fails=True)


def test_removed_last_lines_are_found_by_a_sum_that_was_kept(tmp_path: Path) -> None:
    files = filled(tmp_path)
    kept = verify(files).last.sum
    files[-1].unlink()
    assert "ok " in run("verify", tmp_path)
    assert "lines were removed" in run("verify", tmp_path, "--expect", kept, fails=True)


def test_old_files_are_removed_and_the_rest_is_right(tmp_path: Path) -> None:
    with log_in(tmp_path, file_bytes=FILE_BYTES, files=3) as log:
        for number in range(100):
            append(log, 1, number)
            log._thread.submit(lambda: None).result()
            assert len(files_of(tmp_path)) <= 3
    files = files_of(tmp_path)
    assert len(files) == 3 and verify(files).first_number > 3
    assert "from file" in run("verify", tmp_path)
    files[0].unlink()
    assert "files before it are missing" in run("verify", tmp_path, fails=True)


@pytest.mark.slow
def test_a_log_rotates_under_load_and_loses_nothing(tmp_path: Path) -> None:
    with log_in(tmp_path, file_bytes=FILE_BYTES) as log:
        append(log, 3_000)
    assert [one["number"] for one in lines_in(tmp_path) if one["event"] == "change"] == list(range(3_000))
    assert log.lost == 0
    assert not verify(files_of(tmp_path)).problem


@table(
    "torn",
    [
        b"",
        b"x",
        b'{"seq":9,"node":"',
        b"\0" * 5000,
        pytest.param(b"\0" * 300_000, id="zeros"),
        pytest.param(b'{"seq":9,"names":"' + b"n" * (200 << 10), id="a long line"),
    ],
)
def test_a_log_goes_on_after_a_torn_end(tmp_path: Path, torn: bytes) -> None:
    with log_in(tmp_path) as log:
        append(log, 5)
    (path,) = files_of(tmp_path)
    with open(path, "ab") as file:
        file.write(torn)
    with log_in(tmp_path) as log:
        append(log, 5, 5)
    lines = lines_in(tmp_path)
    assert [one["number"] for one in lines if one["event"] == "change"] == list(range(10))
    (again,) = [one for one in lines[1:] if one["event"] == "open"]
    assert again["start"] and again.get("cut_bytes", 0) == len(torn)
    assert not verify([path]).problem


@table("content", [b"", b"garbage\n", b"garbage"])
def test_a_log_goes_on_after_a_file_without_a_line(tmp_path: Path, content: bytes) -> None:
    files = filled(tmp_path)
    before = lines_in(tmp_path)[-1]
    files.append(files[-1].with_name(f"audit-{len(files) + 1:08}.jsonl"))
    files[-1].write_bytes(content)
    with log_in(tmp_path, file_bytes=FILE_BYTES) as log:
        append(log, 1, 40)
    lines = lines_in(tmp_path)
    assert [one["number"] for one in lines if one["event"] == "change"] == list(range(41))
    assert lines[before["seq"]]["seq"] == before["seq"] + 1
    problem = verify(files_of(tmp_path)).problem
    assert bool(problem) == content.endswith(b"\n"), problem  # whole lines are left for whoever looks into it


def test_lost_lines_are_counted_and_told_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = False
    write = os.write

    def filling(fd: int, data: memoryview) -> int:
        if full:
            write(fd, data[:7])
            raise OSError(28, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(log_module.os, "write", filling)
    with log_in(tmp_path) as log:
        append(log, 2)
        log._thread.submit(lambda: None).result()
        full = True
        append(log, 3, 2)
        log._thread.submit(lambda: None).result()
        full = False
        append(log, 1, 5)
    assert log.lost == 3
    lines = lines_in(tmp_path)
    assert [one["number"] for one in lines if one["event"] == "change"] == [0, 1, 5]
    assert [one["lines"] for one in lines if one["event"] == "lost"] == [3]
    verdict = verify(files_of(tmp_path))
    assert (verdict.problem, verdict.lost) == ("", 3)
    assert "3 lines could not be written" in run("verify", tmp_path)


def test_a_file_that_could_not_be_begun_begins_as_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, refusals = os.write, [28] * 3

    def filling(fd: int, data: memoryview) -> int:
        if refusals and not os.fstat(fd).st_size and data.tobytes().find(b'"file":2,') > 0:
            raise OSError(refusals.pop(), "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(log_module.os, "write", filling)
    files = filled(tmp_path)
    assert not refusals
    verdict = verify(files)
    assert (verdict.problem, verdict.lost) == ("", 2)  # the first refusal comes before there is a line
    written = [one["number"] for one in lines_in(tmp_path) if one["event"] == "change"]
    assert len(written) == 38 and written == sorted(written)


def test_a_folder_that_cannot_be_made_loses_lines_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("a file")
    with log_in(tmp_path / "place" / "log") as log:
        append(log, 2)
        log._thread.submit(lambda: None).result()
        assert log.lost == 2
        (tmp_path / "place").unlink()
        append(log, 1, 2)
    assert [one["number"] for one in lines_in(tmp_path / "place" / "log") if one["event"] == "change"] == [2]


def test_more_than_fits_into_memory_is_lost_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "MAX_WAITING", 10)
    with log_in(tmp_path) as log:
        log.append(lambda: {"event": "change", "number": 0}, 11)
        append(log, 1, 1)
    assert log.lost == 1
    assert [one["number"] for one in lines_in(tmp_path) if one["event"] == "change"] == [1]


def test_a_log_goes_on_elsewhere_when_its_drive_is_given_up(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    places = [LogPlace(old / "audit", AuditEnd(), bool)]
    log = AuditLog(lambda: places[-1], NODE, file_bytes=FILE_BYTES, files=9, collect_s=0.0)
    append(log, 3)
    eventually(lambda: log.lines > 3)
    places.append(LogPlace(new / "audit", AuditEnd(), bool))
    append(log, 1, first=3)
    eventually(lambda: files_of(new / "audit"))
    assert not verify(files_of(old / "audit")).problem
    assert [line["event"] for line in lines_in(old / "audit")] == ["open", "change", "change", "change", "close"]
    shutil.rmtree(old)
    append(log, 1, first=4)
    log.close()
    assert not old.exists()
    assert [line.get("number") for line in lines_in(new / "audit")] == [None, 3, 4, None]
    assert not verify(files_of(new / "audit")).problem
    assert not log.lost
