"""A node that gathers does not wait for a silent one: what that owes is asked of the next holder as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_assembly_recovery import NAMES, OBJECTS, assert_whole, gathering, in_the_middle

from ais_loader.testing import eventually
from ais_loader.wire.gather.hedging import BURST_ENTRIES
from ais_loader.wire.generated import ais_batch_pb2 as pb
from tests.node.cluster_kit import Answer, LocalCluster
from tests.node.node_kit import RawSession, batch_of

MiB = 1 << 20
LONG_S = 300.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """Node 0 gathers and owns nothing; nodes 1 and 2 both have everything. None is ever given up, and there is a budget
    for as many batches as may find out on a busy machine that one is silent."""
    with gathering(tmp_path, copies=2, peer_timeout_s=LONG_S, hedge_budget=1.0) as cluster:
        yield cluster
        cluster.links[1].flow()
        cluster.settle()


@pytest.mark.slow
def test_the_entries_of_a_silent_node_come_from_the_other_holder(pair: LocalCluster) -> None:
    assert_whole(in_the_middle(pair, pair.links[1].stall))
    service = pair.batches(0)
    assert service.resources.hedging.budget.hedged > 0
    assert service.resources.recoveries == 0  # nobody was given up

    def hedged() -> int:
        before = service.resources.hedging.budget.hedged
        assert_whole(pair.ask(NAMES))
        return service.resources.hedging.budget.hedged - before

    # It is asked last now: no further batch has to find out, unless the other one is slow for a moment.
    eventually(lambda: hedged() == 0)


@pytest.mark.slow
def test_a_node_that_was_silent_is_asked_again_when_it_has_answered(pair: LocalCluster) -> None:
    endpoint = pair.links[1].url.removeprefix("grpc://")
    assert_whole(in_the_middle(pair, pair.links[1].stall))
    assert pair.batches(0).resources.peers.is_failing(endpoint)
    pair.links[1].flow()
    assert_whole(pair.ask(NAMES))
    assert_whole(pair.ask(NAMES))


@pytest.mark.slow
def test_entries_that_come_in_any_order_come_once(pair: LocalCluster) -> None:
    assert_whole(pair.ask(NAMES))  # by a connection that is not made by then, entries would be lost, and not silent
    pair.links[1].stall()
    answer = any_order(pair)
    assert sorted(answer.order) == list(range(len(NAMES)))
    assert not any(answer.status.values())
    assert all(answer.data[at] == OBJECTS[name] for at, name in enumerate(NAMES))
    assert pair.batches(0).resources.hedging.budget.hedged > 0


def any_order(cluster: LocalCluster) -> Answer:
    with RawSession(cluster.nodes[0].url) as session:
        frames, end = session.ask(1, batch_of(NAMES, ordered=False))
    assert (end.outcome, end.entries) == (pb.End.COMPLETE, len(NAMES))
    return Answer.of(frames)


@pytest.mark.slow
def test_a_race_stays_within_the_memory_for_gathering(tmp_path: Path) -> None:
    limit, window = 4 * MiB, MiB
    settings = {"assembly_bytes": limit, "peer_window_bytes": window, "peer_timeout_s": LONG_S}
    with gathering(tmp_path, copies=2, **settings) as cluster:
        held: list[int] = []
        with RawSession(cluster.nodes[0].url) as session:
            session.send(1, batch_of(NAMES, ordered=True, credit=1))
            answer = Answer.of([session.receive_frame()])
            cluster.links[1].stall()
            while len(answer.status) < len(NAMES) or answer.order[-1] != len(NAMES) - 1:
                session.send(1, pb.Credit(payload_bytes=2 * MiB))
                answer.take(session.receive_frame())
                held.append(cluster.batches(0).resources.assembly.held_bytes)
        assert_whole(answer)
        assert cluster.batches(0).resources.hedging.budget.hedged > 0
        senders, frame_bytes = 4, MiB + 64 * 1024
        assert max(held) <= limit + senders * frame_bytes
        cluster.links[1].flow()
        cluster.settle()


@pytest.mark.slow  # some seconds of silence
def test_no_more_is_asked_twice_than_the_budget_allows(tmp_path: Path) -> None:
    share = 0.0005
    with gathering(tmp_path, copies=2, peer_timeout_s=15.0, hedge_budget=share) as cluster:
        assert_whole(in_the_middle(cluster, cluster.links[1].stall))
        service = cluster.batches(0)
        assert 0 < service.resources.hedging.budget.hedged <= share * (BURST_ENTRIES + len(NAMES))
        assert service.resources.recoveries > 0  # the rest waited until it was given up
        cluster.links[1].flow()
        cluster.settle()
