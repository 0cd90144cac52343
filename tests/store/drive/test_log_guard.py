"""Damaged records in a catalog's logs and manifest: refused or cut off before RocksDB reads them, which may never end.

RocksDB does not let go of the interpreter while it reads, so what opens a damaged store runs in processes with a
deadline.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ais_loader.errors import StoreFormatError
from ais_loader.testing import seeded_bytes
from storage_node.store.drive import log_guard
from storage_node.store.format import Version
from storage_node.store.fsck.fsck import check, rebuild, repair
from storage_node.store.store import Store
from tests.store.drive.test_catalog_log import killed_after_work, newest_log
from tests.store.store_kit import BUCKET, assert_sound, contents, copy_with_attributes, put, store_at
from tests.table import table

pytestmark = pytest.mark.slow

DEADLINE_S = 180


def records(path: Path) -> list[int]:
    """Where the records of a log or manifest begin."""
    data, at, found = path.read_bytes(), 0, []
    while at + 7 <= len(data):
        found.append(at)
        at += 7 + int.from_bytes(data[at + 4 : at + 6], "little")
    assert at == len(data) < log_guard.BLOCK_BYTES
    return found


def newest_manifest(root: Path) -> Path:
    return root / "catalog" / (root / "catalog" / "CURRENT").read_text().strip()


def finish(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def run_module(code: str, *arguments: str) -> None:
    ended = finish(sys.executable, "-c", f"from tests.store.drive.test_log_guard import *\n{code}", *arguments)
    assert ended.returncode == 0, ended.stderr


def copy(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True, copy_function=copy_with_attributes)
    return target


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def refuse_each_flipped_bit(source: Path, file: str, at: int) -> None:
    """Run in a process of its own."""
    from storage_node.server import NodeServer
    from storage_node.settings.config import ServerConfig

    for bit in range(8):
        root = copy(source, source.with_name(f"bit-{bit}"))
        path = root / "catalog" / file
        flip(path, at + 6, bit)
        before = path.read_bytes()
        said = rf"{file}: damaged record at byte {at:,} .*doctor --rebuild"
        for mode in ("r", "a", "r"):
            with pytest.raises(StoreFormatError, match=said):
                Store.open([root], mode=mode)  # type: ignore[arg-type]
        with pytest.raises(StoreFormatError, match=said):
            NodeServer([root], ServerConfig(port=0)).start()
        assert [finding.kind for finding in check([root]).errors] == ["drive-unusable"]
        assert path.read_bytes() == before
        shutil.rmtree(root)


PLACES = {"first": 0, "middle": 70, "last": -1}


@pytest.mark.parametrize("place", PLACES)
def test_each_bit_of_a_records_type_in_a_log_is_refused(tmp_path: Path, place: str) -> None:
    killed_after_work(tmp_path / "drive")
    log = newest_log(tmp_path / "drive")
    at = records(log)[PLACES[place]]
    run_module(f"refuse_each_flipped_bit(Path(sys.argv[1]), {log.name!r}, {at})", str(tmp_path / "drive"))


@pytest.mark.parametrize("place", ["first", "last"])
def test_each_bit_of_a_records_type_in_a_manifest_is_refused(tmp_path: Path, place: str) -> None:
    killed_after_work(tmp_path / "drive")
    manifest = newest_manifest(tmp_path / "drive")
    at = records(manifest)[PLACES[place]]
    run_module(f"refuse_each_flipped_bit(Path(sys.argv[1]), {manifest.name!r}, {at})", str(tmp_path / "drive"))


@pytest.mark.parametrize("file", ["log", "manifest"])
def test_the_commands_end_and_a_rebuild_brings_everything_back(tmp_path: Path, file: str) -> None:
    root = tmp_path / "drive"
    acknowledged = killed_after_work(root)
    path = newest_log(root) if file == "log" else newest_manifest(root)
    flip(path, records(path)[1] + 6, bit=2)
    command = (sys.executable, "-m", "ais_loader.cli")
    for arguments in (["ls", "--store", str(root)], ["serve", "--drive", str(root), "--port", "0"]):
        ended = finish(*command, *arguments)
        assert ended.returncode == 1 and f"{path.name}: damaged record" in ended.stderr, ended
    ended = finish(*command, "doctor", str(root))
    assert ended.returncode == 1 and f"{path.name}: damaged record" in ended.stdout, ended
    ended = finish(*command, "doctor", "--rebuild", str(root))
    assert ended.returncode == 0, ended
    repair([root])  # what the newer objects replaced
    with Store.open([root]) as store:
        assert contents(store) == acknowledged
    assert_sound(root)


def rebuild_with_deletions(root: Path) -> None:
    """Run in a process of its own."""
    log = newest_log(root)
    for at in records(log):
        flip(log, at + 6, bit=2)
    assert not rebuild([root]).errors
    with Store.open([root]) as store:
        assert contents(store) == {"kept": b"kept"}
        assert {name for name, *_ in store.replicas.tombstones(BUCKET)} == {f"deleted/{number}" for number in range(50)}


def test_a_rebuild_takes_the_tombstones_from_a_log_whose_types_are_all_damaged(tmp_path: Path) -> None:
    with store_at(tmp_path / "working") as store:
        put(store, "kept", b"kept")
        for number in range(50):
            counter = put(store, f"deleted/{number}", b"").counter
            store.delete(BUCKET, f"deleted/{number}", Version(1, counter + 1, 3), keep_tombstone=True)
        copy(tmp_path / "working", tmp_path / "drive")
    run_module("rebuild_with_deletions(Path(sys.argv[1]))", str(tmp_path / "drive"))


def follow_a_damaged_log(root: Path) -> None:
    """Run in a process of its own."""
    with Store.open([root], mode="r") as reader:
        assert len(contents(reader)) == 1
        code = f"""
