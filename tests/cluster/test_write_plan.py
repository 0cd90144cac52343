"""What becomes of a write, whatever its replicas report, in whatever order, and whoever of them is lost."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ais_loader.errors import DriveFull, LoaderError, ObjectNotFound, VersionConflict, WriteTooLate
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from storage_node.cluster.replication.write_plan import (
    NOTHING,
    Answer,
    PendingWrite,
    ReplicaSet,
    WritePlan,
    judged,
    nonparticipants,
    plan_write,
)
from storage_node.context.errors import ReplicaLost, TooFewCopies
from storage_node.store.drive.preconditions import Condition, after, done_before, memory_of
from storage_node.store.format import CatalogEntry, Version

NAME, BUCKET_UUID = "name", b"b" * 16
MINE = b"m" * 16
IDS = [b"", b"o" * 16, b"p" * 16, MINE]
NOW_NS = 10**12


class Case(NamedTuple):
    """A map, and what its nodes have of the name."""

    replica_set: ReplicaSet
    entries: dict[int, CatalogEntry | None]
    answers: list[int]
    """The nodes that answer."""

    def write(self, nodes: Sequence[int] | None = None, **how: object) -> PendingWrite:
        """A write that the first of these nodes take part in; what all others know is reported as of former owners."""
        ranking = self.replica_set.rankings([NAME])[0]
        write = PendingWrite(self.replica_set, NAME, ranking, **how)  # type: ignore[arg-type]
        taking = [node for node in ranking if node in self.answers][: self.replica_set.bucket.copies]
        for node in self.answers if nodes is None else nodes:
            entry = self.entries[node]
            if node in taking and not write.is_deletion:
                write.stage(node, 3, 7, entry.version if entry is not None else None, entry)
            else:
                write.report(node, entry)
                write.taking += [node] if node in taking else []
        return write


@st.composite
def histories(draw: st.DrawFn) -> list[CatalogEntry]:
    """The entries of one name, each of which remembers those before it."""
    entries: list[CatalogEntry] = []
    for write_id in draw(st.lists(st.sampled_from(IDS), max_size=5)):
        last = entries[-1].version if entries else Version(1, 0)
        epoch = last.epoch + draw(st.integers(0, 1))
        version = Version(epoch, last.counter + draw(st.integers(1, 3)), draw(st.integers(0, 3)))
        path = b"" if draw(st.booleans()) else b"elsewhere"
        made = CatalogEntry(*version, 3, 7, NOW_NS - 10**9 + len(entries), 0, path, b"")
        before = entries[-1:] if draw(st.booleans()) else []
        entries.append(made._replace(writes=after(before, memory_of(write_id), made.modified_ns)))
    return entries


@functools.cache
def view_of(size: int, copies: int, min_copies: int) -> ClusterView:
    map_ = cluster_pb.ClusterMap(cluster_uuid=b"c" * 16, version=7)
    for at in range(size):
        map_.node.add(uuid=bytes([48 + at]) * 16, number=at + 10, host=f"h{at}", endpoint=f"h{at}:1", weight=1.0)
    map_.bucket.add(name="b", uuid=BUCKET_UUID, copies=copies, min_copies=min_copies)
    return ClusterView(map_)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(st.integers(1, 5))
    copies = draw(st.integers(1, size))
    view = view_of(size, copies, draw(st.integers(1, copies)))
    entries = [None, *draw(histories())]
    held = {at: draw(st.sampled_from(entries)) for at in range(size)}
    answering = draw(st.lists(st.sampled_from(range(size)), unique=True))
    return Case(ReplicaSet(view, view.buckets["b"], draw(st.integers(0, size - 1))), held, answering)


def issue(seen: Sequence[Version], clock: int) -> Version:
    """As the version clock of a store does."""
    counter = max([clock, *(version.counter for version in seen)])
    return Version(max([1, *(version.epoch for version in seen)]), counter + 1, 9)


def planned(write: PendingWrite, clock: int = 0) -> WritePlan | LoaderError:
    found = plan_write(write, clock, NOW_NS, issue)
    if isinstance(found, WritePlan):
        write.plan = found
    return found


@given(cases(), st.booleans(), st.integers(0, 99))
def test_the_version_is_above_all_that_was_reported(case: Case, deletes: bool, clock: int) -> None:
    write = case.write(is_deletion=deletes)
    plan = planned(write, clock)
    if isinstance(plan, WritePlan):
        reported = [entry.version for node in case.answers if (entry := case.entries[node]) is not None]
        assert all(version < plan.version for version in reported) and clock < plan.version.counter
        assert all(node in case.answers for node in plan.commits)
        assert set(write.taking) <= set(plan.commits)
    else:
        assert len(write.taking) < case.replica_set.min_copies


@given(cases(), st.booleans(), st.randoms(use_true_random=False))
def test_the_order_of_the_reports_does_not_matter(case: Case, deletes: bool, order: object) -> None:
    shuffled = list(case.answers)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    condition = Condition(write_id=b"n" * 16)
    one = planned(case.write(is_deletion=deletes, condition=condition))
    other = planned(case.write(shuffled, is_deletion=deletes, condition=condition))
    assert one == other or str(one) == str(other)


@pytest.mark.slow
@given(cases(), st.booleans())
def test_every_node_that_may_have_an_older_copy_either_commits_or_is_told(case: Case, deletes: bool) -> None:
    write = case.write(is_deletion=deletes)
    plan = planned(write)
    assume(isinstance(plan, WritePlan))
    assert isinstance(plan, WritePlan)
    nodes = case.replica_set.view.nodes
    told = {uuid for uuid, _, _ in nonparticipants(case.replica_set.view, {write: plan.commits})}
    commits = {nodes[at].uuid for at in plan.commits}
    assert not told & commits
    concerned = case.replica_set.view.concerned(case.replica_set.bucket, [NAME])[0]
    assert {nodes[at].uuid for at in concerned} <= told | commits


def any_answer(data: st.DataObject) -> Answer:
    lost = [ReplicaLost("no answer"), ReplicaLost("full", DriveFull("full")), ReplicaLost("late", WriteTooLate("late"))]
    return data.draw(st.sampled_from([None, None, None, Version(1, 5, 2), *lost]))


@pytest.mark.slow
@given(cases(), st.booleans(), st.booleans(), st.booleans(), st.data())
def test_only_enough_commits_of_one_attempt_are_a_success(
    case: Case, deletes: bool, conditional: bool, told: bool, data: st.DataObject
) -> None:
    write = case.write(is_deletion=deletes)
    if conditional:
        write.not_above = max(write.seen, default=NOTHING)
    plan = planned(write)
    assume(isinstance(plan, WritePlan))
    assert isinstance(plan, WritePlan)
    assert plan.first == (case.replica_set.position if conditional else None)
    done: dict[int, Answer] = {}
    for node in sorted(plan.commits, key=lambda node: node != plan.first):
        if write.settled is None:
            done[node] = any_answer(data)
            write.record(node, done[node])
    write.conclude(told)
    committed = [node for node, answer in done.items() if answer is None]
    overtaken = [node for node, answer in done.items() if isinstance(answer, Version)]
    assert write.committed == committed
    if isinstance(write.settled, pb.ObjectInfo):
        enough = overtaken if overtaken else committed
        assert len(set(enough) & set(write.taking)) >= case.replica_set.min_copies or overtaken
        assert len(enough) >= case.replica_set.min_copies and not (overtaken and committed)
        assert told
        assert write.settled.version == str(plan.version if committed else Version(1, 5, 2))
    else:
        assert isinstance(write.settled, LoaderError)
        if committed:  # it must not look as if nothing had been changed
            assert type(write.settled) is TooFewCopies and "others may be changed already" in str(write.settled)


@given(cases(), st.booleans(), st.sampled_from(["absent", "version"]), st.integers(0, 9))
def test_a_condition_that_does_not_hold_changes_nothing(case: Case, deletes: bool, kind: str, counter: int) -> None:
    newest = max((entry for entry in case.entries.values() if entry), key=lambda entry: entry.version, default=None)
    there = newest is not None and not newest.is_tombstone
    wanted = newest.version if newest is not None and counter % 2 else Version(1, counter)
    condition = Condition(if_absent=True) if kind == "absent" else Condition(if_version=wanted)
    write = case.write(is_deletion=deletes, condition=condition)
    write.decide(case.entries[case.replica_set.position], newest, 0)
    assert newest is None or kind == "absent" or wanted == newest.version or write.settled is not None
    if not there if kind == "absent" else there and newest is not None and newest.version == wanted:
        assert write.settled is None and write.not_above == (newest.version if newest is not None else NOTHING)
        plan = planned(write)
        if isinstance(plan, WritePlan):
            assert (plan.first, plan.not_above) == (case.replica_set.position, write.not_above)
            write.record(plan.commits[0] if plan.first is None else plan.first, ReplicaLost("x", VersionConflict("x")))
            assert isinstance(write.settled, VersionConflict) and not write.committed
        else:
            assert case.replica_set.position not in write.taking or len(write.taking) < case.replica_set.min_copies
    else:
        assert isinstance(write.settled, VersionConflict)


@given(cases(), st.booleans())
def test_a_first_try_ends_where_its_repeat_was_committed(case: Case, deletes: bool) -> None:
    write = case.write(is_deletion=deletes, condition=Condition(write_id=MINE))
    knows = [entry for entry in write.before if done_before(write.condition, entry) is not None]
    write.check(None, case.replica_set.view)
    if knows:
        assert write.settled is not None
        is_done = len(knows) >= case.replica_set.min_copies and len(write.taking) >= case.replica_set.min_copies
        assert isinstance(write.settled, pb.ObjectInfo) == is_done
    elif len(write.taking) >= case.replica_set.min_copies:
        assert write.settled is None


@given(cases(), st.booleans())
def test_a_repeat_of_what_was_replaced_since_does_not_run_again(case: Case, deletes: bool) -> None:
    condition = Condition(write_id=MINE, began_ns=NOW_NS)
    write = case.write(is_deletion=deletes, condition=condition)
    found = {node: case.entries[node] for node in case.answers}
    silent = {node + 10: "no answer" for node in case.entries if node not in found}
    outcome = judged("b/name", condition, found, silent, write.owners)
    write.resolve(outcome)
    entries = [entry for entry in found.values() if entry is not None]
    done = [past for entry in entries if (past := done_before(condition, entry)) is not None]
    newest = max(entries, key=lambda entry: entry.version, default=None)
    if done and newest is not None and newest.write_id != MINE:
        assert isinstance(write.settled, pb.ObjectInfo)
        assert write.settled.version == str(max(entry.version for entry in done))
    if write.settled is None and isinstance(plan := planned(write), WritePlan):
        assert all(entry.version < plan.version for entry in entries)
        assert plan.known == max((entry.version for entry in done), default=None)


@given(cases())
def test_a_deletion_finds_nothing_only_if_no_owner_has_anything(case: Case) -> None:
    write = case.write(is_deletion=True, condition=Condition(write_id=b"n" * 16))
    if write.is_of_nothing:
        write.fail_as_not_found("none")
        having = [entry for node in case.answers if (entry := case.entries[node]) is not None]
        newest = max(having, key=lambda entry: entry.version, default=None)
        assert newest is None or newest.is_tombstone
        assert isinstance(write.settled, ObjectNotFound) == all(node in case.answers for node in write.owners)
    assert not replace(write, is_deletion=False).is_of_nothing
