"""Checker of the soak's histories, by made-up histories: good ones pass, and each kind of bad one is found."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.soak import checker, content, history, register
from benchmarks.soak.checker import Rules, check
from benchmarks.soak.content import sum_of, value_in, value_of
from benchmarks.soak.history import FOREVER, Operation, Outcome, Recorder, read_history
from tests.example_count import examples
from tests.table import table

KEY = "a/k"
ATOMIC, REGULAR = Rules("atomic"), Rules("regular")
V1, V2, V3 = (value_of("w", number, 2048) for number in (1, 2, 3))


class History:
    """Operations with times in ms."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(self, kind: str, begin: int, end: int | None, outcome: Outcome, arguments: Any, result: Any) -> None:
        at = len(self.operations)
        end_ns = FOREVER if end is None else end * 10**6
        self.operations.append(Operation(f"c{at}", at, kind, begin * 10**6, end_ns, outcome, arguments, result))

    def put(
        self,
        begin: int,
        end: int | None,
        value: str,
        *,
        outcome: Outcome = "ok",
        version: str = "",
        expected: str | None = "*",
        key: str = KEY,
        error: str = "",
    ) -> History:
        result = {"version": version} if outcome == "ok" and end is not None else {"error": error}
        outcome = outcome if end is not None else "unknown"
        self.add("put", begin, end, outcome, {"key": key, "value": value, "expected": expected}, result)
        return self

    def delete(self, begin: int, end: int | None, *, outcome: Outcome = "ok", error: str = "") -> History:
        outcome = outcome if end is not None else "unknown"
        self.add("delete", begin, end, outcome, {"key": KEY}, {"error": error} if error else {})
        return self

    def read(
        self, begin: int, end: int, value: str | None, *, key: str = KEY, version: str = "", **arguments: Any
    ) -> History:
        size, crc = (None, None) if value is None else sum_of(value, arguments.get("start", 0), arguments.get("length"))
        item = ["ok" if value else "absent", value, size, crc, version]
        self.add("read", begin, end, "ok", {"keys": [key], **arguments}, {"items": [item]})
        return self

    def list(self, begin: int, end: int, *names: tuple[str, str], **arguments: Any) -> History:
        items = [[name, value, ""] for name, value in names]
        self.add("list", begin, end, "ok", {"prefix": "a/", **arguments}, {"items": items})
        return self

    def snapshot(self, begin: int, end: int | None, name: str = "s", outcome: Outcome = "ok") -> History:
        self.add("snapshot", begin, end, outcome if end is not None else "unknown", {"name": name}, {})
        return self

    def kinds(self, rules: Rules) -> list[str]:
        return [wrong.kind for wrong in check(self.operations, rules, killed=lambda _: True).violations]


def test_nothing_of_the_product_is_imported_by_those_who_judge_it() -> None:
    for module in (checker, content, history, register):
        tree = ast.parse(Path(str(module.__file__)).read_text())
        names = [
            *(one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names),
            *(str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)),
        ]
        assert not [name for name in names if name.split(".")[0] in ("ais_loader", "storage_node", "integrations")]


