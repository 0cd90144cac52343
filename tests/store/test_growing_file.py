"""A value kept as a whole line and lines of its changes: its bytes, and what is left of an interrupted write."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.errors import StoreFormatError
from ais_loader.wire.bucket_settings import BucketSettings
from storage_node.store import store_record as records
from storage_node.store.files.growing_file import GrowingFile
from storage_node.store.store import Store
from storage_node.store.store_record import AuditEnd, BucketRecord, SnapshotRecord, StoreRecord

FIRST = StoreRecord("5" * 32, ("d" * 32,))
NAMES = st.sampled_from(["a", "b", "c"])


def changed(record: StoreRecord, kind: int, name: str) -> StoreRecord:
    """Return the record after one of the changes that there are, if it can be made."""
    if kind == 0:
        return record.with_buckets({name: BucketRecord(name * 32, quota_bytes=len(record.buckets))})
    if kind == 1:
        return record.without_bucket(name) if name in record.buckets else record
    if kind == 2:
        return record.with_snapshot(name * 32, "s", SnapshotRecord(record.revision, 1))
    if kind == 3:
        return record.without_snapshot(name * 32, "s") if name * 32 in record.snapshots else record
    if kind == 4:
        return record.changed(revoked_tokens={name: record.revision} if record.revision % 3 else {})
    return replace(record.changed(audit={**record.audit, name: AuditEnd(seq=record.revision)}), purging=(name,))


@given(changes=st.lists(st.tuples(st.integers(0, 5), NAMES), max_size=30), cut=st.integers(1, 400))
def test_every_change_is_read_back_and_a_line_cut_short_is_the_value_before(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, str]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("record") / "record.json"
    file, record = GrowingFile(records.encode), FIRST
    file.write(path, record)
    for kind, name in changes:
        before, size_bytes = record, path.stat().st_size
        record = changed(record, kind, name)
        file.write(path, record)
        data = path.read_bytes()
        assert records.decode(data, path) == record
        if len(data) > size_bytes:
            assert records.decode(data[: max(size_bytes, len(data) - cut)], path) == before


def test_damage_to_a_line_that_was_complete_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    file = GrowingFile(records.encode)
    for record in (FIRST, changed(FIRST, 0, "a")):
        file.write(path, record)
    data = path.read_bytes()
    for damaged in (data.replace(b"revision", b"revisiom"), data[:30] + data[31:], data.replace(b"\n", b"", 1)):
        with pytest.raises(StoreFormatError):
            records.decode(damaged, path)


def test_a_file_that_somebody_else_has_replaced_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    file, other = GrowingFile(records.encode), GrowingFile(records.encode)
    one, two = changed(FIRST, 0, "a"), changed(FIRST, 0, "b")
    for writer, record in ((file, one), (other, two), (file, changed(one, 0, "c"))):
        writer.write(path, record)
        assert records.decode(path.read_bytes(), path) == record
        assert path.read_bytes().count(b"\n") == 1
    path.unlink()
    file.write(path, one)
    assert records.decode(path.read_bytes(), path) == one
    other.write(path, two)
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b" ")  # as large as before
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 1))
    other.write(path, one)
    assert records.decode(path.read_bytes(), path) == one


def test_a_line_follows_no_line_that_failed(tmp_path: Path) -> None:
    path, fails = tmp_path / "record.json", [False]

    def fail_once() -> None:
        if fails[0]:
            fails[0] = False
            raise OSError(28, "No space left on device")

    file, record = GrowingFile(records.encode, fail_once), FIRST
    file.write(path, record)
    fails[0] = True
    with pytest.raises(OSError, match="No space"):
        file.write(path, changed(record, 0, "lost"))
    assert records.decode(path.read_bytes(), path) == record
    file.write(path, kept := changed(record, 0, "kept"))
    assert records.decode(path.read_bytes(), path) == kept


def written_bytes() -> int:
    """Return how many bytes this process has passed to write calls."""
    rows = dict(row.split(": ") for row in Path("/proc/self/io").read_text().splitlines())
    return int(rows["wchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts written bytes by Linux's /proc")
def test_bucket_two_thousand_is_written_with_no_more_bytes_than_one_of_the_first(tmp_path: Path) -> None:
    costs: list[int] = []
    with Store.open([tmp_path / "drive"]) as store:
        for number in range(2000):
            before = written_bytes()
            store.create_bucket(f"bucket-{number:04d}", BucketSettings())
            costs.append(written_bytes() - before)
    with Store.open([tmp_path / "drive"], mode="r") as store:
        assert len(store.buckets()) == 2000
    median = sorted(costs)[1000]
    assert sorted(costs[-10:])[5] <= 2 * median and sum(costs) <= 2000 * 4 * median
