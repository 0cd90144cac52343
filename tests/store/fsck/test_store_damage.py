"""What the drive loses or changes behind the store's back: CORRUPT or unavailable in its place, all else unharmed."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ais_loader.errors import CorruptObject, DriveFailed, LoaderError, StoreFormatError, StoreReadOnly
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.store.format import BLOCK_BYTES
from storage_node.store.fsck.fsck import check
from storage_node.store.read.object_reader import open_object
from storage_node.store.store import Store
from tests.store.batch_kit import batch
from tests.store.store_kit import BUCKET, contents, drive_of, file_of, flip_a_byte, kinds, names, put, read, store_at
from tests.table import table

DATA = {"small": b"s" * 1000, "large": os.urandom(5 * BLOCK_BYTES + 9), "empty": b"", "other": b"o" * 300}


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def flip_at_the_end(path: Path) -> None:
    flip_a_byte(path, path.stat().st_size - 1)


def become_a_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a flipped byte": (flip_a_byte, "corrupt"),
    "a flipped last byte": (flip_at_the_end, "corrupt"),
    "a lost last byte": (cut, "wrong-size"),
    "nothing left": (cut_to_nothing, "wrong-size"),
    "removed": (Path.unlink, "missing-file"),
}


@contextmanager
def filled(root: Path) -> Iterator[Store]:
    with store_at(root) as opened:
        for name, data in DATA.items():
            put(opened, name, data)
        yield opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with filled(tmp_path / "drive") as opened:
        yield opened


@pytest.mark.slow
@table("damage", DAMAGES)
@table("name", ["small", "large"])
@table("mode", ["a", "r"])
def test_damage_is_corrupt_in_its_place_and_the_others_are_served(
    tmp_path: Path, damage: str, name: str, mode: str
) -> None:
    spoil, kind = DAMAGES[damage]
    root = tmp_path / "drive"
    with filled(root) as store:
        spoil(file_of(store, name))
        reader = store if mode == "a" else Store.open([root], mode="r")
        with pytest.raises(CorruptObject):
            read(reader, name)
        for other in DATA.keys() - {name}:
            assert read(reader, other) == DATA[other]
        assert batch(reader, list(DATA)) == [
            (pb.CORRUPT, b"") if other == name else (pb.OK, data) for other, data in DATA.items()
        ]
        report = check([root], checksums=True)
        assert [(finding.kind, finding.name) for finding in report.errors] == [(kind, name)]
        assert report.errors[0].bucket == BUCKET
        put(store, name, b"mended")
        assert read(store, name) == b"mended"
        assert not check([root], checksums=True).errors
        reader.close()


def test_a_range_that_is_verified_meets_the_damage_in_its_blocks_and_only_there(store: Store) -> None:
    data = DATA["large"]
    flip_a_byte(file_of(store, "large"), 2 * BLOCK_BYTES + 5)
    assert read(store, "large", start=0, length=2 * BLOCK_BYTES, verify=True) == data[: 2 * BLOCK_BYTES]
    assert read(store, "large", start=3 * BLOCK_BYTES, verify=True) == data[3 * BLOCK_BYTES :]
    with pytest.raises(CorruptObject):
        read(store, "large", start=3 * BLOCK_BYTES - 1, length=1, verify=True)
    reader = open_object(store, BUCKET, "large")
    with pytest.raises(CorruptObject):
        list(reader)
    assert list(reader) == []


def test_nothing_that_is_read_whole_is_handed_on_before_it_is_verified(store: Store) -> None:
    flip_at_the_end(file_of(store, "large"))
    got = b""
    with pytest.raises(CorruptObject):
        for chunk in open_object(store, BUCKET, "large"):
            got += chunk
    assert DATA["large"].startswith(got) and len(got) == 4 * BLOCK_BYTES


def test_links_in_the_place_of_files_are_not_followed(store: Store) -> None:
    become_a_link(file_of(store, "small"))
    with pytest.raises(DriveFailed):
        read(store, "small")
    assert batch(store, ["small", "other"]) == [(pb.UNAVAILABLE, b""), (pb.OK, DATA["other"])]


# -- the drive as a whole


def test_a_folder_that_vanishes_under_an_open_store_is_unavailable_until_it_is_back(
    store: Store, tmp_path: Path
) -> None:
    with Store.open([tmp_path / "drive"], mode="r") as reader:
        assert read(reader, "small") == DATA["small"]
        shutil.move(tmp_path / "drive" / "objects", tmp_path / "aside")
        shutil.rmtree(tmp_path / "aside")
        for target in (store, reader):
            with pytest.raises(DriveFailed, match="drive"):
                read(target, "small")
            assert batch(target, ["small", "other"]) == [(pb.UNAVAILABLE, b"")] * 2
        with pytest.raises(DriveFailed):
            put(store, "new", b"x")


def test_a_whole_drive_that_vanishes_fails_as_a_drive_in_every_operation(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_at(*roots) as store, Store.open(roots, mode="r") as reader:
        for number in range(20):
            put(store, f"{number}", b"x")
        gone = [f"{number}" for number in range(20) if drive_of(store, f"{number}").root == roots[1]]
        kept = sorted({f"{number}" for number in range(20)} - set(gone))
        assert gone and kept
        shutil.rmtree(roots[1])
        for target in (store, reader):
            for name in gone:
                with pytest.raises(DriveFailed):
                    read(target, name)
            assert [read(target, name) for name in kept] == [b"x"] * len(kept)
            assert batch(target, [*gone, *kept]) == [(pb.UNAVAILABLE, b"")] * len(gone) + [(pb.OK, b"x")] * len(kept)
        with pytest.raises(DriveFailed):
            put(store, gone[0], b"new")
        with pytest.raises(LoaderError):
            store.create_bucket("new")
        put(store, kept[0], b"new")
        assert [state.problem is None for state in store.pool.states()] == [True, False]


def test_a_drive_that_may_only_be_read_serves_readers(tmp_path: Path) -> None:
    """As root on a read-only mount; as another user behind a permission, whoever runs this."""
    with store_at(tmp_path / "drive") as store:
        for name, data in DATA.items():
            put(store, name, data)
    with read_only(tmp_path) as root:
        with Store.open([root], mode="r") as reader:
            assert contents(reader) == DATA
            assert batch(reader, ["small"]) == [(pb.OK, DATA["small"])]
        with pytest.raises((StoreReadOnly, DriveFailed), match=r"read-only|Permission denied"):
            Store.open([root])
        assert check([root], checksums=True).healthy


class read_only:
    """The store under `folder`, at a place where it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self._drive = folder / "drive"
        self._mount = folder / "read-only"
        self._mounted = False

    def __enter__(self) -> Path:
        libc = ctypes.CDLL(None, use_errno=True)
        source, target = os.fsencode(self._drive), os.fsencode(self._mount)
        bind, remount, read_only_flag = 4096, 32, 1
        self._mount.mkdir()
        if libc.mount(source, target, None, bind, None) == 0:
            self._mounted = True
            assert libc.mount(None, target, None, bind | remount | read_only_flag, None) == 0
            return self._mount
        for path in (self._drive, *self._drive.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o555 if path.is_dir() else 0o444)
        return self._drive

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            assert ctypes.CDLL(None).umount2(os.fsencode(self._mount), 2) == 0
            return
        for path in (self._drive, *self._drive.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)


