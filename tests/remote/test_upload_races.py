"""Changes of a store that are told of late, and uploads that end in an unforeseen way: no write is forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ais_loader.wire.remote import Remote
from ais_loader.wire.reserved import REMOTE_ETAG, REMOTE_PENDING
from storage_node.context.remote_buckets import RemoteBucket
from storage_node.remote.write_back.write_back import WriteBack
from storage_node.settings.declarations import RemoteSettings
from storage_node.store.format import CatalogEntry, encode_metadata
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, put, store_at

MARK = {REMOTE_PENDING: '["",false]'}
COPY = {REMOTE_ETAG: '"e"'}
LONG_S = 180.0


def within(scenario: Awaitable[None]) -> None:
    async def run() -> None:
        async with asyncio.timeout(LONG_S):
            await scenario

    asyncio.run(run())


class Buckets:
    """The remote buckets of a store: one, or none as long as the map is not known."""

    def __init__(self, *buckets: RemoteBucket) -> None:
        self._buckets = list(buckets)

    def all(self) -> list[RemoteBucket]:
        return self._buckets


def write_back(store: Store, *buckets: RemoteBucket) -> WriteBack:
    owners = SimpleNamespace(uploader_of=lambda *_: "", are_several=lambda _: False)
    return WriteBack(
        store,
        buckets=cast(Any, Buckets(*buckets)),
        backends=cast(Any, SimpleNamespace(of=lambda _: None)),
        read=asyncio.to_thread,
        settings=RemoteSettings(),
        owners=cast(Any, owners),
        note_changes=cast(Any, None),
    )


def remote_bucket(store: Store, **settings: Any) -> RemoteBucket:
    return RemoteBucket(BUCKET, store.bucket(BUCKET).uuid_bytes, Remote("s3://bucket", write="back", **settings))


def told_late(
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    late: Callable[[CatalogEntry | None], bool],
    change: Callable[[], Any],
) -> threading.Thread:
    """Make a change in a thread, which has made it when this returns, and tells of it when its `may_tell` is set."""
    tell, is_made, may_tell = store._changes.tell, threading.Event(), threading.Event()

    def wait_or_tell(uuid: bytes, name: str, left: CatalogEntry | None) -> None:
        if threading.current_thread() is thread and late(left):
            is_made.set()
            assert may_tell.wait(LONG_S)
        tell(uuid, name, left)

    monkeypatch.setattr(store._changes, "tell", wait_or_tell)
    thread = threading.Thread(target=change)
    thread.may_tell = may_tell  # type: ignore[attr-defined]
    thread.start()
    assert is_made.wait(LONG_S)
    return thread


def settled(store: Store, uuid: bytes, entry: CatalogEntry) -> Callable[[], object]:
    return lambda: store.uploads.settle(uuid, "a", entry.version, encode_metadata(COPY))


def evicted(store: Store, uuid: bytes, entry: CatalogEntry) -> Callable[[], object]:
    store.uploads.settle(uuid, "a", entry.version, encode_metadata(COPY))
    return lambda: store.delete_many(BUCKET, ["a"], copies_only=True)


@pytest.mark.parametrize("change", [settled, evicted])
def test_a_write_stays_pending_when_the_end_of_the_one_before_is_told_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[..., Callable[[], object]]
) -> None:
    """`flush` would return, and the bucket could be deleted, though nobody had uploaded the write."""

    async def scenario(store: Store) -> None:
        back = write_back(store)
        try:
            uuid, first = store.bucket(BUCKET).uuid_bytes, put(store, "a", b"old", metadata=MARK)
            late = told_late(store, monkeypatch, lambda left: True, change(store, uuid, first))
            put(store, "a", b"newer", metadata=MARK)
            late.may_tell.set()  # type: ignore[attr-defined]
            await asyncio.to_thread(late.join)
            assert [(row.count, row.bytes) for row in back.rows(uuid)] == [(1, 5)]
            assert store.uploads.has_pending
        finally:
            await back.close()

    with store_at(tmp_path) as store:
        within(scenario(store))


def test_an_upload_that_fails_in_an_unforeseen_way_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: Store) -> None:
        back, tries = write_back(store, remote_bucket(store)), list[str]()
        uuid = store.bucket(BUCKET).uuid_bytes

        async def upload(bucket: RemoteBucket, backend: object, name: str) -> None:
            tries.append(name)
            if len(tries) == 1:
                raise ValueError("an answer that nobody has foreseen")
            await asyncio.to_thread(store.uploads.settle, uuid, name, entry.version, encode_metadata(COPY))

        monkeypatch.setattr(back._uploader, "upload", upload)
        try:
            entry = put(store, "a", b"old", metadata=MARK)
            await back.flush(None, "", LONG_S)
            assert tries == ["a", "a"] and not store.uploads.has_pending
        finally:
            await back.close()

    with store_at(tmp_path) as store:
        within(scenario(store))
