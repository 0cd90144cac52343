"""What becomes of a write that is sent again, by what the nodes know of it."""

from __future__ import annotations

import pytest

from ais_loader.errors import LoaderError, OutcomeUnknown
from storage_node.cluster.replication.write_plan import Repeat, judged
from storage_node.context.errors import TooFewCopies
from storage_node.store.drive.preconditions import REMEMBERED, Condition, after, memory_of
from storage_node.store.format import CatalogEntry, Version
from tests.table import table

S = 10**9
BEGAN_S = 100
OWNERS = [0, 1]
SILENT = {2: "host-1:7480: no answer"}


def written(
    counter: int,
    letter: str,
    at_s: float,
    *before: CatalogEntry,
    missing: list[int] | None = None,
    deleted: bool = False,
) -> CatalogEntry:
    path = b"" if deleted else b"elsewhere"
    made = CatalogEntry(1, counter, 1, 10 + counter, counter, int(at_s * S), 0, path, b"")
    memory = memory_of(letter.encode() * 16, missing)
    return made._replace(writes=after(before, memory, made.modified_ns))


def judge(
    *found: CatalogEntry | None, silent: dict[int, str] | None = None, began_s: float = BEGAN_S
) -> CatalogEntry | LoaderError | Repeat:
    """Of the write X; what nodes 0, 1, ... have."""
    condition = Condition(write_id=b"x" * 16, began_ns=int(began_s * S))
    return judged("b/n", condition, dict(enumerate(found)), silent or {}, OWNERS)


def version_of(outcome: object) -> Version:
    assert isinstance(outcome, CatalogEntry), outcome
    return outcome.version


OLD = written(1, "o", 10)
MINE = written(5, "x", 100, OLD)


def test_what_nobody_knows_was_not_done() -> None:
    assert judge(None, None) == Repeat(())
    assert judge(OLD, OLD) == Repeat((OLD, OLD))
    just_now = written(6, "w", 100.5, OLD)
    assert judge(just_now, just_now, OLD) == Repeat((just_now, just_now, OLD))


@pytest.mark.parametrize("deleted", [False, True])
def test_what_all_owners_have_was_done(deleted: bool) -> None:
    mine = written(5, "x", 100, OLD, deleted=deleted)
    assert judge(mine, mine) == mine
    assert judge(mine, mine, OLD, silent=SILENT) == mine


def test_what_only_some_owners_have_is_done_once_more() -> None:
    assert judge(MINE, OLD) == Repeat((MINE, OLD))
    assert judge(MINE, silent=SILENT) == Repeat((MINE,))


@table("deleted", [False, True])
@table("silent", [{}, SILENT])
def test_what_has_been_replaced_is_known_by_memory(deleted: bool, silent: dict[int, str]) -> None:
    mine = written(5, "x", 100, OLD, deleted=deleted)
    over = written(9, "v", 101, written(7, "w", 101, mine))
    for found in ([over, over], [over], [over, mine], [OLD, over]):
        outcome = judge(*found, silent=silent)
        assert version_of(outcome) == mine.version
        assert isinstance(outcome, CatalogEntry) and outcome.is_tombstone == deleted


def test_what_another_one_replaced_that_had_not_heard_of_it_was_done() -> None:
    unaware = written(7, "w", 101, OLD)
    assert version_of(judge(MINE, unaware)) == MINE.version


def test_a_silent_node_may_have_done_what_has_been_replaced_since() -> None:
    assert isinstance(judge(written(7, "w", 101, OLD), silent=SILENT), TooFewCopies)
    assert isinstance(judge(written(7, "w", 101, OLD, deleted=True), silent=SILENT), TooFewCopies)
    # A minute may the repeat be on its way that says when it began, and clocks differ.
    assert isinstance(judge(written(7, "w", 40, OLD), silent=SILENT), TooFewCopies)
    before = written(7, "w", 38, OLD)
    assert judge(before, silent=SILENT) == Repeat((before,))
    assert judge(None, silent=SILENT) == Repeat(())


def test_what_the_silent_one_took_part_in_would_know_it() -> None:
    for missing in ([], [1, 3]):
        known = written(7, "w", 101, OLD, missing=missing)
        assert judge(known, silent=SILENT) == Repeat((known,))
        assert version_of(judge(written(7, "w", 101, MINE, missing=missing), silent=SILENT)) == MINE.version
    for unsure in (written(7, "w", 101, OLD, missing=[1, 2]), written(7, "w", 101, OLD)):
        assert isinstance(judge(unsure, silent=SILENT), TooFewCopies)
    assert isinstance(judge(written(7, "w", 101, OLD, missing=[3]), silent={**SILENT, 3: "gone"}), TooFewCopies)


def test_what_has_been_forgotten_since_is_unknown_for_good() -> None:
    last = written(5, "x", 100, OLD)
    for number in range(REMEMBERED + 2):
        writes = after([last], memory_of(b"%016d" % number), int((101 + number / 10) * S))
        last = last._replace(counter=6 + number, modified_ns=int((101 + number / 10) * S), writes=writes)
    assert isinstance(judge(last, last), OutcomeUnknown)
    later = judge(last, last, began_s=170)
    assert later == Repeat((last, last))
