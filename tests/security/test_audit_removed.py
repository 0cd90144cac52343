"""An audit log whose files somebody removes, cuts or replaces: the node goes on, and `verify` of the drive tells."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.errors import DriveFailed
from ais_loader.testing import eventually
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.store_record import AuditEnd
from tests.security.audit_kit import append, awaited, files_of, lines_in, log_in, run, verify
from tests.table import table


def _node(root: Path, **config: object) -> NodeServer:
    return NodeServer([root], ServerConfig(port=0, audit_file_bytes=500, **config))  # type: ignore[arg-type]


def _change(node: NodeServer, name: str) -> None:
    """Have lines written, in several files."""
    with connect(node.url) as client:
        for number in range(4):
            client.create_bucket(f"{name}-{number}")
            awaited(node, buckets=[f"{name}-{number}"])


def _remove_newest(folder: Path) -> None:
    files_of(folder)[-1].unlink()


def _remove_oldest(folder: Path) -> None:
    files_of(folder)[0].unlink()


def _cut_last_line(folder: Path) -> None:
    path = files_of(folder)[-1]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def _empty_newest(folder: Path) -> None:
    files_of(folder)[-1].write_bytes(b"")


def _replace_by_another_chain(folder: Path) -> None:
    lines = len(lines_in(folder))
    shutil.rmtree(folder)
    with log_in(folder) as log:
        append(log, lines + 10)


ATTACKS: dict[str, Callable[[Path], None]] = {
    "folder": shutil.rmtree,
    "newest": _remove_newest,
    "oldest": _remove_oldest,
    "last line": _cut_last_line,
    "emptied": _empty_newest,
    "other chain": _replace_by_another_chain,
}


@pytest.mark.slow
@table("attack", ATTACKS)
def test_what_is_removed_of_a_stopped_log_is_found_before_and_after_a_restart(tmp_path: Path, attack: str) -> None:
    drive = tmp_path / "drive"
    with _node(drive) as node:
        _change(node, "before")
    assert "ok " in run("verify", drive)
    ATTACKS[attack](drive / "audit")
    run("verify", drive, fails=True)
    with _node(drive) as node:
        _change(node, "after")
        assert "BROKEN" in run("verify", drive, fails=True)
    assert "BROKEN" in run("verify", drive, fails=True)


@pytest.mark.slow
@table("attack", ATTACKS)
def test_what_is_removed_under_a_node_is_found_and_the_log_goes_on(
    tmp_path: Path, attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    drive = tmp_path / "drive"
    with _node(drive) as node:
        _change(node, "before")
        assert node.batches is not None
        log = node.batches.node.audit
        assert log is not None
        log._thread.submit(lambda: None).result()  # the next file may be about to begin
        caplog.clear()  # it has what other rows have logged
        ATTACKS[attack](drive / "audit")
        with caplog.at_level(logging.WARNING):
            _change(node, "after")
        if attack != "oldest":
            assert log.lost > 0
            assert "was removed or changed by somebody else" in caplog.text
        run("verify", drive, fails=True)
    with _node(drive):
        pass
    assert "BROKEN" in run("verify", drive, fails=True)


def test_a_chain_never_begins_anew(tmp_path: Path) -> None:
    kept: list[AuditEnd] = []
    for _ in range(2):
        with log_in(tmp_path / "log", end=(kept or [AuditEnd()])[-1], keep=kept.append) as log:
            append(log, 5)
            log._thread.submit(lambda: None).result()
            shutil.rmtree(tmp_path / "log")
            append(log, 1, 5)
        assert log.lost == 6  # with the line of the opening
        assert "lines are missing before it" in verify(files_of(tmp_path / "log")).problem
        assert lines_in(tmp_path / "log")[-1]["seq"] == kept[-1].seq
        shutil.rmtree(tmp_path / "log")
    assert kept[-1].seq == 20


@pytest.mark.slow
def test_a_log_elsewhere_is_found_by_the_drive(tmp_path: Path) -> None:
    drive, elsewhere = tmp_path / "drive", tmp_path / "elsewhere"
    with _node(drive):
        pass
    with _node(drive, audit_folder=str(elsewhere)) as node:
        _change(node, "one")
    (log,) = elsewhere.iterdir()
    assert f"ok {log}: " in run("verify", drive)
    with _node(drive):  # in its first place again, where it goes on
        pass
    assert run("verify", drive).count("ok ") == 2
    shutil.rmtree(log)
    assert f"BROKEN {log}: line" in run("verify", drive, fails=True)


def test_a_log_goes_on_although_its_end_cannot_be_kept(tmp_path: Path) -> None:
    def refuse(end: object) -> None:
        raise DriveFailed("no majority")

    with log_in(tmp_path, keep=refuse) as log:
        append(log, 3)
    assert log.lost == 0
    assert [one["event"] for one in lines_in(tmp_path)] == ["open", *["change"] * 3, "close"]
    assert not verify(files_of(tmp_path)).problem


def test_a_log_whose_drive_is_taken_away_leaves_nothing_in_its_place_and_goes_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    drive, away = tmp_path / "drive", tmp_path / "away"
    with log_in(drive / "audit") as log:
        append(log, 3)
        eventually(lambda: log.lines == 4)  # and that the node has started
        drive.rename(away)
        append(log, 2)
        eventually(lambda: log.lost >= 2)
        assert not drive.exists()
        away.rename(drive)
        append(log, 1, first=5)
        eventually(lambda: log.lines >= 5 and lines_in(drive / "audit")[-1].get("number") == 5)
