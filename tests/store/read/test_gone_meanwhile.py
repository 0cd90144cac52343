"""Look-ups in the middle of a change: what they find is what was there before it or after it, and both agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ais_loader import connect, errors
from ais_loader.values.entry import Status
from storage_node.store.drive.catalog import Catalog
from storage_node.store.drive.drive import Drive
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, names, put, read, store_at

OBJECTS = {f"{at:02}": b"first %d" % at for at in range(12)}


@pytest.fixture
def after_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Have something looked at between the catalog's write and its return."""

    def use(look: Callable[[], None]) -> None:
        write = Catalog.write

        def and_look(catalog: Catalog, *args: Any, **more: Any) -> None:
            write(catalog, *args, **more)
            look()

        monkeypatch.setattr(Catalog, "write", and_look)

    return use


@pytest.mark.parametrize("change", ["put", "delete"])
def test_what_a_listing_shows_a_look_up_finds_while_the_commit_is_under_way(
    tmp_path: Path, after_commit: Callable[[Callable[[], None]], None], change: str
) -> None:
    with store_at(tmp_path / "drive") as store:
        put(store, "a", b"before")
        assert read(store, "a") == b"before"  # and is known from now on
        seen: list[tuple[object, object]] = []

        def look() -> None:
            listed = {name: record.version for name, record in store.objects(BUCKET)}
            try:
                found = store.head(BUCKET, "a").version
            except errors.ObjectNotFound:
                found = None
            seen.append((listed.get("a"), found))

        after_commit(look)
        version = None
        if change == "put":
            version = put(store, "a", b"after").version
        else:
            store.delete(BUCKET, "a")
        assert seen and all(listed == found for listed, found in seen), seen
        assert seen[-1] == (version, version)


def _without_its_snapshot(monkeypatch: pytest.MonkeyPatch, method: str, store: Store) -> None:
    """The snapshot goes, with what it alone has seen, when a reader has found it and before it looks at a drive."""
    original = getattr(Drive, method)

    def meanwhile(drive: Drive, *args: Any) -> Any:
        monkeypatch.setattr(Drive, method, original)
        store.snapshots.delete(BUCKET, "s")
        return original(drive, *args)

    monkeypatch.setattr(Drive, method, meanwhile)


@pytest.mark.parametrize("mode", ["a", "r"])
def test_a_listing_whose_snapshot_goes_meanwhile_is_not_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    with store_at(tmp_path / "drive") as store, connect(tmp_path / "drive", mode="r") as beside:
        _fill(store)
        bucket = store if mode == "a" else beside.bucket(f"{BUCKET}@s")
        _without_its_snapshot(monkeypatch, "scan_at", store)
        with pytest.raises(errors.SnapshotNotFound):
            if isinstance(bucket, Store):
                names(bucket, bucket=f"{BUCKET}@s")
            else:
                list(bucket.objects(page_size=3))


@pytest.mark.parametrize("how", ["get", "batch"])
def test_what_is_read_of_a_snapshot_that_goes_meanwhile_says_that_it_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    with store_at(tmp_path / "drive") as store, connect(tmp_path / "drive", mode="r") as beside:
        _fill(store)
        bucket = beside.bucket(f"{BUCKET}@s")
        _without_its_snapshot(monkeypatch, "lookup_at", store)
        if how == "get":
            with pytest.raises(errors.SnapshotNotFound):
                bucket.get("00")
        else:
            items = list(bucket.get_batch(list(OBJECTS), on_error="placeholder"))
            assert {item.status for item in items} == {Status.NOT_FOUND}
            assert {type(item.error) for item in items} == {errors.SnapshotNotFound}


def _fill(store: Store) -> None:
    for name, data in OBJECTS.items():
        put(store, name, data)
    store.snapshots.create(BUCKET, "s")
    for name in OBJECTS:
        put(store, name, b"second")
