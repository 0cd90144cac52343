"""Segments that are damaged, cut or unreadable, and what comes late: nothing else suffers, and no room is lost."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage_node.store.files import segments
from storage_node.store.files.segments import Segments
from storage_node.store.format import CatalogEntry, Version
from storage_node.store.fsck import fsck as doctor
from storage_node.store.store import Store
from tests.store.segment_kit import head_of
from tests.store.snapshot_kit import reap
from tests.store.store_kit import (
    BUCKET,
    assert_sound,
    contents,
    drive_of,
    kinds,
    object_files,
    put,
    read,
    store_at,
)

GROUP = {f"{number}": bytes([number]) * 5_000 for number in range(8)}


def put_group(store: Store, names: str, data: bytes = b"", version: Version | None = None) -> list[CatalogEntry]:
    uploads = [store.stage(BUCKET, name, [data or GROUP[name]], {}, grouped=True) for name in names]
    for upload in uploads if version else ():
        upload.assign(version)
    results = store.commit_many(uploads)
    assert not [result for result in results if isinstance(result, Exception)]
    return results  # type: ignore[return-value]


def segment_of(record: CatalogEntry) -> bytes:
    return record.path.rpartition(b"/")[0]


def make_unreadable(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """Where the index is, and its copy."""
    bad, pread, copy_at = os.stat(file).st_ino, os.pread, head_of(file).copy_at

    def failing(fd: int, size: int, offset: int) -> bytes:
        if not 4096 <= offset < copy_at and os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", failing)


def test_an_index_that_cannot_be_read_takes_nothing_else_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is the drive refused at its start, for what is dead in that segment, nor can its catalog not be made."""
    with store_at(tmp_path) as store:
        bad = tmp_path / "objects" / os.fsdecode(segment_of(put_group(store, "0123")[0]))
        put_group(store, "4567")
    with monkeypatch.context() as patch:
        make_unreadable(patch, bad)
        with store_at(tmp_path) as store:
            store.delete(BUCKET, "0")  # what closing cannot remove stays named
        with store_at(tmp_path) as store:
            assert contents(store) == {name: data for name, data in GROUP.items() if name != "0"}
            assert [path for _, path in drive_of(store).catalog.scan(b"g")] != []
        report = doctor.rebuild([tmp_path], all_drives=True)
        [lost] = [finding for finding in report.findings if finding.kind == "no-identity"]
        assert lost.path.endswith(bad.name) and "index" in lost.message
        with store_at(tmp_path) as store:
            assert contents(store) == {name: GROUP[name] for name in "4567"}
    doctor.rebuild([tmp_path], all_drives=True)
    with store_at(tmp_path) as store:  # the medium has recovered
        assert {name: GROUP[name] for name in "1234567"}.items() <= contents(store).items()


def test_a_mark_that_comes_late_does_not_bring_back_what_is_gone(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        first, second, _ = put_group(store, "012")
        files = drive_of(store).files
        files.disown([first.path])
        files.set_ended(first.path, 7)
        assert files.ended(first.path) is None and files.identity(first.path) is None
        files.unlink(first.path)
        files.set_ended(first.path, 7)
        files.disown([first.path])
        assert not files.exists(first.path) and not files.own(first.path, files.identity(second.path) or b"")
        assert [path for path in files.walk() if path == first.path] == []
        store.delete(BUCKET, "0")
        store.delete(BUCKET, "1")
        store.delete(BUCKET, "2")
        reap(store)
        assert object_files(tmp_path) == []


def test_a_segment_that_is_cut_under_its_writer_costs_its_objects_alone(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        cut = segment_of(put_group(store, "0123")[0])
        put(store, "4", GROUP["4"])
        store.delete(BUCKET, "0")
        reap(store)  # so that the index is known
        os.truncate(tmp_path / "objects" / os.fsdecode(cut), 40)
        store.delete(BUCKET, "1")
        reap(store)
        assert read(store, "4") == GROUP["4"]
        assert list(drive_of(store).files.walk()) != []
    assert kinds(doctor.check([tmp_path])) == ["segment-copy", "wrong-size", "wrong-size"]
    doctor.repair([tmp_path], drop_damaged=True)
    doctor.repair([tmp_path], drop_damaged=True)  # of the segment, which nothing names any more
    assert_sound(tmp_path)
    assert len(object_files(tmp_path)) == 1


def test_what_is_left_out_of_a_segment_takes_no_room(tmp_path: Path) -> None:
    data, newer = os.urandom(100_000), Version(9, 1 << 40, 3)
    with store_at(tmp_path) as store:
        put_group(store, "0123456", b"newer", newer)
        put_group(store, "01234567", data, Version(9, 1, 3))
        assert read(store, "7") == data
        used = sum(path.stat().st_blocks * 512 for path in object_files(tmp_path))
        assert used < 2 * len(data)
    assert_sound(tmp_path)


def test_the_dead_of_one_segment_go_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on its own would read the index and look through all states, for every object."""
    opened: list[bytes] = []
    really = Segments._opened

    def noting(self: Segments, path: bytes, flags: int = os.O_RDONLY) -> object:
        opened.append(path)
        return really(self, path, flags)

    with store_at(tmp_path) as store:
        put_group(store, "01234567")
        monkeypatch.setattr(segments.Segments, "_opened", noting)
        store.delete_many(BUCKET, list("0123456"))
        reap(store)
        assert len(opened) <= 2  # they are dead; they are gone
        assert contents(store) == {"7": GROUP["7"]}
    assert_sound(tmp_path)
