"""Promotion, from the file's side: how its bytes get to the drive, and what becomes of one that changes meanwhile."""

from __future__ import annotations

import errno
import os
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from ais_loader.errors import DriveFull, SourceChanged, SourceRefused, SourceUnreadable, StoreReadOnly
from ais_loader.testing import seeded_bytes
from storage_node.promote import confined_path, job
from storage_node.promote.confined_path import FOLDER, root_of
from storage_node.promote.into_store import promote_path
from storage_node.promote.job import Job, Outcome
from storage_node.promote.source import SourceFile
from storage_node.promote.walk import GROUP_FILES, OpenFolder, Walk, Wanted
from storage_node.store.files import clone_or_copy as filling
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.store import Store
from tests.open_files import open_files
from tests.store.store_kit import BUCKET, assert_sound, contents, drive_of, file_of, put, store_at

LARGE = filling.FROM_BYTES + 12_345
"""Not read and written with others."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder beside the store, on the same file system."""
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def promote(store: Store, path: Path, **how: object) -> list[Outcome]:
    return list(promote_path(store, str(path), Wanted(), Job(BUCKET, **how)))  # type: ignore[arg-type]


def staging(root: Path) -> list[str]:
    return os.listdir(root / "staging")


def spoil(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1)
        file.write(b"spoilt")


# -- how bytes come


def test_a_clone_is_read_back_and_stored_as_it_is(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = seeded_bytes(LARGE)
    (source / "a").write_bytes(data)
    cloned: list[str] = []

    def clone(staged: StagedFile, source_fd: int) -> bool:
        """What FICLONE does, on a file system that has none: the source is not looked at any more."""
        os.write(staged.fd, os.pread(source_fd, LARGE, 0))
        cloned.append(staged.name)
        return True

    monkeypatch.setattr(filling, "clone", clone)
    with store_at(root) as store:
        assert promote(store, source)[0].error is None
        assert (len(cloned), contents(store)) == (1, {"a": data})
    assert_sound(root)


@pytest.mark.parametrize("refusal", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EIO])
@pytest.mark.parametrize("after_bytes", [0, 1 << 16])
def test_a_copy_in_the_kernel_that_fails_is_made_by_hand(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch, refusal: int, after_bytes: int
) -> None:
    data = seeded_bytes(LARGE)
    (source / "a").write_bytes(data)
    copy_file_range = os.copy_file_range

    def failing(source_fd: int, fd: int, count: int, offset: int) -> int:
        if offset < after_bytes:
            return copy_file_range(source_fd, fd, after_bytes, offset)
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(os, "copy_file_range", failing)
    monkeypatch.setattr(filling, "lies_on_server", lambda device: True)
    with store_at(root) as store:
        assert promote(store, source)[0].error is None
        assert contents(store) == {"a": data}
        assert drive_of(store).faults.io_errors == 0  # it was no fault of the drive
    assert_sound(root)


