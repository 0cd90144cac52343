"""A write that is tried again is known by its id: it takes effect once, whatever has happened to the name since."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ais_loader.errors import InvalidRequest, ObjectNotFound, OutcomeUnknown
from storage_node.store.drive.preconditions import (
    REMEMBERED,
    REMEMBERED_NS,
    Condition,
    after,
    checked,
    find,
    forgotten_ns,
    memory_of,
    parse_condition,
    superseded,
    took_part,
)
from storage_node.store.drive.transactions import DeletionLog
from storage_node.store.format import CatalogEntry, Version, decode_entry, encode_entry, tombstone
from storage_node.store.store import Store
from tests.store.store_kit import BUCKET, assert_sound, contents, put, read, store_at

S = 10**9


def first(letter: str) -> Condition:
    return Condition(write_id=letter.encode() * 16)


def again(letter: str, age_s: float = 0.1) -> Condition:
    return Condition(write_id=letter.encode() * 16, began_ns=time.time_ns() - int(age_s * S))


def write(store: Store, name: str, data: bytes, condition: Condition, **metadata: str) -> CatalogEntry:
    return store.stage(BUCKET, name, [data], metadata, condition=condition).commit()


def deleted(store: Store, name: str, condition: Condition) -> None:
    store.delete(BUCKET, name, condition=condition)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_put_that_is_sent_again_after_another_one_changes_nothing(tmp_path: Path, reopened: bool) -> None:
    with store_at(tmp_path) as store:
        mine = write(store, "a", b"W1", first("1"), key="value")
        assert write(store, "a", b"W1", again("1"), key="value") == mine
        write(store, "a", b"W2", first("2"))
    with store_at(tmp_path) as store:
        repeated = write(store, "a", b"W1", again("1"), key="value")
        assert (repeated.version, repeated.size_bytes, repeated.checksum) == (mine.version, 2, mine.checksum)
        assert repeated.metadata == {"key": "value"}
        assert read(store, "a") == b"W2"
    assert_sound(tmp_path)


@pytest.mark.parametrize("reopened", [False, True])
def test_a_deletion_that_is_sent_again_deletes_nothing_newer(tmp_path: Path, reopened: bool) -> None:
    with store_at(tmp_path) as store:
        write(store, "a", b"W1", first("1"))
        deleted(store, "a", first("d"))
        deleted(store, "a", again("d"))
        with pytest.raises(ObjectNotFound):
            deleted(store, "a", first("e"))
        if not reopened:
            write(store, "a", b"W2", first("2"))
    with store_at(tmp_path) as store:
        deleted(store, "a", again("d"))
        if reopened:
            assert write(store, "a", b"W1", again("1")).size_bytes == 2
            assert contents(store) == {}  # it was stored once, and deleted
            write(store, "a", b"W2", first("2"))
        deleted(store, "a", again("d"))
        assert store.delete_many(BUCKET, ["a", "b"], again("d"))[0] is None
        assert contents(store) == {"a": b"W2"}
    assert_sound(tmp_path)


@pytest.mark.slow
def test_many_writes_and_deletions_are_each_known(tmp_path: Path) -> None:
    names = [f"{number:04d}" for number in range(1024)]
    with store_at(tmp_path) as store:

        def all_of(data: bytes, condition: Condition) -> list[object]:
            uploads = [store.stage(BUCKET, name, [data], {}, condition=condition, grouped=True) for name in names]
            return list(store.commit_many(uploads))

        stored = all_of(b"W1", first("1"))
        for name in names[::2]:
            put(store, name, b"W2")
        repeated = all_of(b"W1", again("1"))
        assert [one.version for one in repeated] == [one.version for one in stored]  # type: ignore[attr-defined]
        assert contents(store) == {name: b"W2" if at % 2 == 0 else b"W1" for at, name in enumerate(names)}
        assert store.delete_many(BUCKET, names, first("d")) == [None] * len(names)
        for name in names[::2]:
            put(store, name, b"W3")
        assert store.delete_many(BUCKET, names, again("d")) == [None] * len(names)
        assert contents(store) == dict.fromkeys(names[::2], b"W3")


def test_what_was_never_done_is_done_by_the_second_try(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        write(store, "a", b"W0", first("0"))
        write(store, "a", b"W1", again("1"))
        assert read(store, "a") == b"W1"
        deleted(store, "a", again("d"))
        assert contents(store) == {}


def test_so_many_writes_later_nobody_knows_and_nothing_is_done(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        write(store, "a", b"W1", first("1"))
        for number in range(REMEMBERED + 1):
            write(store, "a", b"%d" % number, Condition(write_id=b"%016d" % number))
        for attempt in (lambda: write(store, "a", b"W1", again("1")), lambda: deleted(store, "a", again("d"))):
            with pytest.raises(OutcomeUnknown):
                attempt()
        assert read(store, "a") == b"%d" % REMEMBERED
        [*results] = store.delete_many(BUCKET, ["a", "b"], again("d"))
        assert isinstance(results[0], OutcomeUnknown) and isinstance(results[1], ObjectNotFound)
        # Whoever began after all that has been forgotten is known not to have been there.
        assert (
            write(store, "a", b"new", Condition(write_id=b"n" * 16, began_ns=time.time_ns() + 62 * S)).size_bytes == 3
        )


def test_deletions_are_forgotten_one_by_one_and_that_is_known(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        for name in "abc":
            write(store, name, b"data", first(name))
        log = DeletionLog(store.drives[0].catalog, max_entries=2)  # type: ignore[union-attr]
        store.drives[0].changes.deletions = log  # type: ignore[union-attr]
        for name in "abc":
            deleted(store, name, first("d"))
        deleted(store, "c", again("d"))
        with pytest.raises(OutcomeUnknown):
            deleted(store, "a", again("d"))
        with pytest.raises(OutcomeUnknown):
            write(store, "a", b"data", again("a"))
        write(store, "a", b"new", first("n"))
        with pytest.raises(OutcomeUnknown):  # which the new object has taken over
            deleted(store, "a", again("d"))
        assert contents(store) == {"a": b"new"}


def test_what_moves_to_another_drive_remembers(tmp_path: Path) -> None:
    names = [str(number) for number in range(12)]
    with store_at(tmp_path / "1") as store:
        for name in names:
            write(store, name, b"W1", first("1"))
            write(store, name, b"W2", first("2"))
        store.pool.add_drive(tmp_path / "2")
        while store.pool.moving:
            store.pool.move_some()
        for name in names:
            write(store, name, b"W1", again("1"))
        assert contents(store) == dict.fromkeys(names, b"W2")


# -- the memory itself


def entry(number: int, letter: str, at_s: float, before: CatalogEntry | None = None) -> CatalogEntry:
    made = CatalogEntry(1, number, 2, 10 + number, number, int(at_s * S), 0, b"00/00/x.1", b"")
    writes = after([before] if before is not None else [], memory_of(letter.encode() * 16), made.modified_ns)
    return made._replace(writes=writes)


def test_memory_goes_through_the_catalog_as_it_is() -> None:
    two = entry(2, "b", 1, entry(1, "a", 0))._replace(raw_metadata=b'{"k":"v"}')
    assert decode_entry(encode_entry(two)) == two
    assert (two.write_id, two.metadata) == (b"b" * 16, {"k": "v"})
    gone = tombstone(Version(1, 3, 2), 5, after([two], memory_of(b"d" * 16), 5))
    assert decode_entry(encode_entry(gone)) == gone and gone.is_tombstone
    found = find(gone.writes, b"a" * 16)
    assert found is not None and found.entry().version == Version(1, 1, 2)
    assert (found.size_bytes, found.checksum, found.is_deletion) == (11, 1, 0)
    assert find(gone.writes, b"d" * 16) is None and find(gone.writes, b"") is None


def test_memories_of_several_nodes_are_one() -> None:
    old = entry(1, "a", 1)
    here, there = entry(3, "c", 3, old), entry(2, "b", 2, old)
    merged = after([here, there], memory_of(b"d" * 16, [7, 9]), 4 * S)
    assert [past.write_id[:1] for past in superseded(merged)] == [b"c", b"b", b"a"]
    assert [took_part(merged, node) for node in (7, 8, 9)] == [False, True, False]
    assert not took_part(here.writes, 8) and checked(merged) == merged
    for cut in (1, 20, len(merged) - 1):
        with pytest.raises(InvalidRequest):
            checked(merged[:cut])
    # A copy that brings all of that is remembered with what was here and is not in it.
    both = superseded(after([entry(2, "x", 2)], merged, 4 * S))
    assert {past.write_id[:1] for past in both} == {b"a", b"b", b"c", b"x"}


def test_the_usual_way_to_remember_is_the_same_as_the_long_one() -> None:
    last = entry(0, "a", 0)
    for number in range(1, 60):
        seconds = number if number < 50 else number + REMEMBERED_NS // S
        write_id = b"%016d" % (number - number % 7)  # some come again
        head, modified_ns = memory_of(write_id, [number]), seconds * S
        quick = after([last], head, modified_ns)
        differing = [last, last._replace(offset=1)]  # which nobody shortens
        assert quick == after(differing, head, modified_ns) == after([last, last], head, modified_ns)
        # And where that is brought to who has the same entry.
        assert after([last], quick, modified_ns) == after(differing, quick, modified_ns) == quick
        assert checked(quick) == quick
        last = last._replace(counter=number, modified_ns=modified_ns, writes=quick)


def test_owners_that_date_a_deletion_differently_remember_the_same_after_the_next_write() -> None:
    """Else each later write of the name is merged record by record, on its coordinator and on each owner."""
    put_by_all = entry(1, "a", 1)
    gone = after([put_by_all], memory_of(b"b" * 16, []), 2 * S)
    early, late = (tombstone(Version(1, 2, 2), dated_ns, gone) for dated_ns in (2 * S, 2 * S + 5))
    for copies in ([early, late], [late, early]):
        brought = after(copies, memory_of(b"c" * 16, []), 3 * S)
        assert [(past.write_id, past.modified_ns) for past in superseded(brought)] == [
            (b"b" * 16, 2 * S + 5),  # the later one: nobody says that he has forgotten less than he has
            (b"a" * 16, 1 * S),
        ]
        assert [after([copy], brought, 3 * S) for copy in copies] == [brought, brought]
    # The coordinator has asked the early one alone: what it brings is no reason to date the deletion back.
    brought = after([early], memory_of(b"c" * 16, []), 3 * S)
    assert [past.modified_ns for past in superseded(after([late], brought, 3 * S))] == [2 * S + 5, 1 * S]
    # Two writes of one version and time that differ otherwise are no copies of one another.
    other = early._replace(writes=memory_of(b"d" * 16))
    assert {past.write_id for past in superseded(after([early, other], memory_of(b"c" * 16), 3 * S))} == {
        letter * 16 for letter in (b"a", b"b", b"d")
    }


def test_memory_is_bounded_by_number_and_by_age() -> None:
    last = entry(0, "a", 0)
    for number in range(1, 100):
        writes = after([last], memory_of(b"%016d" % number), number * S)
        last = last._replace(counter=number, modified_ns=number * S, writes=writes)
    assert len(superseded(last.writes)) == REMEMBERED
    assert forgotten_ns(last.writes) == (99 - REMEMBERED - 1) * S
    assert len(last.writes) < 2000
    much_later = last.modified_ns + REMEMBERED_NS + S
    later = after([last], memory_of(b"z" * 16), much_later)
    assert superseded(later) == [] and forgotten_ns(later) == 99 * S
    assert after([entry(1, "a", 0)._replace(writes=b"")], memory_of(b"z" * 16), S) == memory_of(b"z" * 16)


def test_an_id_is_sixteen_bytes() -> None:
    assert parse_condition(False, "", b"x" * 16) == Condition(write_id=b"x" * 16)
    repeated = parse_condition(False, "", b"x" * 16, 500)
    assert repeated is not None and 0 < time.time_ns() - repeated.began_ns < 30 * S
    for wrong in ((b"short", 0), (bytes(16), 0), (b"", 5)):
        with pytest.raises(InvalidRequest):
            parse_condition(False, "", *wrong)
