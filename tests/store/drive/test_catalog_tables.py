"""Tables of a catalog: the options apply to catalogs that exist, and look-ups stay cheap after the writer has gone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from ais_loader.cli.main import main
from ais_loader.errors import StoreFormatError
from storage_node.store.drive.catalog import Catalog, WriteBatch
from storage_node.store.drive.entry_cache import GENERATION_ENTRIES, EntryCache
from storage_node.store.drive.rocksdb_options import block_cache_bytes
from storage_node.store.format import CatalogEntry
from tests.store.fsck.test_store_damage import overwrite_middle
from tests.store.store_kit import drive_of, put, read, store_at


def tables_of_level_0(catalog: Catalog) -> int:
    return int(catalog._db.property_value("rocksdb.num-files-at-level0"))


def fill(catalog: Catalog, tables: int, *, keys: int = 2000) -> list[bytes]:
    """As many tables of overlapping keys as flushes."""
    draw = random.Random(7)
    names = [b"%08d" % number for number in range(keys)]
    for _ in range(tables):
        batch = WriteBatch(raw_mode=True)
        for name in draw.sample(names, keys // 2):
            batch.put(name, name * 3)
        catalog.write(batch, sync=False)
        catalog.flush()
    return names


@pytest.mark.parametrize("writable", [True, False])
def test_a_catalog_that_exists_is_opened_with_the_cache_and_filters_of_this_version(
    tmp_path: Path, writable: bool
) -> None:
    first = Catalog(tmp_path / "catalog", writable=True)
    fill(first, 1)
    first.close()
    again = Catalog(tmp_path / "catalog", writable=writable)
    try:
        assert again._db.property_int_value("rocksdb.block-cache-capacity") == block_cache_bytes()
        assert 64 << 20 <= block_cache_bytes() <= 256 << 20
        # The filter is read with the table: without one, this table takes a few hundred bytes.
        assert again.get(b"%08d" % 10**7) is None
        assert int(again._db.property_int_value("rocksdb.estimate-table-readers-mem") or 0) > 1000
    finally:
        again.close()


def in_parts(catalog: Catalog, prefix: bytes, up_to: bytes | None, most: int) -> Iterator[tuple[bytes, bytes]]:
    after: bytes | None = None
    while part := catalog.part(prefix, after, up_to, most):
        assert len(part) <= most
        yield from part
        after = part[-1][0]


def test_parts_have_what_a_scan_has(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog", writable=True)
    fill(catalog, 1, keys=20_000)
    for prefix, up_to in [(b"", None), (b"000012", None), (b"0", b"00012345"), (b"1", None)]:
        for most in (1, 7, 10_000) if prefix == b"000012" else (1000, 10_000):
            assert list(in_parts(catalog, prefix, up_to, most)) == list(catalog.scan(prefix, None, up_to))
    catalog.close()


def test_damage_ends_no_part_early(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog", writable=True)
    fill(catalog, 1, keys=20_000)
    catalog.close()
    overwrite_middle(next((tmp_path / "catalog").glob("*.sst")))
    damaged = Catalog(tmp_path / "catalog", writable=False)
    for most in (1000, 100_000):
        with pytest.raises(StoreFormatError, match="damaged catalog"):
            list(in_parts(damaged, b"", None, most))
    damaged.close()


def test_an_orderly_end_leaves_few_tables_to_search(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "catalog", writable=True)
    catalog._db.set_options({"disable_auto_compactions": "true"})
    catalog.begin_session()
    names = fill(catalog, 9)
    assert tables_of_level_0(catalog) == 9
    values = catalog.get_many(names)
    catalog._db.set_options({"disable_auto_compactions": "false"})
    catalog.end_session()
    catalog.close()
    reader = Catalog(tmp_path / "catalog", writable=False)
    assert tables_of_level_0(reader) < 4
    assert reader.get_many(names) == values
    reader.close()


def test_the_doctor_compacts_catalogs(tmp_path: Path) -> None:
    with store_at(tmp_path / "store") as store:
        for name in "abc":
            put(store, name, name.encode() * 1000)
            drive_of(store).catalog.flush()
        root = drive_of(store).root
    result = CliRunner().invoke(main, ["doctor", "--compact", str(tmp_path / "store")])
    assert (result.exit_code, "healthy" in result.output) == (0, True), result.output
    reader = Catalog(root / "catalog", writable=False)
    assert tables_of_level_0(reader) <= 1  # what closing has flushed
    reader.close()
    with store_at(tmp_path / "store") as store:
        assert [read(store, name) for name in "abc"] == [name.encode() * 1000 for name in "abc"]


@pytest.mark.parametrize("other", ["--repair", "--rebuild", "--checksums"])
def test_the_doctor_compacts_apart_from_all_else(tmp_path: Path, other: str) -> None:
    result = CliRunner().invoke(main, ["doctor", "--compact", other, str(tmp_path)])
    assert (result.exit_code, "--compact cannot be combined" in result.output) == (2, True)


# -- the cache of entries


def entry(counter: int) -> CatalogEntry:
    return CatalogEntry(1, counter, 0, 10, 0, 0, 0, b"path", b"")


@pytest.mark.slow
def test_entries_that_are_used_again_outlive_others() -> None:
    cache = EntryCache()
    cache.add([(b"kept", entry(1))], cache.generation)
    for at in range(8 * GENERATION_ENTRIES):
        cache.add([(b"%d" % at, entry(1))], cache.generation)
        if at % (GENERATION_ENTRIES // 2) == 0:
            assert cache.get_many([b"kept"]) == [entry(1)]
    assert cache.get_many([b"0", b"%d" % (8 * GENERATION_ENTRIES - 1)]) == [None, entry(1)]
    assert len(cache._newer) + len(cache._older) <= 2 * GENERATION_ENTRIES


def test_a_commit_removes_entries_of_either_generation() -> None:
    cache = EntryCache()
    cache.add([(b"old", entry(1))], cache.generation)
    cache.add(((b"%d" % at, entry(1)) for at in range(GENERATION_ENTRIES)), cache.generation)
    assert b"old" in cache._older
    generation = cache.generation
    with cache.changing({b"old": None}):
        assert cache.get_many([b"old"]) == [None]
        cache.add([(b"old", entry(1))], cache.generation)
    cache.add([(b"old", entry(1))], generation)  # read before the commit
    assert cache.get_many([b"old"]) == [None]
    cache.add([(b"old", entry(2))], cache.generation)
    cache.add([(b"old", entry(1))], cache.generation)  # of two look-ups, the first may arrive last
    assert cache.get_many([b"old"]) == [entry(2)]