def test_an_interpreter_that_was_built_for_an_older_c_library_copies_by_hand(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = seeded_bytes(LARGE)
    (source / "a").write_bytes(data)
    monkeypatch.delattr(os, "copy_file_range")
    monkeypatch.setattr(filling, "lies_on_server", lambda device: True)
    with store_at(root) as store:
        assert promote(store, source)[0].error is None
        assert contents(store) == {"a": data}
    assert_sound(root)


def test_a_server_copies_what_lies_on_it(root: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = seeded_bytes(5 * LARGE)
    (source / "a").write_bytes(data)
    monkeypatch.setattr(filling, "lies_on_server", lambda device: True)
    monkeypatch.setattr(filling, "source_pieces", lambda fd: pytest.fail("it was read"))
    with store_at(root) as store:
        assert promote(store, source)[0].error is None
        assert contents(store) == {"a": data}
    assert_sound(root)


def test_a_file_system_of_this_machine_is_no_server(tmp_path: Path) -> None:
    assert not filling.lies_on_server(tmp_path.stat().st_dev)
    assert not filling.lies_on_server(os.makedev(4095, 77))


def test_a_drive_that_is_full_says_so_and_keeps_nothing(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "a").write_bytes(seeded_bytes(LARGE))

    def full(*_: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "copy_file_range", full)
    monkeypatch.setattr(filling, "lies_on_server", lambda device: True)
    with store_at(root) as store:
        assert isinstance(promote(store, source)[0].error, DriveFull)
        assert (contents(store), staging(root)) == ({}, [])


@pytest.mark.parametrize("move", [False, True])
def test_small_files_of_a_group_share_one_file_of_the_drive(root: Path, source: Path, move: bool) -> None:
    """As those of a put of many do: a file for each of them takes a block of its own, and is slower to read."""
    objects = {f"{at:03d}": seeded_bytes(2000, seed=at) for at in range(GROUP_FILES)}
    for name, data in objects.items():
        (source / name).write_bytes(data)
    with store_at(root) as store:
        assert [one.error for one in promote(store, source, move=move)] == [None] * GROUP_FILES
        assert contents(store) == objects
        assert len([path for path in (root / "objects").rglob("*") if path.is_file()]) == 1
    assert_sound(root)


def test_a_file_that_is_moved_becomes_the_objects_own(root: Path, source: Path) -> None:
    data = seeded_bytes(LARGE)
    (source / "a").write_bytes(data)
    (source / "small").write_bytes(b"small")
    inode = (source / "a").stat().st_ino
    with store_at(root) as store:
        assert [one.error for one in promote(store, source, move=True)] == [None, None]
        assert contents(store) == {"a": data, "small": b"small"}
        found = file_of(store, "a").stat()
        assert (found.st_ino, found.st_nlink, found.st_mode & 0o777) == (inode, 1, 0o600)
    assert (list(source.iterdir()), staging(root)) == ([], [])
    assert_sound(root)


def test_a_file_with_another_name_is_copied_before_it_is_given_up(root: Path, source: Path, tmp_path: Path) -> None:
    data = seeded_bytes(LARGE)
    (source / "a").write_bytes(data)
    os.link(source / "a", tmp_path / "other")
    with store_at(root) as store:
        assert promote(store, source, move=True)[0].error is None
        spoil(tmp_path / "other")
        assert contents(store) == {"a": data}
    assert list(source.iterdir()) == []


def test_a_file_that_is_open_for_writing_is_not_moved(root: Path, source: Path) -> None:
    (source / "a").write_bytes(seeded_bytes(LARGE))
    with store_at(root) as store, (source / "a").open("r+b"):
        error = promote(store, source, move=True)[0].error
        assert isinstance(error, SourceChanged) and "open for writing" in str(error)
        assert (contents(store), staging(root), (source / "a").exists()) == ({}, [], True)


def test_a_file_that_changes_after_it_was_stored_is_not_given_up(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "a").write_bytes(b"before")
    with store_at(root) as store:
        commit_many = store.commit_many

        def commit_and_change(uploads: object) -> object:
            done = commit_many(uploads)  # type: ignore[arg-type]
            (source / "a").write_bytes(b"afterwards")
            return done

        monkeypatch.setattr(store, "commit_many", commit_and_change)
        assert isinstance(promote(store, source, move=True)[0].error, SourceChanged)
        assert contents(store) == {"a": b"before"}
    assert (source / "a").read_bytes() == b"afterwards"


# -- a source that changes


@pytest.mark.parametrize("move", [False, True])
@pytest.mark.parametrize("size", [10_000, LARGE])
def test_a_file_that_changes_while_it_is_read_is_refused_and_the_others_are_stored(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch, size: int, move: bool
) -> None:
    (source / "a").write_bytes(seeded_bytes(size))
    (source / "b").write_bytes(b"b")
    spoiling(monkeypatch, source / "a", spoil)
    with store_at(root) as store:
        put(store, "a", b"older")
        errors = {one.path: one.error for one in promote(store, source, move=move)}
        assert isinstance(errors["a"], SourceChanged) and str(errors["a"]).startswith("a: ")
        assert (errors["b"], contents(store), staging(root)) == (None, {"a": b"older", "b": b"b"}, [])
    assert (source / "a").exists()
    assert_sound(root)


@pytest.mark.parametrize("size", [10_000, LARGE])
def test_a_file_that_shrinks_or_grows_is_refused(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    changes: list[Callable[[Path], None]] = [
        lambda path: os.truncate(path, size - 1),
        lambda path: os.truncate(path, size + 1),
    ]
    with store_at(root) as store:
        for change in changes:
            (source / "a").write_bytes(seeded_bytes(size))
            with monkeypatch.context() as patched:
                spoiling(patched, source / "a", change)
                assert isinstance(promote(store, source)[0].error, SourceChanged)
        assert (contents(store), staging(root)) == ({}, [])


def spoiling(monkeypatch: pytest.MonkeyPatch, path: Path, change: Callable[[Path], None]) -> None:
    """Change the file after it has been opened, and before its bytes are stored."""
    open_unless_stored = job.open_unless_stored

    def opened(*arguments: object) -> SourceFile | None:
        found = open_unless_stored(*arguments)  # type: ignore[arg-type]
        if found is not None and found.found.path == path.name:
            change(path)
        return found

    monkeypatch.setattr("storage_node.promote.into_store.open_unless_stored", opened)


def test_a_name_that_stands_for_another_file_by_then_is_not_linked(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "a").write_bytes(seeded_bytes(LARGE))

    def replace(path: Path) -> None:
        (source / "new").write_bytes(seeded_bytes(LARGE, seed=1))
        os.rename(source / "new", path)

    spoiling(monkeypatch, source / "a", replace)
    with store_at(root) as store:
        assert isinstance(promote(store, source / "a", move=True)[0].error, SourceChanged)
        assert (contents(store), staging(root)) == ({}, [])
    assert (source / "a").read_bytes() == seeded_bytes(LARGE, seed=1)


def test_a_file_that_cannot_be_read_fails_by_itself_and_not_the_drive(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "bad").write_bytes(seeded_bytes(LARGE))
    (source / "good").write_bytes(b"good")
    inode, pread = (source / "bad").stat().st_ino, os.pread

    def failing(fd: int, count: int, offset: int) -> bytes:
        if os.fstat(fd).st_ino == inode:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pread(fd, count, offset)

    monkeypatch.setattr(os, "pread", failing)
    with store_at(root) as store:
        errors = {one.path: one.error for one in promote(store, source)}
        assert isinstance(errors["bad"], SourceUnreadable)
        assert (errors["good"], drive_of(store).faults.io_errors, staging(root)) == (None, 0, [])


# -- where files are


def test_the_store_itself_is_not_promoted(tmp_path: Path, root: Path, source: Path) -> None:
    (source / "a").write_bytes(b"a")
    with store_at(root) as store:
        outcomes = promote(store, tmp_path)
        assert {one.path: type(one.error) for one in outcomes if one.error} == {"store/": SourceRefused}
        assert contents(store) == {"source/a": b"a"}


def test_a_reader_of_the_store_promotes_nothing(root: Path, source: Path) -> None:
    with store_at(root):
        pass
    with Store.open([root], mode="r") as store, pytest.raises(StoreReadOnly):
        promote(store, source)


def test_many_files_need_few_descriptors(root: Path, source: Path) -> None:
    for at in range(3 * GROUP_FILES):
        (source / f"{at}").mkdir()
        (source / f"{at}" / "f").write_bytes(b"%d" % at)
    most = 0
    with store_at(root) as store:
        for _ in promote_path(store, str(source), Wanted(), Job(BUCKET)):
            most = max(most, len(opened_below(source)))
        assert contents(store) == {f"{at}/f": b"%d" % at for at in range(3 * GROUP_FILES)}
    assert most < 100
    assert not opened_below(source)


@pytest.mark.parametrize("openat2", [True, False])
def test_no_link_leads_out_of_a_root_however_it_is_reached(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, openat2: bool
) -> None:
    if not openat2:
        monkeypatch.setattr(confined_path, "has_openat2", lambda: False)
    (tmp_path / "secret").write_bytes(b"secret")
    (source / "x").mkdir()
    (source / "x" / "file").write_bytes(b"inside")
    (source / "out").symlink_to(tmp_path)
    (source / "x" / "up").symlink_to("../../secret")
    root_fd = os.open(source, confined_path.FOLDER)
    try:
        fd = confined_path.open_beneath(root_fd, b"x/file", confined_path.FILE)
        assert os.read(fd, 10) == b"inside"
        os.close(fd)
        for way in (b"out/secret", b"x/up", b"../secret", b"x/../../secret"):
            with pytest.raises((SourceRefused, SourceUnreadable)):
                confined_path.open_beneath(root_fd, way, confined_path.FILE)
    finally:
        os.close(root_fd)


def test_a_path_lies_in_the_innermost_root_or_in_none() -> None:
    roots = ["/data", "/data/in/", "/nfs//x"]
    assert root_of(b"/data/in/a/b", roots) == (b"/data/in/", b"a/b")
    assert root_of(b"/data//y/", roots) == (b"/data", b"y")
    assert root_of(b"/nfs/x", roots) == (b"/nfs//x", b".")
    assert root_of(b"/etc", ["/"]) == (b"/", b"etc")
    for path in (b"/database", b"/data/../etc", b"data/x", b"/", b"/nfs", b"/data/a\0b"):
        with pytest.raises(SourceRefused):
            root_of(path, roots)
    with pytest.raises(SourceRefused, match="promote_roots"):
        root_of(b"/data", [])


def test_a_walk_holds_nothing_of_the_folders_that_it_has_left(source: Path) -> None:
    for at in range(2000):
        (source / str(at)).mkdir()
    (source / "0" / "file").write_bytes(b"abc")
    walk = Walk(OpenFolder(os.open(source, FOLDER)), b".", Wanted())
    tracemalloc.start()
    try:
        assert [found.path for found in walk] == ["0/file"]
        assert tracemalloc.get_traced_memory()[1] < 2000 * 100
    finally:
        tracemalloc.stop()


def test_a_walk_that_is_given_up_closes_its_folders(source: Path) -> None:
    (source / "a" / "b").mkdir(parents=True)
    for at in range(2):
        (source / "a" / "b" / str(at)).write_bytes(b"abc")
    walk = iter(Walk(OpenFolder(os.open(source, FOLDER)), b".", Wanted()))
    found = next(walk)
    assert opened_below(source)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        walk.close()
        del walk, found
    assert not opened_below(source)


def opened_below(folder: Path) -> list[str]:
    """Return the paths in a folder of which this process has descriptors."""
    return list(open_files(folder).values())
