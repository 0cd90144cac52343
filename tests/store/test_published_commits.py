"""Commits that a writer publishes: a reader that follows them is never behind what anybody can have seen."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from ais_loader.errors import Unsupported
from storage_node.store.drive import drive as drives
from storage_node.store.drive.published_commits import FILE_NAME, FollowedCommits, PublishedCommits
from storage_node.store.store import Store
from tests.table import table

TIMEOUT_S = 180.0


@pytest.fixture(autouse=True)
def follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drives, "FOLLOW_INTERVAL_S", 0.0)


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Store, Store]]:
    """A writer and a reader of one store, the reader as blind to the writer as one in another process."""
    with ExitStack() as held:
        writer = held.enter_context(Store.open([tmp_path]))
        writer.create_bucket("b")
        writer.allow_readers(True)
        reader = held.enter_context(Store.open([tmp_path], mode="r"))
        for drive in reader.drive_set.live():
            monkeypatch.setattr(type(drive), "_follow", lambda self: None)
            assert not drive.writable
        yield writer, reader


def put(store: Store, data: bytes, name: str = "a") -> str:
    return str(store.stage("b", name, [data], {}).commit().version)


def both_with_old(stores: tuple[Store, Store]) -> tuple[Store, Store]:
    """A writer and a reader that has looked up what is there."""
    writer, reader = stores
    put(writer, b"old")
    assert reader.follow()
    reader.head("b", "a")
    return stores


def test_a_commit_is_followed_from_before_it_can_be_seen(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = both_with_old(stores)
    catalog = writer.drive_set.live()[0].catalog
    advance, seen = catalog._advance, list[str]()

    def during(synced: int) -> None:  # the write has happened, and the writer has not returned from it
        assert writer.drive_set.live()[0].newest(writer.bucket("b").uuid_bytes, ["a"])[0] is not None
        assert reader.follow()
        seen.append(str(reader.head("b", "a").version))
        advance(synced)

    monkeypatch.setattr(catalog, "_advance", during)
    version = put(writer, b"new")
    assert seen == [version]


def test_each_change_is_followed(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    for number in range(20):
        version = put(writer, b"%d" % number)
        assert reader.follow()
        assert str(reader.head("b", "a").version) == version
    writer.delete("b", "a")
    writer.create_bucket("later")
    writer.delete_bucket("b", force=True)
    assert reader.follow()
    assert list(reader.drive_set.live()[0].scan(b"", "", "", again=True)) == []
    assert (reader.find_bucket("b"), reader.find_bucket("later") is not None) == (None, True)


def test_a_writer_killed_during_a_commit_keeps_readers_catching_up(stores: tuple[Store, Store]) -> None:
    writer, reader = stores
    published = writer.drive_set.live()[0].catalog.published
    assert published is not None
    published.begin()  # and never ends
    for number in range(3):
        version = put(writer, b"%d" % number)
        assert reader.follow()
        assert str(reader.head("b", "a").version) == version


def test_readers_are_refused_and_allowed(stores: tuple[Store, Store], tmp_path: Path) -> None:
    writer, reader = stores
    assert reader.follow()
    writer.allow_readers(False)
    with pytest.raises(Unsupported, match="lets nobody read beside it"):
        reader.follow()
    writer.allow_readers(True)
    assert reader.follow()
    writer.close()
    assert reader.follow()  # nothing changes any more
    with Store.open([tmp_path]), pytest.raises(Unsupported, match="lets nobody read beside it"):
        reader.follow()


def _other_host(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.store.drive.published_commits.host_id", lambda: "another host")


def _moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / FILE_NAME).rename(folder / "moved")


def _other_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid() + 1
    monkeypatch.setattr("ais_loader.wire.node_folder.os.geteuid", lambda: user)


def _short(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / FILE_NAME).unlink()
    (folder / FILE_NAME).touch()


@table("change", [_other_host, _moved, _other_user, _short])
def test_others_ask_the_writer(change: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        with Store.open([tmp_path / change.__name__]) as writer:
            writer.allow_readers(True)
            change(tmp_path / change.__name__ / "catalog", patch)
            with Store.open([tmp_path / change.__name__], mode="r") as reader, pytest.raises(Unsupported):
                reader.follow()
        patch.undo()
        Store.open([tmp_path / change.__name__]).close()  # nothing of it keeps a writer from opening


def test_numbers_go_on_from_writer_to_writer(tmp_path: Path) -> None:
    seen = []
    for _ in range(3):
        published = PublishedCommits(tmp_path)
        published.begin()
        published.allow()
        followed = FollowedCommits(tmp_path)
        begun, ended = followed.numbers()
        seen.append(begun)
        assert ended == begun - 1
    assert seen == sorted(set(seen))


def test_a_reader_that_finds_nothing_new_waits_for_one_that_forgets(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = both_with_old(stores)
    version = put(writer, b"new")
    cache = reader.drive_set.live()[0]._cache
    forget, entered, may_go_on = cache.forget, threading.Event(), threading.Event()

    def slow_forget() -> None:
        entered.set()
        assert may_go_on.wait(TIMEOUT_S)
        forget()

    monkeypatch.setattr(cache, "forget", slow_forget)

    def read() -> str:
        assert reader.follow()
        return str(reader.head("b", "a").version)

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read)
        assert entered.wait(TIMEOUT_S)
        second = threads.submit(read)
        threading.Timer(0.05, may_go_on.set).start()
        assert (first.result(TIMEOUT_S), second.result(TIMEOUT_S)) == (version, version)
