"""An error that nobody has foreseen, at any step of a change: what the store says is what its drives have.

Each object is there whole, old or new; who looks, lists and opens the store anew finds the same.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import BucketNotFound, DriveFailed, DriveFull, ObjectNotFound
from storage_node.store import store_record
from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.commit_files import CommitFiles
from storage_node.store.drive.ended_versions import Garbage, Retention
from storage_node.store.files.object_files import RawFiles
from storage_node.store.files.segments import SegmentDraft
from storage_node.store.files.staged_file import StagedFile
from storage_node.store.fsck.fsck import check
from storage_node.store.store import Store
from storage_node.store.store_record import StoreRecord
from tests.store.store_kit import BUCKET, contents, drive_of, names, object_files, put, read, store_at

PLACES: dict[str, tuple[Any, str]] = {
    "reading the catalog": (Catalog, "get_many"),
    "writing the catalog": (Catalog, "write"),
    "noting how far the log is": (Catalog, "_advance"),
    "describing files": (CommitFiles, "prepare"),
    "writing a file": (StagedFile, "write"),
    "writing a segment": (SegmentDraft, "write"),
    "saying what a file is": (RawFiles, "set_identity"),
    "publishing": (RawFiles, "publish"),
    "ending what was there": (Retention, "end"),
    "marking what is retained": (Retention, "mark"),
    "burying": (Garbage, "defer_unlink"),
    "disowning": (RawFiles, "disown"),
    "writing the record": (store_record, "write"),
}
LARGE = os.urandom(300_000)


@contextlib.contextmanager
def failing(place: str, error: BaseException, at: int, *, afterwards: bool) -> Iterator[Callable[[], bool]]:
    """The call number `at` raises, before or after it has done its work; whether it came to that."""
    owner, name = PLACES[place]
    whole, calls = getattr(owner, name), 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not afterwards:
            raise error
        result = whole(*args, **kwargs)
        if calls == at:
            raise error
        return result

    setattr(owner, name, call)
    try:
        yield lambda: calls >= at
    finally:
        setattr(owner, name, whole)


def put_many(store: Store, data: bytes) -> None:
    uploads = [store.stage(BUCKET, name, [data + name.encode()], {}) for name in ("a", "b", "new")]
    for result in store.commit_many(uploads):
        if isinstance(result, Exception):
            raise result


CHANGES: dict[str, Callable[[Store], object]] = {
    "put": lambda store: put(store, "a", b"2" + LARGE),
    "put something new": lambda store: put(store, "new", b"2" + LARGE),
    "put several": lambda store: put_many(store, b"2"),
    "delete": lambda store: store.delete(BUCKET, "a"),
    "delete several": lambda store: store.delete_many(BUCKET, ["a", "b"]),
    "bury": lambda store: store.delete(BUCKET, "a", keep_tombstone=True),
    "snapshot": lambda store: store.snapshots.create(BUCKET, "s2"),
    "bucket": lambda store: store.create_bucket("other"),
    "delete the bucket": lambda store: store.delete_bucket("gone", force=True),
}


def seen(store: Store) -> tuple[object, ...]:
    """All that can be asked, in each of the ways to ask."""
    buckets = sorted(store.buckets())
    found = {name: contents(store, name) for name in buckets}
    for name in ("a", "b", "new"):
        try:
            assert read(store, name) == found[BUCKET].get(name)
        except ObjectNotFound:
            assert name not in names(store)
    of_snapshot = contents(store, f"{BUCKET}@s")
    with contextlib.suppress(BucketNotFound):
        return found, of_snapshot, contents(store, f"{BUCKET}@s2")
    return found, of_snapshot


@pytest.mark.slow
@pytest.mark.parametrize("afterwards", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.sampled(120)
def test_what_the_store_says_is_what_its_drive_has(tmp_path: Path, change: str, place: str, afterwards: bool) -> None:
    for at, error in ((1, MemoryError("no memory")), (2, KeyboardInterrupt())):
        root = tmp_path / f"drive-{at}"
        with store_at(root) as store:
            for name in ("a", "b"):
                put(store, name, b"1" + LARGE)
            store.create_bucket("gone")
            put(store, "x", b"x", bucket="gone")
            store.snapshots.create(BUCKET, "s")
            kept = contents(store, f"{BUCKET}@s")
            with failing(place, error, at, afterwards=afterwards) as failed, contextlib.suppress(type(error)):
                CHANGES[change](store)
            if not failed():
                return
            now = seen(store)
            assert now[1] == kept
            put(store, "later", b"later")  # nothing is held any more
            store.delete(BUCKET, "later")
            assert seen(store) == now
        with Store.open([root]) as store:
            assert seen(store) == now
            drive_of(store).reap(everything=True)
            assert not os.listdir(root / "staging") and object_files(root)
        assert not check([root], checksums=True).errors


@pytest.mark.parametrize("fails", ["full", "interrupted"])
def test_a_change_of_buckets_that_failed_takes_no_effect_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """The first of three drives had it already, and has the highest number: what is put afterwards must not go."""
    roots = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    write, wrote = store_record.write, list[Path]()

    def write_one(root: Path, record: StoreRecord) -> None:
        wrote.append(root)
        if fails == "interrupted" and len(wrote) == 2:
            raise KeyboardInterrupt
        if fails == "full" and len(wrote) in (2, 3):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(root, record)

    with store_at(*roots) as store:
        put(store, "before", b"1")
        with monkeypatch.context() as patched:
            patched.setattr(store_record, "write", write_one)
            with pytest.raises((DriveFull, KeyboardInterrupt)):
                store.delete_bucket(BUCKET, force=True)
        assert wrote[0] == roots[0]
        put(store, "after", b"2")
        found = contents(store)
    assert found == {"before": b"1", "after": b"2"}
    with Store.open(roots) as store:
        assert contents(store) == found


def test_a_drive_from_which_a_failed_change_cannot_be_taken_back_is_written_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = store_record.write, 0

    def write_and_fail(root: Path, record: StoreRecord) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            write(root, record)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with store_at(tmp_path / "drive") as store:
        put(store, "before", b"1")
        with monkeypatch.context() as patched:
            patched.setattr(store_record, "write", write_and_fail)
            with pytest.raises(DriveFailed):
                store.delete_bucket(BUCKET, force=True)
        with pytest.raises(DriveFailed, match="opened again"):
            put(store, "after", b"2")
        assert contents(store) == {"before": b"1"}


def test_all_drives_are_let_go_of_when_closing_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    store = Store.open(roots)
    with monkeypatch.context() as patched:
        patched.setattr(Garbage, "reap", lambda *_, **__: (_ for _ in ()).throw(MemoryError("no memory")))
        with pytest.raises(MemoryError):
            store.close()
    with Store.open(roots):  # no lock is held
        pass
