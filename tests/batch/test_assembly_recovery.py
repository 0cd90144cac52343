"""What one node does not deliver, another is asked for; with nobody left, entries fail in their place."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ais_loader import errors
from ais_loader.testing import SeededObjects, eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.frame import decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.repair import repair
from tests.node.cluster_kit import BUCKET, Answer, LocalCluster
from tests.node.node_kit import RawSession, batch_of

MiB = 1 << 20
SMALL = SeededObjects({f"s/{at:04d}": (20_000 + at, at) for at in range(240)})
LARGE = SeededObjects({f"l/{at}": (12 * MiB + at, 1000 + at) for at in range(4)})
OBJECTS = LARGE | SMALL
NAMES = list(OBJECTS)
TIMEOUT_S = 12.0
"""Longer than a machine stands still: whoever is not stalled is not silent for so long."""
PATIENT_S = 120.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """Node 0 gathers and owns nothing; nodes 1 and 2 both have everything, in the same versions. Nobody is asked for
    anything twice before the first one asked has failed."""
    with gathering(tmp_path, copies=2, hedge_budget=0.0) as cluster:
        yield cluster
        cluster.settle()


@pytest.fixture
def patient_pair(tmp_path: Path) -> Iterator[LocalCluster]:
    """Where no node is given up for its silence, as any may be silent for a moment on a busy machine."""
    with gathering(tmp_path, copies=2, hedge_budget=0.0, peer_timeout_s=PATIENT_S) as cluster:
        yield cluster
        cluster.settle()


@pytest.fixture
def patient_single(tmp_path: Path) -> Iterator[LocalCluster]:
    with gathering(tmp_path, copies=1, peer_timeout_s=PATIENT_S) as cluster:
        yield cluster
        cluster.settle()


@pytest.fixture
def single(tmp_path: Path) -> Iterator[LocalCluster]:
    """Node 0 gathers and owns nothing; each object is on node 1 or on node 2."""
    with gathering(tmp_path, copies=1) as cluster:
        yield cluster
        cluster.settle()


@contextmanager
def gathering(folder: Path, copies: int, **config: float) -> Iterator[LocalCluster]:
    # Nodes whose process stands still keep their leases, without which they serve nothing of which there are copies.
    settings = {"peer_timeout_s": TIMEOUT_S, "read_lease_s": 120.0, **config}
    with LocalCluster(folder, 3, copies=copies, linked=True, **settings) as cluster:
        cluster.map.node[0].weight = 1e-9
        cluster.view = ClusterView(cluster.map)
        while {cluster.owners(name)[0] for name in LARGE} != {1, 2}:  # what a sender may send at once is no middle
            cluster.map.bucket[0].uuid = uuid.uuid4().bytes
            cluster.view = ClusterView(cluster.map)
        cluster.learn()
        cluster.put(OBJECTS)
        assert {owner for name in NAMES for owner in cluster.owners(name)} == {1, 2}
        yield cluster


def of_first_owner(cluster: LocalCluster, number: int) -> list[int]:
    return [at for at, name in enumerate(NAMES) if cluster.owners(name)[0] == number]


def assert_whole(answer: Answer) -> None:
    assert answer.order == list(range(len(NAMES)))
    assert not any(answer.status.values()), answer.faults
    assert all(answer.data[at] == OBJECTS[name] for at, name in enumerate(NAMES))


def in_the_middle(cluster: LocalCluster, then: Callable[[], None]) -> Answer:
    """Ask for everything, and do something when the first frame is there and the senders are held by credit."""
    with RawSession(cluster.nodes[0].url) as session:
        session.send(1, batch_of(NAMES, ordered=True, credit=1))
        answer = Answer.of([session.receive_frame()])
        then()
        session.send(1, pb.Credit(payload_bytes=1 << 40))
        frames, end = session.answer(1)
        for frame in frames:
            answer.take(frame)
        assert (end.outcome, end.entries) == (pb.End.COMPLETE, len(NAMES))
        return answer


# -- connections


@pytest.mark.slow
@pytest.mark.parametrize("after_bytes", [0, 100_000, 5 * MiB, 20 * MiB])
@pytest.mark.sampled(2)
def test_a_connection_that_breaks_costs_nothing_when_there_is_a_second_copy(
    patient_pair: LocalCluster, after_bytes: int
) -> None:
    patient_pair.links[1].cut_after(after_bytes)
    assert_whole(patient_pair.ask(NAMES))


@pytest.mark.slow
@pytest.mark.parametrize("after_bytes", [100_000, MiB])
def test_a_connection_that_breaks_is_made_again_when_there_is_no_second_copy(
    patient_single: LocalCluster, after_bytes: int
) -> None:
    patient_single.links[1].cut_after(after_bytes)
    assert_whole(patient_single.ask(NAMES))
    assert patient_single.links[1].connections_made >= 2  # one more when the node has asked for a newer map meanwhile


@pytest.mark.slow
def test_connections_that_break_again_and_again_cost_time_only(patient_single: LocalCluster) -> None:
    for _ in range(3):
        for link in patient_single.links[1:]:
            link.cut_after(6 * MiB)
        assert_whole(patient_single.ask(NAMES))


@pytest.mark.slow
def test_a_large_entry_goes_on_at_another_node_in_its_middle(patient_pair: LocalCluster) -> None:
    name = "l/0"
    patient_pair.links[patient_pair.owners(name)[0]].cut_after(7 * MiB)
    with RawSession(patient_pair.nodes[0].url) as session:
        frames, end = session.ask(1, batch_of([name], ordered=True))
    assert b"".join(frame.payload for frame in frames) == LARGE[name]
    assert end.failed_entries == 0
    assert patient_pair.batches(0).resources.recoveries == 1


@pytest.mark.slow
def test_a_node_that_cannot_be_reached_leaves_its_entries_unavailable(single: LocalCluster) -> None:
    single.links[1].refuse()
    gone = of_first_owner(single, 1)
    for _ in range(2):
        answer = single.ask(NAMES)
        assert answer.order == list(range(len(NAMES)))
        assert [at for at in answer.order if answer.status[at]] == gone
        assert {answer.status[at] for at in gone} == {pb.UNAVAILABLE}
        assert all(answer.faults[at].kind == "node-unavailable" for at in gone)
        assert all(answer.data[at] == OBJECTS[NAMES[at]] for at in answer.order if at not in gone)
    assert single.batches(0).resources.soft_errors == 2 * len(gone)


@pytest.mark.slow
def test_a_node_that_is_back_is_asked_again(single: LocalCluster) -> None:
    single.links[1].refuse()
    assert any(single.ask(NAMES).status.values())
    single.links[1].accept()
    eventually(lambda: not any(single.ask(NAMES).status.values()))


@pytest.mark.slow
def test_a_node_that_fails_is_asked_last(pair: LocalCluster) -> None:
    pair.links[1].refuse()
    assert_whole(pair.ask(NAMES))
    recoveries = pair.batches(0).resources.recoveries
    assert recoveries == len(of_first_owner(pair, 1))
    assert_whole(pair.ask(NAMES))
    assert pair.batches(0).resources.recoveries == recoveries


# -- silence


@pytest.mark.slow
def test_a_silent_node_costs_its_time_out_when_there_is_a_second_copy(pair: LocalCluster) -> None:
    pair.ask(NAMES[:20])
    pair.links[1].stall()
    began_s = time.monotonic()
    assert_whole(pair.ask(NAMES))
    assert time.monotonic() - began_s > 0.9 * TIMEOUT_S
    assert pair.batches(0).resources.peer_wait_s > 0.5 * TIMEOUT_S
    pair.links[1].flow()


@pytest.mark.slow
def test_silence_in_the_middle_is_noticed_too(pair: LocalCluster) -> None:
    assert_whole(in_the_middle(pair, pair.links[1].stall))
    pair.links[1].flow()


@pytest.mark.slow
def test_a_silent_node_leaves_its_entries_unavailable_within_the_time_out(single: LocalCluster) -> None:
    answer = in_the_middle(single, single.links[1].stall)
    failed = [at for at in answer.order if answer.status[at]]
    assert failed
    assert set(failed) <= set(of_first_owner(single, 1))
    assert {answer.status[at] for at in failed} == {pb.UNAVAILABLE}
    assert all(answer.data[at] == OBJECTS[NAMES[at]] for at in answer.order if at not in failed)
    single.links[1].flow()


@pytest.mark.slow
def test_a_client_that_does_not_read_for_long_is_no_silence_of_the_peers(single: LocalCluster) -> None:
    def wait() -> None:  # longer than peers may be silent
        threading.Event().wait(1.5 * TIMEOUT_S)

    assert_whole(in_the_middle(single, wait))


@pytest.mark.slow
def test_the_deadline_of_a_request_ends_the_wait_for_a_peer(single: LocalCluster) -> None:
    single.links[1].stall()
    with pytest.raises(errors.SilenceTimeout, match="300 ms"):
        single.ask(NAMES, deadline_ms=300)
    single.links[1].flow()


# -- other holders


@pytest.mark.slow
def test_what_one_copy_lacks_the_other_one_has(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2) as cluster:
        for at, name in enumerate(SMALL):
            cluster.put_on(cluster.owners(name)[at % 2], {name: SMALL[name]})
        answer = cluster.ask([*SMALL, "nope"])
        assert [answer.data[at] for at in range(len(SMALL))] == list(SMALL.values())
        assert answer.status[len(SMALL)] == pb.NOT_FOUND
        cluster.settle()


@pytest.mark.parametrize("state", [cluster_pb.MapNode.JOINING, cluster_pb.MapNode.LEAVING])
def test_while_objects_move_they_are_found_where_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: int
) -> None:
    async def never(*_: object) -> None:
        """The nodes would end the change as soon as they see that they have nothing, before the first object is put."""

    monkeypatch.setattr(repair, "finish", never)
    with LocalCluster(tmp_path, 3, states={2: state}) as cluster:
        assert cluster.view.former is not None
        moved = 0
        for at, name in enumerate(SMALL):
            holders = cluster.holders(name)
            moved += len(holders) > 1
            cluster.put_on(holders[-1] if at % 2 else holders[0], {name: SMALL[name]})
        assert moved > 20
        answer = cluster.ask(list(SMALL))
        assert [answer.data[at] for at in range(len(SMALL))] == list(SMALL.values())
        assert not any(answer.status.values())
        cluster.settle()


@pytest.mark.slow
@pytest.mark.parametrize("joined", [False, True])
def test_a_batch_planned_with_an_old_map_is_planned_again(tmp_path: Path, joined: bool) -> None:
    with LocalCluster(tmp_path, 3, linked=True) as cluster:
        cluster.put(OBJECTS)
        before = {name: cluster.owners(name) for name in NAMES}
        # The others know that node 1 is leaving and where its objects are now; node 0 does not yet.
        cluster.map.version += 1
        cluster.map.node[1].state = cluster_pb.MapNode.LEAVING
        if joined:  # and the nodes have other positions
            cluster.map.node.reverse()
        cluster.view = ClusterView(cluster.map)
        for node in cluster.nodes[1:]:
            node.membership.learn(cluster.map)
        for name in NAMES:
            owner = cluster.view.nodes[cluster.owners(name)[0]].uuid
            number = next(at for at, node in enumerate(cluster.nodes) if node.membership.node_uuid == owner)
            if before[name] != [number]:
                cluster.put_on(number, {name: OBJECTS[name]})
        cluster.await_compared()  # who has become an owner reads nothing out before

        def whole() -> bool:
            """At once, but for what node 0 itself has become the owner of, and compares when it has learnt the map."""
            answer = cluster.ask([*NAMES, "nope"])
            assert answer.order == list(range(len(NAMES) + 1))
            assert answer.status.get(len(NAMES)) in (pb.NOT_FOUND, pb.UNAVAILABLE)
            for at, name in enumerate(NAMES):
                new_owner = cluster.view.nodes[cluster.owners(name)[0]].uuid == cluster.nodes[0].membership.node_uuid
                assert answer.data[at] == OBJECTS[name] or (
                    answer.status[at] == pb.UNAVAILABLE and new_owner and before[name] != [0]
                )
            return answer.status.pop(len(NAMES)) == pb.NOT_FOUND and not any(answer.status.values())

        eventually(whole)
        view = cluster.nodes[0].membership.view
        assert view is not None
        assert view.version >= cluster.map.version  # the node may have left meanwhile
        cluster.settle()


def test_a_damaged_copy_is_replaced_by_a_good_one(patient_pair: LocalCluster, tmp_path: Path) -> None:
    pair = patient_pair
    victims = 0
    for path in (tmp_path / "node-1").rglob("*"):
        if path.is_file() and "objects" in path.parts and 20_000 <= path.stat().st_size < 21_000:
            with path.open("r+b") as file:
                file.seek(5)
                byte = file.read(1)
                file.seek(5)
                file.write(bytes((byte[0] ^ 1,)))
            victims += 1
    assert victims == len(SMALL)
    assert_whole(pair.ask(NAMES))
    assert (
        pair.batches(0).resources.peers.open_sessions == 2
    )  # nobody was given up as silent for the bytes that did not come
    assert not any(pair.batches(0).resources.peers.is_failing(link.url.removeprefix("grpc://")) for link in pair.links)


@pytest.mark.slow
def test_what_nobody_can_say_is_unavailable_and_not_missing(pair: LocalCluster) -> None:
    pair.links[1].refuse()
    answer = pair.ask(["nope/1", "s/0001", "nope/2"])
    assert [answer.status[at] for at in answer.order] == [pb.UNAVAILABLE, pb.OK, pb.UNAVAILABLE]


@pytest.mark.slow
def test_when_no_copy_can_be_reached_all_entries_are_unavailable_in_time(pair: LocalCluster) -> None:
    pair.links[1].refuse()
    pair.links[2].refuse()
    answer = pair.ask(NAMES)
    assert answer.order == list(range(len(NAMES)))
    assert set(answer.status.values()) == {pb.UNAVAILABLE}
    assert pair.batches(0).resources.recoveries == len(NAMES)


# -- limits


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["max_recoveries", "max_soft_errors"])
def test_past_a_limit_the_batch_ends_naming_entries(tmp_path: Path, limit: str) -> None:
    copies = 2 if limit == "max_recoveries" else 1
    with gathering(tmp_path, copies, **{limit: 3}) as cluster:
        cluster.links[1].refuse()
        name = NAMES[of_first_owner(cluster, 1)[0]]
        with pytest.raises(errors.EntryFailed, match=rf"more than 3 entries \({limit}\).*{name}"):
            cluster.ask(NAMES)
        cluster.settle()


@pytest.mark.slow
def test_nodes_whose_batches_wait_for_each_other_serve_each_others_parts(tmp_path: Path) -> None:
    """Each node may have one batch: were the parts counted with them, the two would turn each other away for ever."""
    with LocalCluster(tmp_path, 2, max_active_batches=1) as cluster:
        cluster.put(OBJECTS)
        with RawSession(cluster.nodes[0].url) as first, RawSession(cluster.nodes[1].url) as second:
            for session in (first, second):
                session.send(1, batch_of(NAMES, ordered=True, credit=1))
            answers = [Answer.of([session.receive_frame()]) for session in (first, second)]
            for session, answer in zip((first, second), answers, strict=True):
                session.send(1, pb.Credit(payload_bytes=1 << 40))
                for frame in session.answer(1)[0]:
                    answer.take(frame)
                assert_whole(answer)
        cluster.settle()


@pytest.mark.slow
def test_a_busy_node_is_asked_again_until_it_has_time(tmp_path: Path) -> None:
    with LocalCluster(
        tmp_path, 2, configs={1: {"max_active_batches": 1, "reject_retry_after_ms": 5}}, peer_timeout_s=PATIENT_S
    ) as cluster:
        cluster.put(SMALL)
        there = cluster.names_of(1, SMALL)
        with RawSession(cluster.nodes[0].url) as session:
            for batch_id in range(1, 61):
                session.send(batch_id, batch_of(there, ordered=True))
            ended: dict[int, Answer] = {batch_id: Answer() for batch_id in range(1, 61)}
            whole = 0
            while whole < 60:
                response = decode_response(next(session.call))
                if response.frame is not None:
                    ended[response.batch_id].take(response.frame)
                whole += response.end is not None
        for answer in ended.values():
            assert [answer.data[at] for at in answer.order] == [SMALL[name] for name in there]
        assert cluster.batches(1).node.metrics.rejections["batches"] > 0
        cluster.settle()


# -- connections between nodes


@pytest.mark.slow
def test_batches_share_one_connection_to_each_peer_and_give_it_up_when_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nobody(self: object, *_: object) -> bool:
        return False

    monkeypatch.setattr("storage_node.cluster.map.sync.MapSync._ask", nobody)  # it has connections of its own
    with LocalCluster(tmp_path, 2, linked=True, peer_idle_s=0.3) as cluster:
        cluster.put(SMALL)

        def share_one() -> bool:
            """Unless this process stands still between two of them."""
            before = cluster.links[1].connections_made
            for _ in range(5):
                cluster.ask(list(SMALL))
            return cluster.links[1].connections_made - before <= 1

        eventually(share_one)
        eventually(lambda: (cluster.batches(0).resources.peers.open_sessions, cluster.links[1].connections) == (0, 0))
        before = cluster.links[1].connections_made
        assert not any(cluster.ask(list(SMALL)).status.values())
        assert cluster.links[1].connections_made == before + 1


def test_a_node_stops_while_it_gathers(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, linked=True) as cluster:
        cluster.put(SMALL)
        cluster.links[1].stall()
        with RawSession(cluster.nodes[0].url) as session:
            session.send(1, batch_of(list(SMALL), ordered=True, bucket=BUCKET))
            eventually(lambda: cluster.batches(0).resources.batches.held)
            cluster.nodes[0].stop(grace_s=0.2)
        cluster.links[1].flow()