GOOD = {
    "one after the other": History().put(0, 1, V1).read(2, 3, V1).put(4, 5, V2).read(6, 7, V2),
    "a read beside a write finds either": History().put(0, 1, V1).put(2, 9, V2).read(3, 4, V1).read(5, 6, V2),
    "what was killed has no effect": History().put(0, 1, V1).put(2, None, V2).read(3, 4, V1).read(5, 6, V1),
    "what was killed has its effect late": History().put(0, 1, V1).put(2, None, V2).read(3, 4, V1).read(5, 6, V2),
    "what was refused is not there": History().put(0, 1, V1).put(2, 3, V2, outcome="failed").read(4, 5, V1),
    "deleted": History().put(0, 1, V1).delete(2, 3).read(4, 5, None).list(4, 5),
    "deleted by nobody knows whom": History().put(0, 1, V1).delete(2, None).read(4, 5, V1).read(6, 7, None),
    "put on a condition": History().put(0, 1, V1, expected=None).put(2, 3, V2, expected=V1).read(4, 5, V2),
    "conflict": History()
    .put(0, 1, V1)
    .put(2, 3, V2, expected=V1)
    .put(4, 5, V3, expected=V1, outcome="failed", error="version-conflict")
    .read(6, 7, V2),
    "versions": History().put(0, 1, V1, version="1.5.1").put(2, 3, V2, version="1.6.1").read(4, 5, V2, version="1.6.1"),
    "a range": History().put(0, 1, V1).read(2, 3, V1, start=128, length=300),
    "a reader behind": History().put(0, 1, V1).put(2, 3, V2).read(4, 5, V1, beside=True),
    "listed": History().put(0, 1, V1).list(2, 3, (KEY, V1)),
    "a listing beside a deletion": History().put(0, 1, V1).delete(2, 4).list(3, 5),
    "a cut": History()
    .put(0, 1, V1, key="a/1")
    .snapshot(2, 6)
    .put(3, 4, V2, key="a/2")
    .put(7, 8, V3, key="a/1")
    .read(9, 10, V1, key="a/1", snapshot="s")
    .read(9, 10, V2, key="a/2", snapshot="s")
    .read(9, 10, V3, key="a/1"),
    "a snapshot of before": History().put(0, 1, V1).read(2, 3, None, snapshot="old"),
    "equal copies": History()
    .put(0, 1, V1, version="1.1.1")
    .read(9, 10, V1, version="1.1.1", copy="a")
    .read(9, 10, V1, version="1.1.1", copy="b")
    .read(9, 10, None, copy="c"),
}


@table("name", GOOD)
@table("model", ["atomic", "regular"])
def test_a_good_history_passes(name: str, model: register.Model) -> None:
    assert GOOD[name].kinds(Rules(model, slack_s=0.01, copies=2)) == []


def deleted_many(outcome: Outcome, error: str = "") -> History:
    made = History().put(0, 1, V1).put(0, 1, V2, key="a/2")
    made.add("delete_many", 2, 3, "ok", {"keys": [KEY, "a/2"]}, {"items": [(outcome, error), ("ok", "")]})
    return made


def unanswered() -> History:
    made = History().put(0, 1, V1)
    item = ["", "node-unavailable", None, None, None]
    made.add("read", 2, 3, "ok", {"keys": [KEY], "quiet": True}, {"items": [item]})
    return made