# -- the catalog


def newest(root: Path, pattern: str) -> Path:
    return max((root / "catalog").glob(pattern), key=lambda path: path.name)


def overwrite_middle(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(b"\xaa" * max(64, size // 3))


CATALOG_DAMAGES: dict[str, Callable[[Path], object]] = {
    "no catalog": lambda root: shutil.rmtree(root / "catalog"),
    "no CURRENT": lambda root: (root / "catalog" / "CURRENT").unlink(),
    "bad CURRENT": lambda root: (root / "catalog" / "CURRENT").write_bytes(b"MANIFEST-999999\n"),
    "no MANIFEST": lambda root: newest(root, "MANIFEST-*").unlink(),
    "bad MANIFEST": lambda root: newest(root, "MANIFEST-*").write_bytes(b"\xaa" * 500),
    "no table": lambda root: newest(root, "*.sst").unlink(),
    "cut table": lambda root: os.truncate(newest(root, "*.sst"), 100),
}


@pytest.mark.parametrize("mode", ["a", "r"])
@pytest.mark.parametrize("damage", CATALOG_DAMAGES)
@pytest.mark.sampled(7)
def test_a_catalog_that_cannot_be_opened_says_how_to_make_it_anew(tmp_path: Path, damage: str, mode: str) -> None:
    with store_at(tmp_path / "drive") as store:
        for name, data in DATA.items():
            put(store, name, data)
    CATALOG_DAMAGES[damage](tmp_path / "drive")
    with pytest.raises(StoreFormatError, match="ais-loader doctor --rebuild"):
        Store.open([tmp_path / "drive"], mode=mode)  # type: ignore[arg-type]
    report = check([tmp_path / "drive"])
    assert kinds(report) == ["drive-unusable"] and "--rebuild" in report.errors[0].message


@pytest.mark.slow
def test_damage_inside_a_table_is_an_error_and_never_a_shorter_list(tmp_path: Path) -> None:
    with store_at(tmp_path / "drive") as store:
        for number in range(3000):
            put(store, f"{number:04}", b"")
    (tmp_path / "drive" / "catalog" / "locations").unlink()  # with it, objects are found all the same
    overwrite_middle(newest(tmp_path / "drive", "*.sst"))
    with Store.open([tmp_path / "drive"], mode="r") as store:
        with pytest.raises(StoreFormatError, match=r"damaged catalog .*--rebuild"):
            names(store)
        with pytest.raises(StoreFormatError, match=r"damaged catalog .*--rebuild"):
            for number in range(3000):
                read(store, f"{number:04}")
        answers = batch(store, [f"{number:04}" for number in range(3000)])
        assert {status for status, _ in answers} == {pb.UNAVAILABLE}
    assert kinds(check([tmp_path / "drive"])) == ["drive-unusable"]


@pytest.mark.slow
@pytest.mark.parametrize("garbage", [bytes(200), b"\xff" * 200, *map(os.urandom, (2, 200, 5000))], ids=len)
def test_a_log_that_ends_in_garbage_after_a_crash_gives_what_was_written_before(tmp_path: Path, garbage: bytes) -> None:
    code = f"""
import os
from pathlib import Path
from tests.store.store_kit import put, store_at
opened = store_at(Path({str(tmp_path / "drive")!r}))
store = opened.__enter__()
for number in range(50):
    put(store, str(number), b"%d" % number)
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
    with newest(tmp_path / "drive", "*.log").open("ab") as file:
        file.write(garbage)
    with Store.open([tmp_path / "drive"]) as store:
        assert contents(store) == {str(number): b"%d" % number for number in range(50)}
