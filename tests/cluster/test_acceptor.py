"""What one node promises, accepts and answers, whatever comes in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.consensus.acceptor import (
    AcceptorState,
    MapRefused,
    accept,
    ballot_order,
    learn,
    merged,
    prepare,
)
from tests.example_count import examples

OURS, OTHERS = b"o" * 16, b"x" * 16


def ballot(number: int, proposer: bytes = b"p") -> pb.Ballot:
    return pb.Ballot(number=number, proposer=proposer)


def map_of(version: int, number: int, cluster: bytes = OURS) -> pb.ClusterMap:
    return pb.ClusterMap(cluster_uuid=cluster, version=version, ballot=ballot(number))


def promised(state: AcceptorState, number: int, cluster: bytes = OURS) -> tuple[AcceptorState, pb.PrepareResponse]:
    return prepare(state, pb.PrepareRequest(cluster_uuid=cluster, ballot=ballot(number)))


def accepted(state: AcceptorState, map_: pb.ClusterMap) -> tuple[AcceptorState, pb.AcceptResponse]:
    return accept(state, pb.AcceptRequest(map=map_))


def test_a_promise_keeps_lower_ballots_out() -> None:
    state, answer = promised(AcceptorState(), 5)
    assert answer.promised and not answer.HasField("accepted")
    for lower in (1, 4):
        after, answer = promised(state, lower)
        assert after == state and not answer.promised and answer.promise == ballot(5)
        after, answer = accepted(state, map_of(1, lower))
        assert after == state and not answer.accepted and answer.promise == ballot(5)
    assert accepted(state, map_of(1, 5))[1].accepted
    assert promised(state, 6)[1].promised


def test_proposers_with_the_same_number_are_told_apart() -> None:
    state, _ = prepare(AcceptorState(), pb.PrepareRequest(ballot=ballot(3, b"b")))
    assert not prepare(state, pb.PrepareRequest(ballot=ballot(3, b"a")))[1].promised
    assert prepare(state, pb.PrepareRequest(ballot=ballot(3, b"b")))[1].promised, "a request that came twice"
    assert prepare(state, pb.PrepareRequest(ballot=ballot(3, b"c")))[1].promised


def test_to_accept_is_to_promise() -> None:
    state, _ = promised(AcceptorState(), 3)
    state, answer = accepted(state, map_of(1, 5))
    assert answer.accepted and state.promise == ballot(5)
    after, answer = accepted(state, map_of(1, 4))
    assert after == state and not answer.accepted


def test_what_was_accepted_last_is_told_with_its_ballot() -> None:
    state, _ = accepted(AcceptorState(), map_of(1, 5))
    state, _ = accepted(state, map_of(1, 7))
    _, answer = promised(state, 8)
    assert answer.accepted == map_of(1, 7)


def test_a_version_is_accepted_only_on_top_of_the_one_that_is_known() -> None:
    state = learn(AcceptorState(), map_of(3, 5))
    for version, expected in ((2, False), (3, False), (4, True), (5, False)):
        assert accepted(state, map_of(version, 9))[1].accepted is expected
    newer, _ = accepted(AcceptorState(), map_of(4, 5))
    assert not accepted(newer, map_of(3, 9))[1].accepted, "a node that is only joining does not go back either"


def test_a_committed_map_replaces_what_it_decides_and_no_more() -> None:
    state, _ = accepted(learn(AcceptorState(), map_of(1, 1)), map_of(2, 5))
    assert learn(state, map_of(1, 9)) == state
    assert learn(state, map_of(2, 4)) == AcceptorState(ballot(5), None, map_of(2, 4))
    assert learn(state, map_of(7, 8)) == AcceptorState(ballot(8), None, map_of(7, 8))
    state, _ = accepted(learn(AcceptorState(), map_of(2, 4)), map_of(3, 5))
    assert learn(state, map_of(2, 6)).accepted == map_of(3, 5)


def test_a_node_of_a_cluster_answers_no_other() -> None:
    state = learn(AcceptorState(), map_of(1, 1))
    for call in (
        lambda: promised(state, 9, OTHERS),
        lambda: promised(state, 9, b""),
        lambda: accepted(state, map_of(2, 9, OTHERS)),
        lambda: learn(state, map_of(2, 9, OTHERS)),
    ):
        with pytest.raises(MapRefused, match=OURS.hex()):
            call()


def test_a_node_that_may_be_in_a_cluster_joins_no_other() -> None:
    joining, _ = accepted(AcceptorState(), map_of(5, 5))
    with pytest.raises(MapRefused):
        promised(joining, 9, OTHERS)
    with pytest.raises(MapRefused):
        accepted(joining, map_of(1, 9, OTHERS))
    making, _ = accepted(AcceptorState(), map_of(1, 5))
    with pytest.raises(MapRefused):
        accepted(making, map_of(2, 9, OTHERS))
    assert accepted(making, map_of(1, 9, OTHERS))[1].accepted, "ballots decide which of two is made"


class AcceptorWithDrives(RuleBasedStateMachine):
    """Three drives, of which a write reaches two at least, and a start that finds two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.drives = [AcceptorState()] * 3
        self.state = AcceptorState()
        self.highest_answered = ballot_order(None)
        self.highest_committed = 0
        self.accepted: dict[int, tuple[int, bytes]] = {}

    def keep(self, state: AcceptorState, missed: int) -> None:
        self.drives = [self.drives[at] if at == missed else state for at in range(3)]
        self.state = state

    @rule(number=st.integers(0, 6), missed=st.integers(0, 3))
    def prepare(self, number: int, missed: int) -> None:
        before = self.state
        state, answer = promised(before, number)
        self.keep(state, missed)
        assert answer.promised == (ballot_order(ballot(number)) >= self.highest_answered)
        if answer.promised and answer.accepted.version > self.highest_committed:
            assert ballot_order(answer.accepted.ballot) == self.accepted[answer.accepted.version]

    @rule(version=st.integers(1, 5), number=st.integers(0, 6), missed=st.integers(0, 3))
    def accept(self, version: int, number: int, missed: int) -> None:
        state, answer = accepted(self.state, map_of(version, number))
        self.keep(state, missed)
        if answer.accepted:
            assert ballot_order(ballot(number)) >= self.highest_answered
            assert self.highest_committed in (0, version - 1)
            self.accepted[version] = ballot_order(ballot(number))

    @rule(version=st.integers(1, 5), number=st.integers(0, 6), missed=st.integers(0, 3))
    def learn(self, version: int, number: int, missed: int) -> None:
        self.keep(learn(self.state, map_of(version, number)), missed)
        self.highest_committed = max(self.highest_committed, version)

    @rule(absent=st.integers(0, 3))
    def restart(self, absent: int) -> None:
        found = merged([drive for at, drive in enumerate(self.drives) if at != absent])
        assert found == self.state, "nothing that was answered is forgotten"

    @invariant()
    def a_promise_is_never_lowered(self) -> None:
        assert ballot_order(self.state.promise) >= self.highest_answered
        self.highest_answered = ballot_order(self.state.promise)
        assert (self.state.committed.version if self.state.committed is not None else 0) == self.highest_committed


TestAcceptorWithDrives = AcceptorWithDrives.TestCase
TestAcceptorWithDrives.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