BAD = {
    "deleted, and back  ": deleted_many("ok").read(4, 5, V1),
    "lost   ": deleted_many("failed", "object-not-found"),
    "not answered": unanswered(),
    "lost": History().put(0, 1, V1).read(2, 3, None),
    "lost ": History().put(0, 1, V1).delete(2, 3).put(4, 5, V2).read(6, 7, None),
    "stale read": History().put(0, 1, V1).put(2, 3, V2).read(4, 5, V1),
    "listed as it was": History().put(0, 1, V1).put(2, 3, V2).list(4, 5, (KEY, V1)),
    "replaced, and back": History().put(0, None, V1).read(1, 2, V1).put(3, 4, V2).read(5, 6, V2).read(7, 8, V1),
    "deleted, and back": History().put(0, 1, V1).delete(2, 3).read(4, 5, V1),
    "deleted, and back ": History().put(0, 1, V1).delete(2, 3).list(4, 5, (KEY, V1)),
    "took effect twice": History().put(0, None, V1).read(1, 2, V1, version="1.5.1").read(3, 4, V1, version="1.6.1"),
    "later write below": History().put(0, 1, V1, version="1.196609.2").put(2, 3, V2, version="1.196609.1"),
    "two winners": History().put(0, 1, V1).put(2, 5, V2, expected=V1).put(3, 6, V3, expected=V1),
    "lost  ": History().put(0, 1, V1).put(2, 9, V2, expected=None),
    "no order": History().put(0, 1, V1).put(2, 3, V2, expected=V1, outcome="failed", error="version-conflict"),
    "refused, and done": History().put(0, 1, V1, outcome="failed", error="version-conflict").read(2, 3, V1),
    "bytes of nobody": History().read(2, 3, V1),
    "bytes of nobody ": History().read(2, 3, V1).put(4, 5, V1),
    "not listed": History().put(0, 1, V1).list(2, 3),
    "listed twice": History().put(0, 1, V1).list(2, 3, (KEY, V1), (KEY, V1)),
    "listing without order": History()
    .put(0, 1, V1, key="a/1")
    .put(0, 1, V2, key="a/2")
    .list(2, 3, ("a/2", V2), ("a/1", V1)),
    "snapshot is no cut": History().put(0, 1, V1).put(2, 3, V2).snapshot(4, 5).read(6, 7, V1, snapshot="s"),
    # The first of two writes that followed each other is missing, and the second one is there.
    "snapshot is no cut ": History()
    .snapshot(0, 9)
    .put(1, 2, V1, key="a/1")
    .put(3, 4, V2, key="a/2")
    .read(10, 11, None, key="a/1", snapshot="s")
    .read(10, 11, V2, key="a/2", snapshot="s"),
    "snapshot of later": History().snapshot(0, 1).put(2, 3, V1).read(4, 5, V1, snapshot="s"),
    "snapshot of later ": History().put(2, 3, V1).read(4, 5, V1, snapshot="old"),
    "snapshot changed": History()
    .snapshot(0, 9)
    .put(1, 3, V1)
    .read(10, 11, None, snapshot="s")
    .read(12, 13, V1, snapshot="s"),
    "copies differ": History().put(0, 1, V1).put(2, 9, V2).read(3, 8, V1, copy="a").read(3, 8, V2, copy="b"),
    "copies missing": History().put(0, 1, V1).read(2, 3, V1, copy="a").read(2, 3, None, copy="b"),
    "hangs": History().put(0, 200_000, V1),
    "error: closed": History().put(0, 1, V1, outcome="unknown", error="closed"),
}


@table("name", BAD)
def test_a_bad_history_is_found(name: str) -> None:
    found = BAD[name].kinds(Rules("atomic", copies=2))
    assert set(found) == {name.strip()}


@table("name", [name for name in BAD if name not in ("replaced, and back", "took effect twice")])
def test_in_the_regular_model_too(name: str) -> None:
    assert name.strip() in BAD[name].kinds(Rules("regular", copies=2))


def test_only_the_atomic_model_forbids_two_reads_beside_a_write_in_the_wrong_order() -> None:
    turned = History().put(0, 1, V1).put(2, 9, V2).read(3, 4, V2).read(5, 6, V1)
    assert turned.kinds(REGULAR) == []
    assert turned.kinds(ATOMIC) == ["replaced, and back"]


def test_in_the_regular_model_a_write_has_one_version_from_when_it_is_acknowledged() -> None:
    again = History().put(0, 5, V1, version="1.6.1").read(1, 2, V1, version="1.5.1").read(6, 7, V1, version="1.6.1")
    assert again.kinds(REGULAR) == [] and again.kinds(ATOMIC) == ["took effect twice"]
    assert again.read(8, 9, V1, version="1.5.1").kinds(REGULAR) == ["took effect twice"]


def test_an_operation_without_an_end_hangs_unless_its_client_was_killed() -> None:
    open_ended = History().put(0, None, V1).operations
    assert [wrong.kind for wrong in check(open_ended, ATOMIC).violations] == ["hangs"]
    assert check(open_ended, ATOMIC, killed=lambda client: client == "c0").clean


@pytest.mark.parametrize("harm", ["size", "crc"])
def test_bytes_that_are_not_those_of_their_value_are_found(harm: str) -> None:
    (one,) = History().read(2, 3, V1).operations
    item = one.result["items"][0]
    item[2 if harm == "size" else 3] += 1
    found = check([*History().put(0, 1, V1).operations, one], ATOMIC).violations
    assert [wrong.kind for wrong in found] == ["wrong length" if harm == "size" else "torn bytes"]


