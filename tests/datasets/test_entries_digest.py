"""The digest of a dataset's entries, by which a saved position knows them: every entry counts, in whatever form."""

from __future__ import annotations

from datasets_kit import URLS

from ais_loader import BatchLoader, Client, Entry, MapDataset, ShufflePlan
from ais_loader.training.plan import entries_digest
from ais_loader.values.entry_table import EntryTable
from ais_loader.values.text_column import TextColumn
from tests.table import table


def digest(*entries: object) -> str:
    return entries_digest(entries, None)  # type: ignore[arg-type]


@table("form", ["urls", "table", "pinned"])
def test_it_covers_every_single_entry(form: str) -> None:
    def digest_of(names: list[str]) -> str:
        if form == "urls":
            return digest(*(f"ais://b/{name}" for name in names))
        if form == "table":
            return entries_digest(EntryTable("b", TextColumn.of([name.encode() for name in names])), None)
        return digest(*(Entry("b", name, version="1") for name in names))

    names = [f"{at:04d}" for at in range(1000)]
    replaced = [[*names[:at], "new", *names[at + 1 :]] for at in range(0, 1000, 37)]
    swapped = [*names[:500], names[501], names[500], *names[502:]]
    shifted = [*names[:500], names[500] + names[501][:1], names[501][1:], *names[502:]]
    lists = [names, *replaced, swapped, shifted]
    assert len({digest_of(some) for some in lists}) == len(lists)


def test_it_tells_what_is_read_of_an_object() -> None:
    entries = [
        Entry("b", "x"),
        Entry("c", "x"),
        Entry("b", "x", member="m"),
        Entry("b", "x", start=1),
        Entry("b", "x", length=1),
        Entry("b", "x", version="1"),
        Entry("b", "x", ranges=((0, 1),)),
        Entry("b", "x", etl="resize"),
        Entry("b", "x", etl="resize", args={"size": 2}),
    ]
    assert len({digest(one, one) for one in entries}) == len(entries)


def test_it_is_the_same_for_urls_names_tables_and_the_entries_they_mean() -> None:
    names = [str(at) for at in range(10)]
    forms = [
        digest(*(f"ais://b/{name}" for name in names)),
        digest(*(Entry("b", name) for name in names)),
        entries_digest(EntryTable("b", TextColumn.of([name.encode() for name in names])), None),
        entries_digest(names, "b"),
    ]
    assert len(set(forms)) == 1
    assert digest() == digest()


def test_entries_are_read_once_for_all_states(local_store: Client) -> None:
    class Counting(list[str]):
        read = 0

        def __getitem__(self, at: object) -> object:  # type: ignore[override]
            Counting.read += 1
            return super().__getitem__(at)  # type: ignore[index]

    dataset = MapDataset(local_store, ())
    dataset._entries = Counting([*URLS, f"{URLS[0]}/member"])  # more than one form, so that no table holds them
    loader = BatchLoader(dataset, ShufflePlan(len(dataset), 3))
    first, read = loader.state_dict(), Counting.read
    assert first == loader.state_dict()
    assert Counting.read == read
