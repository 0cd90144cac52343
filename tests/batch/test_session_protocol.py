"""The GetBatch protocol as any client can speak it: frames, credit, cancellation, rejection, END."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader import Bucket
from ais_loader.testing import SeededObjects, eventually, throwaway_folder
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_batch_pb2 as pb
from storage_node.server import NodeServer
from tests.node.node_kit import RawSession, batch_of, bucket_of, columns, serving
from tests.table import table

MiB = 1 << 20
OBJECTS = SeededObjects({**{f"{at:03d}": (100_000 + at, at) for at in range(60)}, "large": (9 * MiB, 0)})
NAMES = [name for name in OBJECTS if name != "large"]


@pytest.fixture(scope="module")
def node() -> Iterator[NodeServer]:
    with throwaway_folder() as folder, serving(folder) as node:
        with bucket_of(node) as bucket:
            bucket.put_many(OBJECTS.items())
        yield node


@pytest.fixture
def session(node: NodeServer) -> Iterator[RawSession]:
    with RawSession(node.url) as session:
        yield session
    eventually(lambda: node_is_idle(node))


def node_is_idle(node: NodeServer) -> bool:
    from ais_loader import connect

    with connect(node.url) as client:
        described = client.describe()
    return (described["open_sessions"], described["active_batches"], described["reserved_bytes"]) == (0, 0, 0)


def test_an_answer_is_frames_in_order_and_an_end_that_adds_up(session: RawSession) -> None:
    frames, end = session.ask(1, batch_of([*NAMES, "nope", NAMES[0]]))
    index, sizes, status, digest = columns(frames)
    assert index == list(range(62))
    assert sizes == [len(OBJECTS[name]) for name in NAMES] + [0, len(OBJECTS[NAMES[0]])]
    assert status == [pb.OK] * 60 + [pb.NOT_FOUND, pb.OK]
    assert b"".join(frame.payload for frame in frames) == b"".join(OBJECTS[name] for name in [*NAMES, NAMES[0]])
    assert (end.outcome, end.first_index, end.entries, end.failed_entries) == (pb.End.COMPLETE, 0, 62, 1)
    assert (end.payload_bytes, end.digest) == (sum(sizes), digest)


def test_checksums_and_their_kinds_are_those_of_the_bytes(session: RawSession) -> None:
    request = batch_of([NAMES[0], "large", NAMES[1], "nope"], start=[0, 10, 10, 0], length=[-1, 500, 500, -1])
    [frame], _ = session.ask(1, request)
    data = OBJECTS[NAMES[0]], OBJECTS["large"][10:510], OBJECTS[NAMES[1]][10:510]
    assert frame.checksum.tolist() == [*map(crc32c, data), 0]
    # Of a small object that shares its file the whole is read, and compared.
    assert frame.checksum_kind.tolist() == [pb.STORED, pb.COMPUTED, pb.STORED, pb.NONE]


def test_a_large_entry_comes_in_pieces_whose_checksums_run_on(session: RawSession) -> None:
    frames, end = session.ask(1, batch_of(["large"]))
    data, offset = OBJECTS["large"], 0
    for frame in frames:
        assert frame.piece is not None
        assert (frame.piece.offset, frame.piece.entry_size) == (offset, len(data))
        offset += len(frame.payload)
        assert frame.payload == data[frame.piece.offset : offset]
        assert frame.checksum.tolist() == [crc32c(data[:offset])]
    assert offset == len(data)
    assert (end.entries, end.payload_bytes) == (1, len(data))


@pytest.mark.parametrize("offset", [1, MiB, 9 * MiB - 1, 9 * MiB])
def test_a_large_entry_goes_on_from_where_it_broke_off(session: RawSession, offset: int) -> None:
    data = OBJECTS["large"]
    [first, *_], _ = session.ask(1, batch_of(["large"]))
    assert first.piece is not None
    request = batch_of(
        ["large", NAMES[0]],
        first_index=70,
        resume_offset=offset,
        resume_checksum=crc32c(data[:offset]),
        resume_version=first.piece.version,
    )
    frames, end = session.ask(2, request)
    assert b"".join(frame.payload for frame in frames) == data[offset:] + OBJECTS[NAMES[0]]
    assert frames[0].piece is not None
    assert (frames[0].piece.offset, frames[0].index.tolist()) == (offset, [70])
    pieces = [frame for frame in frames if frame.piece is not None]
    assert pieces[-1].checksum.tolist() == [crc32c(data)]
    assert end.outcome == pb.End.COMPLETE
    assert end.entries == 2
    assert end.digest == columns([pieces[-1], *[frame for frame in frames if frame.piece is None]])[3]


def test_a_resumed_entry_of_another_version_or_past_its_end_is_not_found(session: RawSession) -> None:
    for batch_id, fields in enumerate(({"resume_offset": 5, "resume_version": "9.9.9"}, {"resume_offset": 2**40}), 1):
        frames, end = session.ask(batch_id, batch_of(["large", NAMES[0]], **fields))
        index, _, status, digest = columns(frames)
        assert (index, status) == ([0, 1], [pb.NOT_FOUND, pb.OK])
        assert (end.entries, end.digest) == (2, digest)


def test_fail_fast_ends_with_the_first_failure(session: RawSession) -> None:
    frames, end = session.ask(1, batch_of([NAMES[0], "nope", "large"], fail_fast=True))
    index, _, status, digest = columns(frames)
    assert end.outcome == pb.End.STOPPED
    assert status[1] == pb.NOT_FOUND
    assert "large" not in index
    assert (end.entries, end.digest) == (len(index), digest)
    assert sum(len(frame.payload) for frame in frames) == len(OBJECTS[NAMES[0]])


def test_a_batch_without_credit_sends_nothing_until_it_gets_some(session: RawSession) -> None:
    session.send(1, batch_of(NAMES, credit=0))
    # The second batch overtakes the first, which has no credit.
    frames, _ = session.ask(2, batch_of([NAMES[3]]))
    assert bytes(frames[0].payload) == OBJECTS[NAMES[3]]
    session.send(1, pb.Credit(payload_bytes=1 << 40))
    frames, end = session.answer(1)
    assert (columns(frames)[0], end.outcome) == (list(range(60)), pb.End.COMPLETE)


def test_credit_bounds_what_is_sent_ahead_to_one_frame_more(session: RawSession) -> None:
    session.send(1, batch_of(NAMES, credit=1))
    first = session.receive_frame()
    session.send(2, batch_of([NAMES[0]]))
    assert session.receive().batch_id == 2  # and not a second frame of the first batch
    session.send(1, pb.Credit(payload_bytes=len(first.payload)))
    assert session.receive_frame().index[0] == first.index[-1] + 1
    session.send(3, batch_of([NAMES[0]]))
    assert session.receive().batch_id == 3


def test_a_cancelled_batch_sends_neither_frames_nor_an_end(session: RawSession) -> None:
    for round_number in range(30):
        first, second = 2 * round_number + 1, 2 * round_number + 2
        session.send(first, batch_of(["large", *NAMES], credit=round_number * 300_000))
        session.send(first, pb.Cancel())
        session.send(second, batch_of(NAMES[:3]))
        seen: list[int] = []
        while True:
            response = session.receive()
            assert response.batch_id in (first, second)
            if response.batch_id == first:
                assert second not in seen, "a frame of the cancelled batch after an answer to what was sent later"
                assert not response.HasField("end")
            seen.append(response.batch_id)
            if response.HasField("end"):
                break


@pytest.mark.slow
def test_batches_of_one_session_are_answered_side_by_side(session: RawSession) -> None:
    for batch_id in range(1, 9):
        session.send(batch_id, batch_of(["large", *NAMES[batch_id:]]))
    received: dict[int, list[int]] = {batch_id: [] for batch_id in range(1, 9)}
    order: list[int] = []
    while len(order) < 8:
        response = session.receive()
        received[response.batch_id] += response.frame.index
        if response.HasField("end"):
            order.append(response.batch_id)
    for batch_id, index in received.items():
        expected = list(range(1 + len(NAMES[batch_id:])))
        assert sorted(set(index)) == expected
        assert index == sorted(index)


def test_a_session_ends_when_the_client_has_no_more_to_say_and_has_all_answers(session: RawSession) -> None:
    session.send(1, batch_of(NAMES))
    session.end()
    frames, _ = session.answer(1)
    assert len(columns(frames)[0]) == 60
    with pytest.raises(StopIteration):
        session.receive()
    assert session.call.code() == grpc.StatusCode.OK


def test_credit_and_cancel_for_unknown_batches_are_harmless(session: RawSession) -> None:
    session.send(99, pb.Cancel())
    session.send(98, pb.Credit(payload_bytes=2**63))
    session.send(97)
    assert session.ask(1, batch_of([NAMES[0]]))[1].entries == 1


def test_a_deadline_refuses_a_batch_that_takes_longer(session: RawSession) -> None:
    session.send(1, batch_of(NAMES, credit=0, deadline_ms=50))
    response = session.receive()
    assert (response.end.outcome, response.end.error_kind) == (pb.End.REFUSED, "timeout")
    assert session.ask(2, batch_of(NAMES, deadline_ms=60_000))[1].outcome == pb.End.COMPLETE


@pytest.mark.slow
@table(
    ("request_fields", "word"),
    [
        ({"bucket": ["b"], "name": ["a", "b"], "start": [1], "length": [1]}, "start"),
        ({"bucket": ["b"], "name": ["a"], "length": [1, 2]}, "length"),
        ({"bucket": ["b"], "name": ["a"], "start": [0]}, "start"),
        ({"bucket": ["b"], "name": ["a"], "version": ["1", "2"]}, "version"),
        ({"bucket": ["b"], "name": ["a"], "member": ["m", "n"]}, "member"),
        ({"bucket": ["b"], "name": ["a"], "bucket_index": [0, 0]}, "bucket_index"),
        ({"bucket": ["b"], "name": ["a"], "bucket_index": [1]}, "bucket"),
        ({"bucket": ["b"], "name": ["a"], "bucket_index": [2**32 - 1]}, "bucket"),
        ({"bucket": [], "name": ["a"]}, "bucket"),
        ({"bucket": ["b"], "name": ["a"] * 10_001}, "parts"),
        ({"bucket": ["b"], "name": ["a"], "first_index": 2**32}, "first_index"),
        ({"bucket": ["b"], "name": ["a", "a"], "first_index": 2**32 - 1}, "first_index"),
        ({"bucket": ["b"], "name": ["a"], "first_index": 2**64 - 1}, "first_index"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_request_that_makes_no_sense_is_refused_alone(
    node: NodeServer, request_fields: dict[str, object], word: str
) -> None:
    with RawSession(node.url) as session:
        session.send(1, batch_of(NAMES, credit=0))
        session.send(2, pb.BatchRequest(initial_credit_bytes=1 << 30, **request_fields))
        response = session.receive()
        assert (response.batch_id, response.end.outcome) == (2, pb.End.REFUSED)
        assert response.end.error_kind == "invalid-request"
        assert word in response.end.message
        session.send(1, pb.Credit(payload_bytes=1 << 40))
        assert session.answer(1)[1].outcome == pb.End.COMPLETE
    eventually(lambda: node_is_idle(node))


def test_the_last_index_there_is_can_be_used(session: RawSession) -> None:
    [frame], end = session.ask(1, batch_of([NAMES[0]], first_index=2**32 - 1))
    assert (frame.index.tolist(), end.first_index) == ([2**32 - 1], 2**32 - 1)


def test_an_empty_batch_is_complete_at_once(session: RawSession) -> None:
    assert session.ask(1, pb.BatchRequest())[1] == pb.End(outcome=pb.End.COMPLETE, digest=crc32c(b""))


def test_the_id_of_a_batch_that_has_not_ended_cannot_be_used_again(session: RawSession) -> None:
    session.send(1, batch_of(NAMES, credit=0))
    session.send(1, batch_of(NAMES))
    with pytest.raises(grpc.RpcError) as caught:
        session.receive()
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@table("garbage", [b"\xff\xff\xff", b"\x08", b"\x12\x05abc", b"\x12\x04\x1a\x02\xff\xfe"], ids=repr)
def test_bytes_that_are_no_request_end_the_session_and_nothing_else(node: NodeServer, garbage: bytes) -> None:
    with RawSession(node.url) as other, RawSession(node.url) as session:
        other.send(1, batch_of(NAMES, credit=0))
        session.send_bytes(garbage)
        with pytest.raises(grpc.RpcError):
            session.receive()
        other.send(1, pb.Credit(payload_bytes=1 << 40))
        assert other.answer(1)[1].outcome == pb.End.COMPLETE


def test_a_client_that_vanishes_leaves_nothing_behind(node: NodeServer) -> None:
    for credit in (0, 1, 5 * MiB, 1 << 40):
        with RawSession(node.url) as session:
            for batch_id in range(1, 20):
                session.send(batch_id, batch_of(["large", *NAMES], credit=credit, buffered=batch_id % 3 == 0))
            if credit:
                session.receive()
    eventually(lambda: node_is_idle(node))


class TestLimits:
    @pytest.fixture
    def small_node(self, tmp_path: Path) -> Iterator[NodeServer]:
        with serving(tmp_path, max_active_batches=2, max_buffered_bytes=2 * MiB, reject_retry_after_ms=70) as node:
            with bucket_of(node) as bucket:
                bucket.put_many(OBJECTS.items())
            yield node

    def test_batches_beyond_the_limit_are_told_when_to_come_back(self, small_node: NodeServer) -> None:
        with RawSession(small_node.url) as session, RawSession(small_node.url) as other:
            session.send(1, batch_of(NAMES, credit=0))
            session.send(2, batch_of(NAMES, credit=0))
            eventually(lambda: active_batches(small_node) == 2)
            other.send(1, batch_of(NAMES))
            reject = other.receive().reject
            assert reject.retry_after_ms == 70
            assert "2 batches" in reject.reason
            session.send(1, pb.Cancel())
            eventually(lambda: active_batches(small_node) == 1)
            assert other.ask(1, batch_of(NAMES))[1].outcome == pb.End.COMPLETE

    def test_an_answer_too_large_to_be_collected_is_refused(self, small_node: NodeServer) -> None:
        with RawSession(small_node.url) as session:
            _, end = session.ask(1, batch_of(["large"], buffered=True))
            assert (end.outcome, end.error_kind) == (pb.End.REFUSED, "invalid-request")
            assert "streaming=True" in end.message

    def test_collected_answers_that_nobody_fetches_hold_up_neither_streams_nor_memory(
        self, small_node: NodeServer
    ) -> None:
        with RawSession(small_node.url) as idle, RawSession(small_node.url) as session:
            idle.send(1, batch_of(NAMES[:15], buffered=True, credit=0))
            assert small_node.batches is not None
            buffered = small_node.batches.resources.buffered
            eventually(lambda: buffered.held_bytes > 0)  # a batch that is active may not have collected yet
            session.send(1, batch_of(NAMES[:15], buffered=True))
            assert "max_buffered_bytes" in session.receive().reject.reason
            assert session.ask(2, batch_of([*NAMES, "large"]))[1].outcome == pb.End.COMPLETE
            idle.send(1, pb.Credit(payload_bytes=1 << 40))
            assert idle.answer(1)[1].outcome == pb.End.COMPLETE
            eventually(lambda: not buffered.held_bytes)  # its memory is given back after its end is sent
            assert session.ask(3, batch_of(NAMES[:15], buffered=True))[1].outcome == pb.End.COMPLETE


def active_batches(node: NodeServer) -> object:
    from ais_loader import connect

    with connect(node.url) as client:
        return client.describe()["active_batches"]


def test_a_bucket_of_another_session_is_found_as_soon_as_it_exists(node: NodeServer, session: RawSession) -> None:
    with bucket_of(node, "made-later") as bucket:
        assert isinstance(bucket, Bucket)
        bucket.put("a", b"1")
        frames, _ = session.ask(1, batch_of(["a"], bucket="made-later"))
        assert bytes(frames[0].payload) == b"1"