@table(
    ("item", "found"),
    [
        (["", "node-unavailable", None, None, None], ["not answered"]),
        (["", "corrupt-object", None, None, None], ["not answered", "error: corrupt-object"]),
        (["", "object-not-found", None, None, None], []),
    ],
)
def test_a_read_that_fails_although_a_good_copy_is_there_is_found(item: list[Any], found: list[str]) -> None:
    made = History().put(0, 1, V1)
    made.add("read", 2, 3, "ok", {"keys": [KEY]}, {"items": [item]})
    assert made.kinds(Rules("regular", answers=True)) == found
    assert made.kinds(REGULAR) == found[1:]


# -- the search for an order, against the definition


@st.composite
def small_histories(draw: st.DrawFn) -> History:
    made = History()
    values = [V1, V2, V3]
    put: list[str] = []
    for _ in range(draw(st.integers(1, 6))):
        begin = draw(st.integers(0, 12))
        end = begin + draw(st.integers(1, 6))
        kind = draw(st.sampled_from(["put", "put", "read", "read", "delete", "cas"]))
        if kind in ("put", "cas") and len(put) < len(values):
            value = values[len(put)]
            expected = draw(st.sampled_from([None, *put])) if kind == "cas" else "*"
            made.put(begin, draw(st.sampled_from([end, end, None])), value, expected=expected)
            put.append(value)
        elif kind == "delete":
            made.delete(begin, draw(st.sampled_from([end, end, None])))
        else:
            made.read(begin, end, draw(st.sampled_from([None, *put])))
    return made


def explained(operations: list[Operation]) -> bool:
    """By definition: some order of all that ended, and some of the rest, that agrees with the times."""
    sure = [one for one in operations if one.outcome == "ok"]
    unsure = [one for one in operations if one.outcome == "unknown"]
    for count in range(len(unsure) + 1):
        for some in itertools.combinations(unsure, count):
            for order in itertools.permutations([*sure, *some]):
                if any(later.end_ns < one.begin_ns for at, one in enumerate(order) for later in order[at + 1 :]):
                    continue
                if fits(order):
                    return True
    return False


def fits(order: tuple[Operation, ...]) -> bool:
    there: str | None = None
    for one in order:
        if one.kind == "read":
            if one.result["items"][0][1] != there:
                return False
        elif one.kind == "delete":
            there = None
        else:
            if one.arguments["expected"] not in ("*", there):
                return False
            there = one.arguments["value"]
    return True


@settings(max_examples=examples(250), deadline=None)
@given(small_histories())
def test_a_history_passes_exactly_if_an_order_explains_it(made: History) -> None:
    assert (made.kinds(ATOMIC) == []) == explained(made.operations)


# -- histories on the disk


def test_what_a_killed_process_had_under_way_is_unknown(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "one")
    first = recorder.begin("c", "put", key=KEY, value=V1)
    recorder.end(first, "ok", version="1.1.1")
    recorder.begin("c", "put", key=KEY, value=V2)
    recorder.close()
    with open(tmp_path / "one", "ab") as file:
        file.write(b'{"n":1,"o":"ok"')  # killed in the middle of a line
    done, open_ended = read_history([tmp_path / "one"])
    assert (done.outcome, done.result["version"], done.arguments["value"]) == ("ok", "1.1.1", V1)
    assert (open_ended.outcome, open_ended.end_ns) == ("unknown", FOREVER)


def test_every_block_says_whose_it_is() -> None:
    value = value_of("w12.3", 456, 5000)
    whole = content.content(value)
    assert len(whole) == 5000 and value_in(whole) == value
    assert all(value_in(whole[start : start + 256]) == value for start in range(0, 4700, 17))
    assert content.content(value_of("w12.3", 457, 5000))[128:] != whole[128:]
