"""A batch gathered from several nodes: a client of one of them gets what one node with everything would send."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ais_loader import errors
from ais_loader.testing import SeededObjects, eventually, throwaway_folder
from ais_loader.wire.answer_check import digest
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import decode_response
from ais_loader.wire.generated import ais_batch_pb2 as pb
from tests.node.cluster_kit import BUCKET, Answer, LocalCluster
from tests.node.node_kit import RawSession, batch_of, columns
from tests.table import table

MiB = 1 << 20
SMALL = SeededObjects({f"s/{at:04d}": (20_000 + at, at) for at in range(300)})
LARGE = SeededObjects({f"l/{at}": (9 * MiB + at, 1000 + at) for at in range(6)})
MIDDLE = SeededObjects({f"m/{at}": (1_500_000 + at, 2000 + at) for at in range(6)})
OBJECTS = LARGE | MIDDLE | SMALL


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with throwaway_folder() as folder, LocalCluster(folder, 3, spread=LARGE) as cluster:
        cluster.put(OBJECTS)
        yield cluster


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").settle()


def mixed(seed: int = 0, count: int = len(OBJECTS)) -> list[str]:
    order = np.random.default_rng(seed).permutation(len(OBJECTS))[:count]
    names = list(OBJECTS)
    return [names[at] for at in order]


def assert_whole(answer: Answer, names: list[str], first_index: int = 0) -> None:
    assert answer.order == list(range(first_index, first_index + len(names)))
    assert set(answer.status.values()) <= {pb.OK}
    for at, name in enumerate(names, first_index):
        assert answer.data[at] == OBJECTS[name], name


# -- order, bytes, END


def test_entries_of_all_nodes_come_in_request_order_with_their_bytes(cluster: LocalCluster) -> None:
    before = cluster.batches(0).resources.batches_assembled
    names = mixed(1)
    assert_whole(cluster.ask(names), names)
    assert cluster.batches(0).resources.batches_assembled == before + 1
    assert [cluster.batches(number).resources.batches_assembled for number in (1, 2)] == [0, 0]


def test_every_node_can_be_the_one_that_gathers(cluster: LocalCluster) -> None:
    names = mixed(2, 50)
    for node in cluster.nodes:
        with RawSession(node.url) as session:
            frames, end = session.ask(1, batch_of(names, ordered=True))
            assert_whole(Answer.of(frames), names)
            assert (end.outcome, end.entries) == (pb.End.COMPLETE, 50)


@pytest.mark.slow
def test_end_counts_and_digest_are_those_of_a_node_that_has_everything(cluster: LocalCluster) -> None:
    names = [*mixed(3, 100), "nope", *LARGE]
    with RawSession(cluster.nodes[0].url) as session:
        frames, end = session.ask(1, batch_of(names, ordered=True, first_index=70))
    checksum = [crc32c(OBJECTS[name]) if name in OBJECTS else 0 for name in names]
    status = [pb.OK if name in OBJECTS else pb.NOT_FOUND for name in names]
    assert end.digest == digest(np.array(status, np.uint8), np.array(checksum, np.uint32))
    assert (end.first_index, end.entries, end.failed_entries) == (70, len(names), 1)
    assert end.payload_bytes == sum(len(OBJECTS[name]) for name in names if name in OBJECTS)
    assert Answer.of(frames).order == list(range(70, 70 + len(names)))


def test_the_same_entry_twice_is_delivered_twice(cluster: LocalCluster) -> None:
    names = [*list(SMALL)[:40], *list(SMALL)[:40], "l/0", "l/0"]
    assert_whole(cluster.ask(names), names)


@pytest.mark.slow
def test_ranges_go_to_the_node_that_has_the_object(cluster: LocalCluster) -> None:
    names = [*LARGE, *list(SMALL)[:30]]
    start = [at * 7 for at in range(len(names))]
    length = [-1 if at % 3 == 0 else 1000 + at for at in range(len(names))]
    for verify in (False, True):
        answer = cluster.ask(names, start=start, length=length, verify_ranges=verify)
        for at, name in enumerate(names):
            stop = None if length[at] < 0 else start[at] + length[at]
            assert answer.data[at] == OBJECTS[name][start[at] : stop]


def test_entries_of_several_buckets_are_placed_each_by_its_own(cluster: LocalCluster) -> None:
    names = ["s/0001", "s/0002", "l/1", "s/0003"]
    request = pb.BatchRequest(bucket=["nowhere", BUCKET], bucket_index=[1, 0, 1, 1], name=names, ordered=True)
    answer = Answer.of(cluster.transport.open_batch(request, timeout_s=180.0))
    assert [answer.status[at] for at in range(4)] == [pb.OK, pb.NOT_FOUND, pb.OK, pb.OK]
    assert answer.faults[1].kind == "bucket-not-found"
    assert [answer.data[at] for at in (0, 2, 3)] == [OBJECTS["s/0001"], OBJECTS["l/1"], OBJECTS["s/0003"]]


def test_ten_thousand_entries_are_one_answer(cluster: LocalCluster) -> None:
    every = list(SMALL)
    names = [every[at % len(every)] for at in range(10_000)]
    answer = cluster.ask(names, start=[at % 100 for at in range(10_000)], length=[50 + at % 7 for at in range(10_000)])
    assert answer.order == list(range(10_000))
    for at, name in enumerate(names):
        assert answer.data[at] == SMALL[name][at % 100 : at % 100 + 50 + at % 7]


def test_an_empty_batch_ends_at_once(cluster: LocalCluster) -> None:
    with RawSession(cluster.nodes[0].url) as session:
        assert session.ask(1, batch_of([], ordered=True)) == ([], pb.End())


def test_the_first_bytes_go_out_before_the_last_entry_is_ready(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, linked=True, peer_timeout_s=180.0) as cluster:
        cluster.put(SMALL)
        here, there = cluster.names_of(0, SMALL), cluster.names_of(1, SMALL)
        cluster.links[1].stall()
        with RawSession(cluster.nodes[0].url) as session:
            session.send(1, batch_of([*here, *there], ordered=True))
            frames = [session.receive_frame()]
            assert frames[0].index[0] == 0
            cluster.links[1].flow()
            rest, _ = session.answer(1)
        answer = Answer.of(frames + rest)
        assert answer.order == list(range(len(SMALL)))
        assert [answer.data[at] for at in answer.order] == [SMALL[name] for name in [*here, *there]]


# -- failures in their place


def test_what_fails_does_so_in_its_place_with_its_reason(cluster: LocalCluster) -> None:
    names = ["s/0001", "nope/1", "s/0002", "nope/2", "s/0003", "l/0"]
    answer = cluster.ask(names, start=[0, 0, 10**9, 0, 0, 5], length=[-1] * 6)
    assert answer.order == list(range(6))
    assert [answer.status[at] for at in range(6)] == [pb.OK, pb.NOT_FOUND, pb.RANGE, pb.NOT_FOUND, pb.OK, pb.OK]
    assert "nope/1" in answer.faults[1].message
    assert "past the end" in answer.faults[2].message
    assert answer.data[5] == OBJECTS["l/0"][5:]


def test_fail_fast_ends_with_the_first_failure_in_request_order(cluster: LocalCluster) -> None:
    names = [*mixed(4, 60), "nope/1", *mixed(5, 60), "nope/2"]
    with RawSession(cluster.nodes[0].url) as session:
        frames, end = session.ask(1, batch_of(names, ordered=True, fail_fast=True))
    index, _, status, expected = columns([frame for frame in frames if frame.completes_entry])
    assert (index, status) == (list(range(61)), [pb.OK] * 60 + [pb.NOT_FOUND])
    assert (end.outcome, end.entries, end.failed_entries, end.digest) == (pb.End.STOPPED, 61, 1, expected)


def test_a_client_that_wants_all_or_nothing_gets_the_error_of_the_first_failure(cluster: LocalCluster) -> None:
    stream = cluster.transport.open_batch(
        pb.BatchRequest(bucket=[BUCKET], name=["s/0001", "nope"], ordered=True, fail_fast=True), timeout_s=180.0
    )
    answer = Answer.of(stream)
    assert [answer.status[at] for at in answer.order] == [pb.OK, pb.NOT_FOUND]


@table("fields", [{"start": [0]}, {"bucket_index": [1, 1]}, {"version": ["x"]}], ids=str)
def test_a_request_that_does_not_fit_together_is_refused_as_a_whole(
    cluster: LocalCluster, fields: dict[str, list[int]]
) -> None:
    with pytest.raises(errors.InvalidRequest):
        cluster.ask(["s/0001", "s/0002"], **fields)


# -- other ways out


@pytest.mark.slow
def test_in_any_order_every_entry_comes_once_and_the_digest_is_the_same(cluster: LocalCluster) -> None:
    names = [*mixed(6, 200), "nope", "l/0", "l/1", "l/2"]
    names = list(dict.fromkeys(names))
    with RawSession(cluster.nodes[0].url) as session:
        _, ordered = session.ask(1, batch_of(names, ordered=True))
        frames, end = session.ask(2, batch_of(names, ordered=False))
    answer = Answer.of(frames)
    assert sorted(answer.order) == list(range(len(names)))
    assert all(answer.data[at] == OBJECTS.get(name, b"") for at, name in enumerate(names))
    assert end == ordered


@pytest.mark.slow
def test_in_any_order_nobody_waits_for_a_slow_node(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, linked=True, peer_timeout_s=180.0) as cluster:
        cluster.put(SMALL)
        here, there = cluster.names_of(0, SMALL), cluster.names_of(1, SMALL)
        cluster.links[1].stall()
        with RawSession(cluster.nodes[0].url) as session:
            session.send(1, batch_of([*there, *here], ordered=False))
            frames, count = [], 0
            while count < len(here):
                frames.append(session.receive_frame())
                count += len(frames[-1].index)
            assert min(int(frame.index.min()) for frame in frames) == len(there)
            cluster.links[1].flow()
            rest, _ = session.answer(1)
        assert sorted(Answer.of(frames + rest).order) == list(range(len(SMALL)))


@pytest.mark.slow
def test_an_answer_can_be_collected_before_it_is_sent(cluster: LocalCluster) -> None:
    names = mixed(7, 150)
    assert_whole(cluster.ask(names, buffered=True), names)


def test_an_answer_too_large_to_be_collected_is_refused(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, max_buffered_bytes=100_000) as cluster:
        cluster.put(SMALL)
        with pytest.raises(errors.InvalidRequest, match="streaming=True"):
            cluster.ask(list(SMALL), buffered=True)
        cluster.settle()


# -- credit and memory

SMALLEST = [(1, 1, True), (1, 200_000, False), (50_000, 1, False), (3 * MiB, 200_000, True)]
"""Window, budget, and whether in order: each value at least once."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "budget", "ordered"),
    [
        case if case in SMALLEST else pytest.param(*case, marks=pytest.mark.exhaustive)
        for case in itertools.product([1, 50_000, 3 * MiB], [1, 200_000], [True, False])
    ],
)
@pytest.mark.sampled(2)
def test_however_small_the_budgets_are_every_batch_comes_to_its_end(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, window: int, budget: int, ordered: bool
) -> None:
    service = cluster.batches(0)
    config = type(service.node.config)(port=0, peer_window_bytes=window)
    monkeypatch.setattr(service.node, "config", config)
    monkeypatch.setattr(service.resources.assembly, "limit_bytes", budget)
    names = [*mixed(8, 120), *LARGE]
    with RawSession(cluster.nodes[0].url) as session:
        for batch_id in range(3):  # side by side they share the budget
            session.send(batch_id, batch_of(names, ordered=ordered))
        answers, ended, asked = [Answer() for _ in range(3)], 0, 3
        rejected: list[int] = []
        while ended < 3:
            response = decode_response(next(session.call))
            answer = answers[response.batch_id % 3]
            if response.reject is not None:
                rejected.append(response.batch_id % 3)
            if response.frame is not None:
                answer.take(response.frame)
            ended += response.end is not None
            if rejected and (response.reject is None or len(rejected) + ended == 3):
                # Comes back as another batch, when others have moved on.
                asked += 3
                session.send(asked + rejected.pop(0), batch_of(names, ordered=ordered))
    for answer in answers:
        assert sorted(set(answer.order)) == list(range(len(names)))
        assert all(answer.data[at] == OBJECTS[name] for at, name in enumerate(names))


