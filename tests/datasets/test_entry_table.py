"""EntryTable: the same entries in less memory, or None where it would lose something of them."""

from __future__ import annotations

import pickle
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader import Entry
from ais_loader.values.entry_table import EntryTable
from tests.table import table

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


@pytest.mark.slow
@settings(deadline=None)
@given(names=st.lists(NAMES, max_size=20))
def test_a_table_holds_equal_entries_in_the_same_order(names: list[str]) -> None:
    entries = [Entry("b", name) for name in names]
    table = EntryTable.of(entries)
    assert table is not None
    assert list(table) == entries
    assert table[1:5] == entries[1:5]
    assert table.names(range(len(names))) == names
    assert list(pickle.loads(pickle.dumps(table))) == entries


def test_urls_and_entries_may_be_mixed() -> None:
    table = EntryTable.of(["ais://b/x/y", Entry("b", "z"), "ais://b/w.tar"])
    assert table is not None
    assert list(table) == [Entry("b", "x/y"), Entry("b", "z"), Entry("b", "w.tar")]
    assert table[-1] == Entry("b", "w.tar")
    with pytest.raises(IndexError):
        table[3]


@table(
    "odd",
    [
        "ais://c/n",
        "ais://b/shard.tar/member",
        Entry("c", "n"),
        Entry("b", "n", member="m"),
        Entry("b", "n", start=1),
        Entry("b", "n", length=1),
        Entry("b", "n", version="1"),
        Entry("b", "n", opaque=0),
        Entry("b", "\ud800"),
    ],
)
def test_an_entry_that_is_more_than_a_name_has_no_place_in_a_table(odd: Entry | str) -> None:
    assert EntryTable.of(["ais://b/n", odd]) is None


@pytest.mark.slow
def test_a_table_takes_the_names_own_bytes_and_eight_more_each() -> None:
    urls = (f"ais://b/{at:012d}" for at in range(50_000))
    tracemalloc.start()
    try:
        table = EntryTable.of(list(urls))
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert table is not None
    assert kept_bytes < 50_000 * (12 + 8) * 1.05
