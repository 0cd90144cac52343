"""Several drives as one store: where objects live, and that a drive takes nothing with it but its own objects."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ais_loader.errors import DriveFailed, LoaderError, StoreFormatError
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.placement import Candidate, owner
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.drives_kit import store_with
from tests.store.store_kit import BUCKET, assert_sound, contents, names, object_files, put, read, store_at

WANTED = {f"en/{number:03}": b"%d" % number for number in range(60)}


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    roots = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    with store_with(WANTED, *roots):
        return roots


def owned(store: Store, index: int) -> list[str]:
    bucket_uuid = store.bucket(BUCKET).uuid_bytes
    return [name for name in WANTED if store.drive_set.placement.owner(bucket_uuid, name) == index]


def test_objects_are_spread_and_placed_by_the_drives_identity_alone(roots: list[Path]) -> None:
    counts = [len(object_files(root)) for root in roots]
    assert sum(counts) == len(WANTED) and min(counts) > 5
    shuffled = [roots[2], roots[0], roots[1]]
    with Store.open(shuffled) as store:
        assert contents(store) == WANTED
        assert [drive.root for drive in store.drives if drive] == roots
        candidates = [Candidate(bytes.fromhex(drive_uuid)) for drive_uuid in store.record.current.drives]
        for name in WANTED:
            assert store.locate(BUCKET, name)[0].root == roots[owner(store.bucket(BUCKET).uuid_bytes, name, candidates)]


def test_drives_may_be_mounted_elsewhere(roots: list[Path], tmp_path: Path) -> None:
    roots[1].rename(tmp_path / "moved")
    with Store.open([roots[0], tmp_path / "moved", roots[2]]) as store:
        assert contents(store) == WANTED
    assert_sound(roots[0], tmp_path / "moved", roots[2])


def test_a_list_merges_the_drives_in_name_order(roots: list[Path]) -> None:
    with Store.open(roots) as store:
        assert names(store) == sorted(WANTED)
        page = [name for name, _ in store.objects(BUCKET, "en/", "en/010", 5)]
        assert page == [f"en/0{number}" for number in range(11, 16)]


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("how", ["left out", "not mounted", "empty folder"])
def test_a_missing_drive_takes_its_own_objects_and_no_others(roots: list[Path], mode: str, how: str) -> None:
    shutil.move(roots[1], roots[1].with_name("away"))
    given = [roots[0], roots[2]] if how == "left out" else roots
    if how == "empty folder":
        roots[1].mkdir()
    with Store.open(given, mode=mode) as store:  # type: ignore[arg-type]
        lost = set(owned(store, 1))
        assert lost
        for name, data in WANTED.items():
            if name in lost:
                with pytest.raises(DriveFailed, match="not among the folders given, or not mounted"):
                    read(store, name)
            else:
                assert read(store, name) == data
        assert batch(store, list(WANTED)) == [
            (pb.UNAVAILABLE, b"") if name in lost else (pb.OK, data) for name, data in WANTED.items()
        ]
        with pytest.raises(DriveFailed):
            names(store)
        states = store.pool.states()
        assert [state.problem is None for state in states] == [True, False, True]
        if mode == "a":
            with pytest.raises(DriveFailed):
                put(store, sorted(lost)[0], b"new")
            kept = sorted(set(WANTED) - lost)[0]
            put(store, kept, WANTED[kept])
    if how == "empty folder":
        assert not list(roots[1].iterdir())
        roots[1].rmdir()
    shutil.move(roots[1].with_name("away"), roots[1])
    with Store.open(roots) as store:
        assert contents(store) == WANTED
    assert_sound(*roots)


def test_a_drive_whose_catalog_is_damaged_takes_its_own_objects_and_says_what_to_do(roots: list[Path]) -> None:
    (roots[1] / "catalog" / "CURRENT").write_bytes(b"nonsense")
    with Store.open(roots) as store:
        lost = owned(store, 1)
        with pytest.raises(DriveFailed, match="--rebuild"):
            read(store, lost[0])
        assert [status for status, _ in batch(store, lost)] == [pb.UNAVAILABLE] * len(lost)
        kept = sorted(set(WANTED) - set(lost))
        assert [data for _, data in batch(store, kept)] == [WANTED[name] for name in kept]


def test_a_drive_of_another_store_is_refused(roots: list[Path], tmp_path: Path) -> None:
    with store_at(tmp_path / "other"):
        pass
    with pytest.raises(StoreFormatError, match="belong to 2 different stores"):
        Store.open([*roots, tmp_path / "other"])


def test_a_folder_more_than_the_store_has_drives_is_refused(roots: list[Path], tmp_path: Path) -> None:
    with pytest.raises(StoreFormatError, match="has its 3 drives already"):
        Store.open([*roots, tmp_path / "new"])
    assert not (tmp_path / "new").exists()


def test_a_copy_of_a_drive_is_not_a_second_drive(roots: list[Path], tmp_path: Path) -> None:
    shutil.copytree(roots[0], tmp_path / "copy")
    with pytest.raises(StoreFormatError, match="copies of the same drive"):
        Store.open([roots[0], tmp_path / "copy"])


def test_a_group_over_two_drives_fails_only_where_the_drive_does(roots: list[Path]) -> None:
    with Store.open(roots) as store:
        uploads = [store.begin_put(BUCKET, name) for name in WANTED]
        broken = store.drive_set.at(0)
        os.close(broken.files.staging_fd)
        broken.files.staging_fd = -1
        results = store.commit_many(uploads)
        for name, result in zip(WANTED, results, strict=True):
            on_broken = store.locate(BUCKET, name)[0] is broken
            assert isinstance(result, LoaderError) == on_broken, name
            assert read(store, name) == (WANTED[name] if on_broken else b"")
    with Store.open(roots):
        pass  # removes what the broken drive could not
    assert_sound(*roots)