@pytest.mark.slow
def test_a_client_that_takes_nothing_bounds_what_its_peers_send(cluster: LocalCluster) -> None:
    service = cluster.batches(0)
    names = [*LARGE, *MIDDLE] * 3
    with RawSession(cluster.nodes[0].url) as session:
        session.send(1, batch_of(names, ordered=True, credit=1))
        session.receive_frame()
        window = 3 * service.node.config.reads.peer_window_bytes

        def held() -> int:
            return service.resources.assembly.held_bytes

        eventually(lambda: held() > window // 2)
        assert held() <= window + 4 * 4 * MiB
        session.send(1, pb.Credit(payload_bytes=1 << 40))
        _, end = session.answer(1)
        assert end.entries == len(names)


@pytest.mark.slow
def test_cancelling_in_the_middle_frees_the_memory_of_all_nodes(cluster: LocalCluster) -> None:
    names = [*LARGE, *MIDDLE] * 3
    with RawSession(cluster.nodes[0].url) as session:
        session.send(1, batch_of(names, ordered=True, credit=1))
        session.receive_frame()
        eventually(lambda: sum(cluster.batches(number).resources.parts.held for number in (1, 2)))
        session.send(1, pb.Cancel())
        cluster.settle()
        frames, _ = session.ask(2, batch_of(names[:4], ordered=True))
        assert_whole(Answer.of(frames), names[:4])


def test_a_client_that_vanishes_in_the_middle_leaves_nothing_behind(cluster: LocalCluster) -> None:
    with RawSession(cluster.nodes[0].url) as session:
        session.send(1, batch_of([*LARGE, *MIDDLE] * 3, ordered=True, credit=1))
        session.receive_frame()
    cluster.settle()


@pytest.mark.slow
def test_end_in_the_hands_of_a_client_that_leaves_at_once_leaves_nothing_behind(cluster: LocalCluster) -> None:
    for at in range(30):
        with RawSession(cluster.nodes[0].url) as session:
            session.ask(1, batch_of(mixed(at, 20), ordered=True))
    cluster.settle()


# -- going on where an answer broke off


@pytest.mark.slow
@table("offset", [1, MiB, 9 * MiB - 1])
@table("number", [0, 1, 2])
def test_a_large_entry_goes_on_from_where_it_broke_off(cluster: LocalCluster, offset: int, number: int) -> None:
    name = cluster.names_of(number, LARGE)[0]
    data = OBJECTS[name]
    names = [name, *mixed(9, 30)]
    with RawSession(cluster.nodes[0].url) as session:
        first = session.ask(1, batch_of([name], ordered=True))[0][0]
        assert first.piece is not None
        request = batch_of(
            names,
            ordered=True,
            first_index=70,
            resume_offset=offset,
            resume_checksum=crc32c(data[:offset]),
            resume_version=first.piece.version,
        )
        frames, end = session.ask(2, request)
    assert frames[0].piece is not None
    assert (frames[0].piece.offset, frames[0].piece.entry_size) == (offset, len(data))
    answer = Answer.of(frames)
    assert answer.order == list(range(70, 101))
    assert answer.data[70] == data[offset:]
    assert all(answer.data[70 + at] == OBJECTS[names[at]] for at in range(1, 31))
    checksum = [crc32c(OBJECTS[name]) for name in names]
    assert end.digest == digest(np.zeros(31, np.uint8), np.array(checksum, np.uint32))


def test_a_version_that_is_gone_cannot_be_resumed(cluster: LocalCluster) -> None:
    name = cluster.names_of(1, LARGE)[0]
    with RawSession(cluster.nodes[0].url) as session:
        request = batch_of([name, "s/0001"], ordered=True, resume_offset=5, resume_checksum=1, resume_version="9-9-9")
        frames, end = session.ask(1, request)
    answer = Answer.of(frames)
    assert (answer.status, end.failed_entries) == ({0: pb.NOT_FOUND, 1: pb.OK}, 1)


# -- who answers


def test_a_request_for_this_node_alone_is_answered_from_its_own_drives(cluster: LocalCluster) -> None:
    mine, other = cluster.names_of(0, SMALL)[0], cluster.names_of(1, SMALL)[0]
    answer = cluster.ask([mine, other], local=True)
    assert [answer.status[at] for at in answer.order] == [pb.OK, pb.NOT_FOUND]


def test_a_single_small_object_of_another_node_is_found(cluster: LocalCluster) -> None:
    name = cluster.names_of(1, SMALL)[0]
    assert cluster.ask([name]).data[0] == OBJECTS[name]


def test_what_an_earlier_map_left_here_is_not_the_answer(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2) as cluster:
        name = cluster.names_of(1, SMALL)[0]
        for data in (b"older", b"new"):
            cluster.put_on(1, {name: data})
        cluster.put_on(0, {name: b"old"})
        for _ in range(3):  # also from the caches
            assert cluster.ask([name]).data[0] == b"new"


@pytest.mark.slow
def test_a_copy_here_spares_the_way_to_another_node(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster:
        cluster.put(SMALL)
        answer = cluster.ask(list(SMALL))
        assert [answer.data[at] for at in answer.order] == list(SMALL.values())
        assert cluster.batches(0).resources.peers.open_sessions == 0
