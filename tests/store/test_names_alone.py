"""Listings of names alone, and of one level: what a listing of objects has, whatever the drives and the pages."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import BucketNotFound, DriveFailed, InvalidRequest, StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.drive.catalog import Catalog
from storage_node.store.listing import CatalogPage
from storage_node.store.store import Store
from tests.store.drives_kit import WANTED, store_with
from tests.store.store_kit import BUCKET, drive_of, names, put, store_at
from tests.table import table

ODD = ["a", "a/b", "a b", "B", "é", "e\u0301", "音声/1", "🎧", "z" * 1024, "\x01", "0/1", "0/10", ".hidden", "~"]
HIDDEN = f"/.parts/{'0' * 32}/upload"


def names_page(
    store: Store,
    prefix: str = "",
    after: str = "",
    most_bytes: int = 100,
    bucket: str = BUCKET,
    *,
    skip_missing: bool = False,
) -> CatalogPage:
    """A page of names. While objects move, and of a snapshot, it has objects, whose names it gets."""
    page = store.replicas.page(
        bucket, prefix, after, most=1000, most_bytes=most_bytes, skip_missing=skip_missing, names_only=True
    )
    return page._replace(names=page.names or [name.encode() for name, _ in page.objects])


def alone(store: Store, prefix: str = "", after: str = "", most_bytes: int = 100, bucket: str = BUCKET) -> list[str]:
    found: list[str] = []
    pages = 0
    while True:
        page = names_page(store, prefix, after, most_bytes, bucket)
        found += [name.decode() for name in page.names]
        pages += 1
        assert sum(map(len, page.names)) < most_bytes + 4 * 1024
        if page.next is None:
            return found
        assert page.next > after
        after = page.next


@pytest.mark.slow
@table("drives", [1, 2, 3])
def test_they_are_those_of_the_objects_on_any_number_of_drives(tmp_path: Path, drives: int) -> None:
    with store_with(
        dict.fromkeys([*ODD, *WANTED, HIDDEN], b"x"), *(tmp_path / f"{at}" for at in range(drives))
    ) as store:
        for name in [*list(WANTED)[::3], "a b"]:
            store.delete(BUCKET, name, keep_tombstone=True)
        put(store, "000", b"again")
        for most_bytes in (1, 7, 100, 1 << 20):
            for prefix in ("", "a", "a/", "0", "音", "none", "/", "/."):
                assert alone(store, prefix, most_bytes=most_bytes) == names(store, prefix)
            for after in ("", "0/1", "050", "é", "\U0010ffff"):
                wanted = [name for name, _ in store.objects(BUCKET, "", after)]
                assert alone(store, after=after, most_bytes=most_bytes) == wanted
        assert HIDDEN not in alone(store) and HIDDEN in alone(store, "/")


def test_random_names_and_pages(tmp_path: Path) -> None:
    draw = random.Random(11)
    made = {"".join(draw.choices("ab/é🎧.", k=draw.randrange(1, 9))).lstrip("/") or "a": b"" for _ in range(300)}
    made = {name: data for name, data in made.items() if "//" not in name and not name.endswith("/")}
    made = {name: data for name, data in made.items() if not {".", ".."} & set(name.split("/"))}
    with store_with(made, tmp_path / "a", tmp_path / "b") as store:
        for _ in range(50):
            prefix, after = ("".join(draw.choices("ab/", k=draw.randrange(3))) for _ in range(2))
            wanted = [name for name, _ in store.objects(BUCKET, prefix.lstrip("/"), after)]
            assert alone(store, prefix.lstrip("/"), after, draw.randrange(1, 60)) == wanted


def test_a_reader_sees_what_the_writer_has_committed(tmp_path: Path) -> None:
    with store_with(WANTED, tmp_path / "a") as store, Store.open([tmp_path / "a"], mode="r") as reader:
        assert alone(reader) == sorted(WANTED)
        put(store, "new", b"")
        assert alone(reader) == sorted([*WANTED, "new"])


def test_while_objects_move_between_drives_none_is_missing(tmp_path: Path) -> None:
    with store_with(WANTED, tmp_path / "a", tmp_path / "b") as store:
        store.pool.add_drive(tmp_path / "c")
        assert store.pool.moving
        while store.pool.move_some(20, 1 << 20).left_estimate:
            assert alone(store) == sorted(WANTED)
        assert alone(store) == sorted(WANTED)


def test_an_entry_where_no_look_up_searches_is_not_listed(tmp_path: Path) -> None:
    with store_with(WANTED, tmp_path / "a", tmp_path / "b") as store:
        placement, bucket_uuid = store.drive_set.placement, store.bucket(BUCKET).uuid_bytes
        name = next(name for name in WANTED if placement.owner(bucket_uuid, name) == 0)
        key = fmt.object_key(bucket_uuid, "stray")
        slot = 1 - placement.owner(bucket_uuid, "stray")
        value = store.drives[0].catalog.get(fmt.object_key(bucket_uuid, name))  # type: ignore[union-attr]
        store.drives[slot].catalog._db[key] = value  # type: ignore[union-attr]
        assert names(store) == alone(store) == sorted(WANTED)


def test_a_missing_drive_is_told_or_left_out(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with store_with(WANTED, *roots):
        pass
    roots[1].rename(tmp_path / "away")
    with Store.open(roots) as store:
        with pytest.raises(DriveFailed, match="would lack its objects"):
            names_page(store)
        page = names_page(store, most_bytes=1 << 20, skip_missing=True)
        wanted = [name for name, _ in store.objects(BUCKET, skip_missing=True)]
        assert [name.decode() for name in page.names] == wanted and 10 < len(wanted) < 80


def test_a_snapshot_has_the_names_that_there_were(tmp_path: Path) -> None:
    with store_with(WANTED, tmp_path / "a", tmp_path / "b") as store:
        store.snapshots.create(BUCKET, "then")
        store.delete(BUCKET, "000")
        put(store, "new", b"")
        assert alone(store, bucket=f"{BUCKET}@then", most_bytes=20) == sorted(WANTED)
        assert alone(store) == sorted([*list(WANTED)[1:], "new"])


FOLDERS = {f"{folder}/{at:04}": b"" for folder in ("a", "b/x", "b/y", "c-", "c") for at in range(300)}


class TestLevels:
    @pytest.mark.slow
    @pytest.mark.parametrize("drives", [1, 2])
    def test_a_level_has_objects_and_the_folders_of_the_others(self, tmp_path: Path, drives: int) -> None:
        roots = [tmp_path / f"{at}" for at in range(drives)]
        with store_with(FOLDERS | dict.fromkeys(["a", "b/m", "c0", HIDDEN, "z"], b""), *roots) as store:
            for most in (1, 2, 100):
                assert level(store, most=most) == ["a", "a/", "b/", "c-/", "c/", "c0", "z"]
                assert level(store, "b/", most=most) == ["b/m", "b/x/", "b/y/"]
                assert level(store, "c", most=most) == ["c-/", "c/", "c0"]
                assert level(store, "none", most=most) == []
            for at in range(300):
                store.delete(BUCKET, f"a/{at:04}", keep_tombstone=True)
            assert level(store) == ["a", "b/", "c-/", "c/", "c0", "z"]

    @pytest.mark.slow
    def test_what_is_in_a_folder_is_passed_over(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = {f"{folder}/{at:05}": b"" for folder in "abc" for at in range(600)}
        with store_at(tmp_path / "s") as store:
            store.commit_many([store.stage(BUCKET, name, [b""], {}, grouped=True) for name in names])
            read: list[bytes] = []
            scan = Catalog.scan

            def counted(self: Catalog, *arguments: bytes | None) -> Iterator[tuple[bytes, bytes]]:
                for pair in scan(self, *arguments):  # type: ignore[arg-type]
                    read.append(pair[0])
                    yield pair

            monkeypatch.setattr(Catalog, "scan", counted)
            assert level(store) == ["a/", "b/", "c/"]
            assert len(read) < 150


def level(store: Store, prefix: str = "", *, most: int = 1000) -> list[str]:
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = store.replicas.page(BUCKET, prefix, after, most=most, most_bytes=1 << 20, one_level=True)
        assert len(page.objects) + len(page.folders) <= most
        assert all(first.startswith(folder) for folder, first in page.folders)
        found += sorted([*(name for name, _ in page.objects), *(folder for folder, _ in page.folders)])
        after = page.next
    return found


def test_wrong_buckets_and_texts_are_told(tmp_path: Path) -> None:
    with store_at(tmp_path / "a") as store:
        assert alone(store) == []
        with pytest.raises(BucketNotFound):
            alone(store, bucket="none")
        with pytest.raises(InvalidRequest, match="not valid Unicode"):
            alone(store, "\ud800")


def test_a_damaged_entry_is_told_rather_than_listed_or_left_out(tmp_path: Path) -> None:
    with store_with(WANTED, tmp_path / "a") as store:
        key = fmt.object_key(store.bucket(BUCKET).uuid_bytes, "010")
        catalog = drive_of(store).catalog
        for damaged in (b"", b"\x02", b"\x07\x01" + b"x" * 80, b"\x02\x09" + b"x" * 80):
            catalog._db[key] = damaged
            with pytest.raises(StoreFormatError):
                alone(store)