store = Store.open([Path({str(root)!r})])
for number in range(5):
    put(store, f"later/{{number}}", b"later")
os._exit(0)
"""
        run_module(code)
        log = newest_log(root)
        flip(log, records(log)[-2] + 6, bit=2)
        drive = reader.drives[0]
        assert drive is not None
        with pytest.raises(StoreFormatError, match=f"{log.name}: damaged record"):
            drive.catalog.catch_up()


def test_a_reader_that_follows_a_writer_refuses_a_damaged_record(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "first", b"first")
    run_module("follow_a_damaged_log(Path(sys.argv[1]))", str(tmp_path / "drive"))


def recover(source: Path) -> None:
    """Run in a process of its own."""
    log = newest_log(source)
    with Store.open([copy(source, source.with_name("whole"))]) as store:
        acknowledged = contents(store)
    tails = [seeded_bytes(size, seed=seed) for size in (1, 7, 200, 70_000) for seed in range(6)]
    for number, kind in enumerate([*range(16), 128, 129, 255]):
        tails += [b"\x12\x34\x56\x78%c\x00%c" % (length, kind) + seeded_bytes(90, seed=number) for length in (40, 200)]
    for number, tail in enumerate(tails):
        root = copy(source, source.with_name(f"tail-{number}"))
        with (root / "catalog" / log.name).open("ab") as file:
            file.write(tail)
        try:
            with Store.open([root], mode="r") as store:
                assert contents(store) == acknowledged
        except StoreFormatError as error:
            assert "opening the drive for writing" in str(error)
        with Store.open([root]) as store:
            assert contents(store) == acknowledged
        shutil.rmtree(root)


def test_whatever_bytes_follow_the_last_record_what_was_written_before_is_there(tmp_path: Path) -> None:
    killed_after_work(tmp_path / "drive")
    run_module("recover(Path(sys.argv[1]))", str(tmp_path / "drive"))


# -- the guard alone


def sound_log(folder: Path, count: int = 3000) -> Path:
    """The log of a drive of several blocks, so that some records are in parts."""
    with store_at(folder) as store:
        for number in range(count):
            put(store, str(number), b"", metadata={"text": "x" * (number % 90)})
        shutil.copytree(folder / "catalog", folder.with_name("copy"), symlinks=True)
    log = max(folder.with_name("copy").glob("*.log"), key=os.path.getsize)
    assert log.stat().st_size > 8 * log_guard.BLOCK_BYTES
    return log


def test_a_log_may_end_anywhere_and_be_read_on_from_there(tmp_path: Path) -> None:
    log = sound_log(tmp_path / "drive")
    data = log.read_bytes()
    guard = log_guard.LogGuard(log.parent)
    for size in itertools.chain(range(0, len(data), 997), [len(data)]):
        log.write_bytes(data[:size])
        guard.require_sound()


@table("block", [0, 3])
@table("size", [1, 4096, log_guard.BLOCK_BYTES, 100_000])
def test_damage_that_records_follow_is_refused_and_nothing_is_cut(tmp_path: Path, block: int, size: int) -> None:
    log = sound_log(tmp_path / "drive")
    data = bytearray(log.read_bytes())
    at = block * log_guard.BLOCK_BYTES
    data[at : at + size] = bytes(byte ^ 0x55 for byte in data[at : at + size])
    log.write_bytes(data)
    for alone in (None, lambda: pytest.fail("nothing is to be cut")):
        with pytest.raises(StoreFormatError, match=f"{log.name}: damaged record .* would be lost"):
            log_guard.LogGuard(log.parent).require_sound(alone)
    assert log.read_bytes() == data


def test_damage_at_the_end_of_a_log_that_another_follows_is_refused(tmp_path: Path) -> None:
    log = sound_log(tmp_path / "drive")
    shutil.copy(log, log.with_name("999999.log"))
    with log.open("ab") as file:
        file.write(b"\xff" * 100)
    with pytest.raises(StoreFormatError, match=f"{log.name}: damaged record .* would be lost"):
        log_guard.LogGuard(log.parent).require_sound(lambda: pytest.fail("nothing is to be cut"))
