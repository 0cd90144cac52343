"""Locations of objects."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from storage_node.store.drive.entry_cache import EntryCache
from storage_node.store.drive.locations import Locations, find
from storage_node.store.format import CatalogEntry, Version, encode_entry, tombstone
from tests.table import table

LARGE = 1 << 30
PREFIX = b"o" + bytes(16)
SEGMENT = b"segments/00/segment.1/0.5"
Row = tuple[bytes, bytes, int, int, int]
Found = list[tuple[bytes, int, int, int, int] | None]


def value(path: bytes, offset: int, size: int, checksum: int) -> bytes:
    return encode_entry(CatalogEntry(1, 2, 3, size, checksum, 4, offset, path, b'{"a":"b"}', b"writes"))


def add(table: Locations, rows: list[Row]) -> None:
    assert table.add([row[0] for row in rows], [value(*row[1:]) for row in rows], True, True)


def found(tables: tuple[Any, ...], names: list[str], prefix: bytes = PREFIX) -> Found:
    """(path, folder, offset, size, checksum) of each name, or None."""
    n = len(names)
    columns = np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.uint32)
    files = find(tables, prefix, names, *columns)
    return [file and (file.path, *(int(column[at]) for column in columns)) for at, file in enumerate(files)]


def test_what_was_added_is_found_in_the_order_of_the_names() -> None:
    table = Locations(7, LARGE)
    rows = [(PREFIX + b"%d" % at, b"segments/00/segment.1/%x.5" % at, 4096 * (at + 1), at, at) for at in range(3000)]
    add(table, rows)
    add(table, [(PREFIX + "ä/é".encode(), b"00/01/file.1", 0, 1 << 20, 0xFFFFFFFF)])
    assert len(table) == 3001
    assert found((table,), ["ä/é", "2999", "0", "17", "17"]) == [
        (b"00/01/file.1", 7, 0, 1 << 20, 0xFFFFFFFF),
        (b"segments/00/segment.1", 7, 4096 * 3000, 2999, 2999),
        (b"segments/00/segment.1", 7, 4096, 0, 0),
        (b"segments/00/segment.1", 7, 4096 * 18, 17, 17),
        (b"segments/00/segment.1", 7, 4096 * 18, 17, 17),
    ]


def test_keys_are_compared_in_full() -> None:
    table = Locations(1, LARGE)
    lengths = range(40)
    add(table, [(PREFIX + b"x" * at, b"00/00/f.%x" % at, 0, at, 0) for at in lengths])
    assert found((table,), ["x" * at for at in lengths]) == [(b"00/00/f.%x" % at, 1, 0, at, 0) for at in lengths]
    # The same bytes in another division into prefix and name.
    assert found((table,), ["xxx"], PREFIX + b"xx") == [(b"00/00/f.5", 1, 0, 5, 0)]
    assert found((table,), ["x" * 40]) == [None]
    assert found((table,), ["x"], b"p" + bytes(16)) == [None]


@table("names", [["a", "missing"], ["missing", "a"], ["a", "\ud800"]])
def test_unknown_names_are_told_from_known_ones(names: list[str]) -> None:
    table = Locations(1, LARGE)
    add(table, [(PREFIX + b"a", b"00/00/f.1", 0, 1, 1)])
    assert found((table,), names) == [(b"00/00/f.1", 1, 0, 1, 1) if name == "a" else None for name in names]
    assert found((), names) == [None] * len(names)
    assert found((table,), []) == []


def test_removed_and_replaced_locations() -> None:
    table = Locations(1, LARGE)
    add(table, [(PREFIX + b"%d" % at, b"00/00/f.%x" % at, 0, at, at) for at in range(100)])
    table.remove([PREFIX + b"7", PREFIX + b"unknown"])
    assert (found((table,), ["7"]), len(table)) == ([None], 99)
    add(table, [(PREFIX + b"7", b"00/00/f.ff", 0, 70, 71), (PREFIX + b"8", b"00/00/f.fe", 0, 80, 81)])
    assert found((table,), ["7", "8", "9"]) == [
        (b"00/00/f.ff", 1, 0, 70, 71),
        (b"00/00/f.fe", 1, 0, 80, 81),
        (b"00/00/f.9", 1, 0, 9, 9),
    ]
    table.clear()
    assert (found((table,), ["8"]), len(table)) == ([None], 0)
    add(table, [(PREFIX + b"8", b"00/00/f.8", 0, 8, 8)])
    assert found((table,), ["8"]) == [(b"00/00/f.8", 1, 0, 8, 8)]


def test_a_dropped_segment_takes_its_locations_with_it() -> None:
    table = Locations(1, LARGE)
    add(table, [(PREFIX + b"a", b"segments/00/segment.1/0.5", 4096, 1, 1)])
    add(table, [(PREFIX + b"b", b"segments/00/segment.2/0.6", 4096, 1, 1)])
    table.drop(b"segments/00/segment.1")
    table.drop(b"segments/00/segment.3")
    assert (found((table,), ["a"]), len(table)) == ([None], 1)
    assert found((table,), ["b"]) == [(b"segments/00/segment.2", 1, 4096, 1, 1)]
    add(table, [(PREFIX + b"a", b"segments/00/segment.4/0.7", 8192, 1, 1)])  # where it has moved to
    assert found((table,), ["a"]) == [(b"segments/00/segment.4", 1, 8192, 1, 1)]


def test_the_first_table_that_knows_a_name_counts() -> None:
    tables = tuple(Locations(dirfd, LARGE) for dirfd in (3, 4))
    add(tables[0], [(PREFIX + b"a", b"00/00/f.1", 0, 1, 1)])
    add(tables[1], [(PREFIX + b"a", b"00/00/f.2", 0, 2, 2), (PREFIX + b"b", b"00/00/f.3", 0, 3, 3)])
    assert found(tables, ["b", "a"]) == [(b"00/00/f.3", 4, 0, 3, 3), (b"00/00/f.1", 3, 0, 1, 1)]


def test_memory_is_bounded() -> None:
    table = Locations(1, 1 << 20)
    for at in range(20_000):
        add(table, [(PREFIX + b"%06d" % at, b"segments/00/segment.1/0.5", 4096, at, at)])
        assert found((table,), [f"{at:06d}"]) != [None]
    assert len(table) < 20_000


@pytest.mark.slow
def test_a_small_table_stays_beside_one_that_fills_the_memory() -> None:
    """Other tables of this process may exist, so that the limit is large, and the shares are not known exactly."""
    small, large = Locations(1, 16 << 20), Locations(2, 16 << 20)

    def grow(first: int) -> None:
        add(large, [(PREFIX + b"%06d" % at, SEGMENT, 4096, at, at) for at in range(first, first + 1000)])

    add(small, [(PREFIX + b"s%d" % at, b"00/00/f.1", 0, 1, 1) for at in range(50)])
    kept = 0
    while len(large) >= kept:
        kept = len(large)
        grow(kept)
    assert 10_000 < kept < 1_000_000 and len(large) < 1000
    assert len(small) == 50
    large.clear()
    for first in range(0, kept - 1000, 1000):
        grow(first)
    assert len(large) >= kept - 1000
    for number in range(50):
        add(small, [(PREFIX + b"t%d" % number, SEGMENT, 4096, 1, 1)])
    assert len(small) == 100


def test_keys_that_are_longer_than_any_name_are_not_kept() -> None:
    table = Locations(1, LARGE)
    names = ["x" * (0xFFFF - len(PREFIX) + more) for more in (0, 1)]
    add(table, [(PREFIX + name.encode(), b"00/00/f.1", 0, 1, 1) for name in names])
    assert found((table,), names) == [(b"00/00/f.1", 1, 0, 1, 1), None]


@pytest.mark.slow
def test_many_keys_are_those_of_a_dictionary() -> None:
    """Over many growths of the table, with removals, replacements and names of all sizes."""
    draw, table, expected = random.Random(7), Locations(3, LARGE), dict[str, tuple[bytes, int, int, int, int]]()
    for step in range(60):
        names = {f"{draw.randrange(20_000)}".rjust(draw.randrange(1, 90), "é") for _ in range(draw.randrange(900))}
        rows = [(name, b"segments/00/segment.%d" % draw.randrange(9), draw.randrange(1, 1 << 32)) for name in names]
        add(table, [(PREFIX + name.encode(), path + b"/0.1", at, at & 0xFFFF, step) for name, path, at in rows])
        expected |= {name: (path, 3, at, at & 0xFFFF, step) for name, path, at in rows}
        gone = draw.sample(sorted(expected), len(expected) // 10)
        table.remove([PREFIX + name.encode() for name in gone])
        for name in gone:
            del expected[name]
        asked = [*draw.sample(sorted(expected), min(300, len(expected))), *gone[:20], "never", "\ud800"]
        draw.shuffle(asked)
        assert found((table,), asked) == [expected.get(name) for name in asked]
    assert len(table) == len(expected) > 4_000


def test_versions_are_found_beside_locations() -> None:
    table = Locations(1, LARGE)
    versions = [(1, 2, 3), (0xFFF, (1 << 62) - 1, 0xFFFFF), (0x1000, 7, 1), (1, 8, 0x100000), ((1 << 32) - 1, 9, 5)]
    for at, (epoch, counter, node) in enumerate(versions):
        entry = CatalogEntry(epoch, counter, node, 10, at, 4, 0, b"00/00/f.%x" % at, b"")
        assert table.add([PREFIX + b"%d" % at], [encode_entry(entry)], True, True)
    names = [*map(str, range(len(versions))), "unknown"]
    columns = [np.zeros(len(names), kind) for kind in (np.int32, np.int64, np.int64, np.uint32)]
    counters, origins = np.full(len(names), 77, np.uint64), np.full(len(names), 88, np.uint32)
    files = find((table,), PREFIX, names, *columns, counters, origins)
    assert [file is not None for file in files] == [True] * len(versions) + [False]
    assert counters.tolist() == [*(counter for _, counter, _ in versions), 77]
    assert origins.tolist() == [1 << 20 | 3, 0xFFFFFFFF, 0, 0, 0, 88]  # the others have no room
    assert table.add([PREFIX + b"0"], [value(b"00/00/f.9", 0, 1, 1)], True, True)  # version 1.2.3 again
    find((table,), PREFIX, names, *columns, counters, origins)
    assert (int(counters[0]), int(origins[0])) == (2, 1 << 20 | 3)
    wrong = [(counters,), (origins, counters), (counters[:1], origins), (counters, origins, origins)]
    for other in wrong:
        with pytest.raises((TypeError, ValueError)):
            find((table,), PREFIX, names, *columns, *other)


def refused(*columns: Any) -> None:
    table = Locations(1, LARGE)
    add(table, [(PREFIX + b"a", b"00/00/f.1", 0, 1, 1)])
    find((table,), PREFIX, ["a"], *columns)


@table("wrong", range(4))
@table("other", ["type", "length"])
def test_wrong_columns_are_refused(wrong: int, other: str) -> None:
    columns: list[Any] = [np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint32)]
    columns[wrong] = np.zeros(1, np.float64) if other == "type" else np.zeros(2, columns[wrong].dtype)
    with pytest.raises(TypeError if other == "type" else ValueError):
        refused(*columns)


NOT_KEPT = [
    None,
    b"",
    encode_entry(tombstone(Version(1, 2), 3)),
    value(b"p", 0, (4 << 20) + 1, 1),
    value(b"p", 1 << 32, 11, 1),
    b"\3" + value(b"p", 0, 1, 1)[1:],
    value(b"p" * 40, 0, 1, 1)[:-50],
    value(b"p\0q", 0, 1, 1),
]


@table("other", NOT_KEPT)
def test_other_values_are_left_to_those_who_can_judge_them(other: bytes | None) -> None:
    table = Locations(1, LARGE)
    assert table.add([PREFIX + b"a", PREFIX + b"b"], [other, value(b"p", 0, 1, 1)], True, True)
    assert found((table,), ["a", "b"]) == [None, (b"p", 1, 0, 1, 1)]


@table("pairs", [([b"k"], []), ([b"k"], ["text"]), (["text"], [b"v"])])
def test_wrong_pairs_are_refused(pairs: tuple[Any, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        Locations(1, LARGE).add(*pairs, True, True)


def test_a_known_location_stays_unless_it_is_replaced() -> None:
    table = Locations(1, LARGE)
    older, newer = value(SEGMENT, 4096, 1, 1), value(b"00/00/f.2", 0, 2, 2)
    for step, (replace, expected) in enumerate([(False, 1), (False, 1), (True, 2)]):
        table.add([PREFIX + b"a"], [newer if step else older], replace, True)
        assert [row and row[3] for row in found((table,), ["a"])] == [expected]
    table.remove([PREFIX + b"a"])
    table.add([PREFIX + b"a"], [older], False, True)
    table.drop(SEGMENT.rpartition(b"/")[0])
    table.add([PREFIX + b"a"], [newer], False, True)  # what is void does not count
    assert found((table,), ["a"]) == [(b"00/00/f.2", 1, 0, 2, 2)]


def test_a_fill_ends_where_something_would_be_forgotten() -> None:
    table = Locations(1, 1 << 20)
    at = 0
    while table.add([PREFIX + b"%06d" % at], [value(SEGMENT, 4096, at, at)], False, False):
        at += 1
    assert len(table) == at > 1000
    assert found((table,), ["000000", f"{at:06d}"]) == [(SEGMENT.rpartition(b"/")[0], 1, 4096, 0, 0), None]


# -- beside the entries


def entry(counter: int, size: int = 10) -> CatalogEntry:
    return CatalogEntry(1, counter, 0, size, 0, 0, 4096, b"segments/00/segment.1/0.5", b"")


def known(cache: EntryCache) -> Callable[[bytes], int | None]:
    """The size by which a name is known."""
    from storage_node.store.drive.locations import find

    def size(name: bytes) -> int | None:
        columns = np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint32)
        return int(columns[2][0]) if find((cache.locations,), b"", [name.decode()], *columns) != [None] else None

    return size


def stored(counter: int, size: int = 10) -> bytes:
    return encode_entry(entry(counter, size))


def test_a_commit_replaces_locations_with_its_entries() -> None:
    cache = EntryCache()
    size = known(cache)
    cache.learn([b"old"], [stored(1)], cache.generation)
    assert size(b"old") == 10
    generation = cache.generation
    with cache.changing({b"old": stored(2, 20)}):
        assert size(b"old") is None
        cache.learn([b"old"], [stored(1)], cache.generation)
        assert size(b"old") is None
    assert size(b"old") == 20
    cache.learn([b"old"], [stored(1)], generation)  # read before the commit
    cache.learn([b"old"], [stored(1)], cache.generation)  # of two look-ups, the first may arrive last
    assert size(b"old") == 20
    with cache.changing({b"old": None}):
        pass
    assert size(b"old") is None
    with pytest.raises(OSError), cache.changing({b"old": stored(3, 30)}):
        raise OSError("not written, as far as anybody knows")
    assert size(b"old") is None


def test_a_fill_passes_over_what_has_changed_since_it_began() -> None:
    cache = EntryCache()
    size = known(cache)
    scanned = [(name, stored(1)) for name in (b"same", b"gone", b"new", b"failed", b"busy")]
    assert not cache.fill(scanned)  # none has begun
    with cache.changing({b"busy": stored(2, 20)}):
        cache.watch_changes(True)
        for name, value in {b"gone": None, b"new": stored(2, 20)}.items():
            with cache.changing({name: value}):
                pass
        with pytest.raises(OSError), cache.changing({b"failed": stored(2, 20)}):
            raise OSError
        assert cache.fill(scanned)
        assert [size(name) for name, _ in scanned] == [10, None, 20, None, None]
    assert cache.fill(scanned)
    assert [size(name) for name, _ in scanned] == [10, None, 20, None, 20]
    cache.forget()
    assert not cache.fill(scanned)
    assert size(b"same") is None


def test_a_location_read_before_its_segment_was_removed_is_not_kept() -> None:
    cache = EntryCache()
    size = known(cache)
    cache.learn([b"a"], [stored(1)], cache.generation)
    generation = cache.generation
    cache.forget_segment(b"segments/00/segment.1")
    assert size(b"a") is None
    cache.learn([b"a"], [stored(1)], generation)
    assert size(b"a") is None
