"""Opening: who may, what is created, what is refused, and that a half-made or half-lost store is never mistaken."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ais_loader.errors import DriveFailed, InvalidRequest, LoaderError, StoreFormatError, StoreLocked, StoreNotFound
from storage_node.store import store_record as records
from storage_node.store.drive.identity import FILE_NAME
from storage_node.store.fsck.fsck import check, rebuild
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, kinds, put, read, store_at
from tests.table import table

HOLDER = """
import sys
from storage_node.store.store import Store
with Store.open(sys.argv[1:]) as store:
    store.create_bucket("held", exist_ok=True)
    print("open", flush=True)
    sys.stdin.read()
"""


def test_a_new_store_is_made_with_its_parent_folders_and_found_again(tmp_path: Path) -> None:
    root = tmp_path / "some" / "where" / "drive"
    with store_at(root) as store:
        put(store, "a", b"1")
        store_uuid = store.store_uuid
    with Store.open([os.path.relpath(root)]) as store:
        assert (store.store_uuid, contents(store)) == (store_uuid, {"a": b"1"})
    assert_sound(root)


def test_reading_creates_nothing(tmp_path: Path) -> None:
    for folder in (tmp_path / "missing", tmp_path):
        with pytest.raises(StoreNotFound, match=f'no store at {folder}; look at the path, or mode="a" creates one'):
            Store.open([folder], mode="r")
    assert not list(tmp_path.iterdir())


def test_a_store_that_is_made_is_logged_and_one_that_is_there_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING"):  # what is shown where nobody has set up logging
        Store.open([tmp_path / "1", tmp_path / "2"]).close()
        assert caplog.messages == [f"made a new store at {tmp_path}/1, {tmp_path}/2"]
        Store.open([tmp_path / "1", tmp_path / "2"]).close()
    assert len(caplog.messages) == 1


@table("paths", [[], ["a", "a"], ["a", "./a"], ["a/../b", "b"]])
def test_paths_that_cannot_be_the_drives_of_a_store_are_refused(tmp_path: Path, paths: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="different drive folders"):
        Store.open([tmp_path / path for path in paths])


@pytest.mark.parametrize("options", [{"mode": "w"}, {"durability": "none"}])
def test_options_that_do_not_exist_are_refused(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        Store.open([tmp_path], **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_folder_with_foreign_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(StoreFormatError, match=r"not a store, and not empty either \(thesis.tex\)"):
        Store.open([tmp_path])
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreFormatError, match="not a folder"):
        Store.open([tmp_path / "file"])


def test_opening_twice_for_writing_in_one_process_names_this_process(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        with pytest.raises(StoreLocked, match="open for writing by this process"):
            Store.open([tmp_path / "drive"])
        put(store, "a", b"still mine")
    with Store.open([tmp_path / "drive"]) as again:
        assert contents(again) == {"a": b"still mine"}


@pytest.mark.slow
def test_opening_beside_a_writer_in_another_process_names_that_process(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "drive")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == "open\n"
        for _ in range(2):  # asking who it is must not take the lock away
            with pytest.raises(StoreLocked, match=f"open for writing by process {holder.pid};"):
                Store.open([tmp_path / "drive"])
        assert check([tmp_path / "drive"]).drives[0].held_by == f"process {holder.pid}"
        with pytest.raises(StoreLocked):
            Store.open([tmp_path / "drive"])
        with Store.open([tmp_path / "drive"], mode="r") as reader:
            assert list(reader.buckets()) == ["held"]
        holder.communicate(timeout=180)
    with Store.open([tmp_path / "drive"]) as store:
        assert list(store.buckets()) == ["held"]


def test_a_path_with_the_word_lock_in_it_is_not_mistaken_for_a_held_lock(tmp_path: Path) -> None:
    root = tmp_path / "block-lock"
    with store_at(root):
        pass
    (root / "catalog" / "CURRENT").write_bytes(b"nonsense")
    with pytest.raises(StoreFormatError, match="--rebuild"):
        Store.open([root])


def test_of_many_that_create_one_store_at_once_all_find_the_same_or_are_told_it_is_held(tmp_path: Path) -> None:
    found: list[str] = []
    refused: list[LoaderError] = []
    start = threading.Barrier(8)

    def create() -> None:
        start.wait(timeout=180)
        try:
            with Store.open([tmp_path / "a", tmp_path / "b"]) as store:
                found.append(store.store_uuid)
        except LoaderError as error:
            refused.append(error)

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=180)
    assert len(found) + len(refused) == 8 and len(set(found)) == 1
    assert all(isinstance(error, StoreLocked) for error in refused), refused
    assert_sound(tmp_path / "a", tmp_path / "b")


def test_a_folder_that_another_opener_makes_first_is_the_one_to_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, other = tmp_path / "a", tmp_path / "b"
    made.mkdir()
    other.mkdir()
    unseen, is_dir = [made], Path.is_dir
    monkeypatch.setattr(
        Path, "is_dir", lambda path: False if path in unseen and unseen.pop() else is_dir(path)
    )  # it was looked for just before it was made
    fd = os.open(made, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(StoreLocked, match=f"{made} is just being opened"):
            Store.open([other, made])
    finally:
        os.close(fd)
    assert not any(other.iterdir())


def test_a_creation_that_was_interrupted_is_done_again(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots, bucket=None):
        pass
    shutil.rmtree(roots[1])
    for name in ("record.json", "catalog", "objects", "staging"):
        path = roots[0] / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (roots[0] / "record.json.new").write_text("half")
    with pytest.raises(StoreNotFound):
        Store.open(roots, mode="r")
    with store_at(*roots) as store:
        put(store, "a", b"1")
        assert contents(store) == {"a": b"1"}


def test_a_drive_in_use_that_lost_its_identity_is_not_replaced_by_an_empty_store(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1")
    record = (tmp_path / "drive" / "record.json").read_bytes()
    (tmp_path / "drive" / FILE_NAME).unlink()
    with pytest.raises(StoreFormatError, match=r"drive.json is missing from a drive in use; .*--rebuild"):
        Store.open([tmp_path / "drive"])
    assert (tmp_path / "drive" / "record.json").read_bytes() == record


@pytest.mark.parametrize("removed", ["objects", "catalog objects/*", "catalog objects", "catalog objects staging"])
def test_a_drive_in_use_that_was_emptied_is_not_used_as_an_empty_one(tmp_path: Path, removed: str) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    objects = {f"o{at}": bytes([at]) * 1000 for at in range(20)}
    with store_at(*roots) as store:
        for name, data in objects.items():
            put(store, name, data)
        on_b = {name for name in objects if drive_of(store, name).root == roots[1]}
    for pattern in removed.split():
        for path in roots[1].glob(pattern):
            shutil.rmtree(path)
    before = sorted(path.name for path in roots[1].iterdir())
    for mode in ("r", "a", "a"):
        with Store.open(roots, mode=mode) as store:
            assert store.drives[1] is None and "is missing" in str(store.pool.states()[1].problem)
            for name, data in objects.items():
                if name not in on_b:
                    assert read(store, name) == data
            with pytest.raises(DriveFailed, match=r"is missing.*--rebuild"):
                read(store, min(on_b))
    assert sorted(path.name for path in roots[1].iterdir()) == before
    assert "drive-unusable" in kinds(check(roots))
    rebuild(roots)
    with Store.open(roots) as store:
        assert contents(store) == {name: data for name, data in objects.items() if name not in on_b}
        put(store, min(on_b), b"again")
        assert read(store, min(on_b)) == b"again"
    assert_sound(*roots)


@table("data", [b"", b"[]", b"{}", b'{"format": 2}', b"\xff", b'{"format": 2, "drive_uuid": "a", "store_uuid": "b"}'])
def test_a_damaged_identity_is_reported(tmp_path: Path, data: bytes) -> None:
    with store_at(tmp_path / "drive"):
        pass
    (tmp_path / "drive" / FILE_NAME).write_bytes(data)
    with pytest.raises(StoreFormatError, match="not a drive identity"):
        Store.open([tmp_path / "drive"])


@table(
    ("name", "other", "ours"),
    [(FILE_NAME, 1, 2), (FILE_NAME, 3, 2), (records.FILE_NAME, 11, 12), (records.FILE_NAME, 13, 12)],
)
def test_a_drive_of_another_format_is_refused_by_its_number_and_left_alone(
    tmp_path: Path, name: str, other: int, ours: int
) -> None:
    with store_at(tmp_path / "drive"):
        pass
    path = tmp_path / "drive" / name
    first, *changes = path.read_text().splitlines(keepends=True)
    path.write_text("".join([json.dumps({**json.loads(first), "format": other}) + "\n", *changes]))
    before = path.read_bytes()
    for mode in ("r", "a"):
        with pytest.raises(StoreFormatError, match=f"format {other}; this version reads format {ours}"):
            Store.open([tmp_path / "drive"], mode=mode)
    assert path.read_bytes() == before


@pytest.mark.slow
@table("damage", [b"", b"{", b'{"format": 8, "checksum": 1, "record": "{}"}', None])
def test_one_damaged_record_of_two_is_ignored_and_written_anew(tmp_path: Path, damage: bytes | None) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store:
        put(store, "a", b"1")
    whole = records.read(roots[0])
    (roots[0] / "record.json").write_bytes(damage) if damage is not None else (roots[0] / "record.json").unlink()
    with Store.open(roots, mode="r") as store:
        assert contents(store) == {"a": b"1"}
    with Store.open(roots) as store:
        assert contents(store) == {"a": b"1"}
    assert records.read(roots[0]) == whole


def test_a_store_without_any_readable_record_says_how_to_get_one(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive"):
        pass
    (tmp_path / "drive" / "record.json").write_bytes(b"{}")
    for mode in ("a", "r"):
        with pytest.raises(StoreFormatError, match=r"no drive has a readable record .*--rebuild"):
            Store.open([tmp_path / "drive"], mode=mode)


def test_opening_writes_no_reader_folders_that_outlive_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"1")
        reader = Store.open([tmp_path / "drive"], mode="r")
        assert contents(reader) == {"a": b"1"}
        assert not list(scratch.iterdir())
        reader.close()


@pytest.mark.slow
def test_a_store_that_fails_to_open_holds_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots):
        pass

    def fail(self: Store) -> None:
        raise LoaderError("injected")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "_settle", fail)
        with pytest.raises(LoaderError, match="injected"):
            Store.open(roots)
    with store_at(*roots) as store:
        assert BUCKET in store.buckets()
