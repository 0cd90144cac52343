"""What a client does with answers that are wrong, torn or late: it says so, or has the right bytes; never others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
from scripted_node import ScriptedNode, end, frame, piece, reject

from ais_loader import Batch, ClusterOptions, LoaderError, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import Piece, encode_varint
from ais_loader.wire.generated import ais_batch_pb2 as pb

A, B, C = b"first entry", b"second", b"the third one"
ALL = {0: A, 1: B, 2: C}
WHOLE = seeded_bytes(3000)


def read(node: ScriptedNode, names: int = 3, verify_payload: bool = False, retry_s: float = 240.0) -> list[bytes]:
    with connect(node.url, options=ClusterOptions(retry_s=retry_s, verify_payload=verify_payload)) as client:
        return [
            item.tobytes() for item in client.bucket("b").get_batch([str(at) for at in range(names)], timeout_s=180.0)
        ]


def always(*messages: bytes) -> Callable[[int, pb.BatchRequest], Iterable[bytes]]:
    """The same answer to every request, written for batch 1 of a session."""
    return lambda batch_id, request: messages


def test_a_right_answer_is_taken_whole_or_in_frames() -> None:
    with ScriptedNode(always(frame(1, {0: A}), frame(1, {1: B, 2: C}), end(1, [A, B, C]))) as node:
        assert read(node) == [A, B, C]
        assert read(node, verify_payload=True) == [A, B, C]


WRONG = {
    "an entry twice": [frame(1, {0: A}), frame(1, {0: A}), end(1, [A, B, C])],
    "an entry out of order": [frame(1, {1: B}), frame(1, {0: A}), frame(1, {2: C}), end(1, [A, B, C])],
    "a gap within a frame": [frame(1, {0: A, 2: C}), frame(1, {1: B}), end(1, [A, B, C])],
    "an entry too many": [frame(1, {**ALL, 3: A}), end(1, [A, B, C, A])],
    "an index far outside": [frame(1, {2**32 - 1: A}), end(1, [A])],
    "an end before the last entry": [frame(1, {0: A, 1: B}), end(1, [A, B])],
    "an end that counts wrong": [frame(1, ALL), end(1, [A, B, C], entries=2)],
    "an end that counts failures": [frame(1, ALL), end(1, [A, B, C], failed_entries=1)],
    "an end with another digest": [frame(1, ALL), end(1, [A, B, C], digest=12345)],
    "an end that says stopped": [frame(1, {0: A}), end(1, [A, B, C], outcome=pb.End.STOPPED)],
    "a stop without a failure": [frame(1, {0: A}), end(1, [A], outcome=pb.End.STOPPED)],
    "nothing but an end": [end(1, [])],
    "a piece from the middle": [piece(1, 0, WHOLE, 1000, 2000), end(1, [])],
    "a piece left out": [piece(1, 0, WHOLE, 0, 1000), piece(1, 0, WHOLE, 2000, 3000), end(1, [WHOLE])],
    "a piece twice": [piece(1, 0, WHOLE, 0, 1000), piece(1, 0, WHOLE, 0, 1000), end(1, [WHOLE])],
    "a piece of another version": [piece(1, 0, WHOLE, 0, 1000), piece(1, 0, WHOLE, 1000, 3000, "2"), end(1, [WHOLE])],
    "a piece of another size": [piece(1, 0, WHOLE, 0, 1000), piece(1, 0, WHOLE + b"x", 1000, 3001), end(1, [WHOLE])],
    "a piece of the next entry": [piece(1, 0, WHOLE, 0, 1000), piece(1, 1, WHOLE, 1000, 3000), end(1, [WHOLE])],
    "an entry in place of a piece": [piece(1, 0, WHOLE, 0, 1000), frame(1, ALL), end(1, [A, B, C])],
    "an end between pieces": [piece(1, 0, WHOLE, 0, 1000), end(1, [])],
    "a piece of an immense entry": [frame(1, {0: A}, piece=Piece(0, 2**60, "1")), end(1, [A])],
    "sizes that do not add up": [frame(1, {0: A}, size=np.array([5], np.uint32)), end(1, [A])],
    "columns of different length": [frame(1, {0: A}, checksum_kind=np.zeros(2, np.uint8)), end(1, [A])],
    "a frame longer than its message": [frame(1, ALL)[:-3]],
    "bytes that are no message": [b"\xff" * 50],
    "a varint that never ends": [b"\x08" + b"\xff" * 20],
    "a frame in a frame's place only": [b"\x08\x01\x7a" + encode_varint(3) + b"\x0a\x50\x00"],
}


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_does_not_add_up_is_an_error_and_no_hang(name: str) -> None:
    with ScriptedNode(always(*WRONG[name])) as node:
        with pytest.raises(LoaderError) as caught:
            read(node)
        assert type(caught.value) is LoaderError
        assert not caught.value.retryable
        assert "node" in str(caught.value)


def test_bytes_damaged_on_their_way_are_found_when_payloads_are_verified() -> None:
    damaged = frame(1, ALL, checksum=np.array([crc32c(A), crc32c(B) ^ 1, crc32c(C)], np.uint32))
    said = crc32c(
        b"".join(value.to_bytes(4, "little") for value in (crc32c(A), crc32c(B) ^ 1, crc32c(C))), crc32c(bytes(3))
    )
    with (
        ScriptedNode(always(damaged, end(1, [A, B, C], digest=said))) as node,
        pytest.raises(LoaderError, match="entry 1 was damaged on its way"),
    ):
        read(node, verify_payload=True)


def test_a_damaged_piece_is_found_when_payloads_are_verified() -> None:
    second = piece(1, 0, WHOLE[:1000] + bytes(2000), 1000, 3000, checksum=np.array([crc32c(WHOLE)], np.uint32))
    with (
        ScriptedNode(always(piece(1, 0, WHOLE, 0, 1000), second, end(1, [WHOLE]))) as node,
        pytest.raises(LoaderError, match="entry 0 was damaged on its way"),
    ):
        read(node, 1, verify_payload=True)


def test_messages_of_batches_that_nobody_asked_for_are_passed_over() -> None:
    stray = [frame(77, ALL), end(77, [A, B, C]), reject(78), pb.SessionResponse(batch_id=79).SerializeToString()]
    with ScriptedNode(always(*stray, frame(1, ALL), *stray, end(1, [A, B, C]))) as node:
        assert read(node) == [A, B, C]


def test_a_status_and_an_error_kind_of_a_later_version_are_a_failed_entry() -> None:
    def answer(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        from ais_loader.wire.frame import EntryFault

        yield frame(batch_id, {0: b""}, status=99, errors={0: EntryFault("from the future", "warp-drive")})
        digest = crc32c(bytes(4), crc32c(b"\x63"))
        yield end(batch_id, [b""], failed_entries=1, digest=digest)

    with ScriptedNode(answer) as node, connect(node.url) as client:
        [item] = client.bucket("b").get_batch(["a"], on_error="placeholder")
        assert (item.status.name, type(item.error)) == ("FAILED", errors.EntryFailed)
        assert "from the future" in str(item.error)


def test_a_refused_batch_raises_the_error_that_it_was_refused_with() -> None:
    for kind, error in (("invalid-request", errors.InvalidRequest), ("of a later version", LoaderError)):
        refusal = pb.End(outcome=pb.End.REFUSED, error_kind=kind, message="because")
        message = pb.SessionResponse(batch_id=1, end=refusal).SerializeToString()
        with ScriptedNode(always(message)) as node, pytest.raises(LoaderError, match="because") as caught:
            read(node)
        assert type(caught.value) is error


# -- rejection, silence, and broken sessions


def test_a_rejected_batch_is_asked_for_again_until_it_is_taken() -> None:
    def answer(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        if len(node.requests) < 4:
            yield reject(batch_id)
        else:
            yield from (frame(batch_id, ALL), end(batch_id, [A, B, C]))

    with ScriptedNode(answer) as node:
        assert read(node) == [A, B, C]
        assert len(node.requests) == 4
        assert len({tuple(request.name) for request in node.requests}) == 1


def test_a_client_waits_as_long_as_it_is_told() -> None:
    arrivals: list[float] = []

    def answer(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        arrivals.append(time.monotonic())
        yield reject(batch_id, 150) if len(arrivals) == 1 else end(batch_id, [])

    with ScriptedNode(answer) as node, pytest.raises(LoaderError):
        read(node)
    assert arrivals[1] - arrivals[0] >= 0.15


@pytest.mark.slow
def test_patience_with_a_busy_node_ends() -> None:
    with ScriptedNode(lambda batch_id, request: [reject(batch_id)]) as node:
        started = time.monotonic()
        with pytest.raises(errors.Overloaded, match=r"scripted.*gave up after") as caught:
            read(node, retry_s=1.0)
        assert time.monotonic() - started >= 1.0
        assert caught.value.retryable


def test_silence_ends_a_batch_after_its_timeout_and_the_session_lives() -> None:
    def answer(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        if request.name[0] == "silent":
            yield frame(batch_id, {0: A})
        else:
            yield from (frame(batch_id, {0: B}), end(batch_id, [B]))

    with ScriptedNode(answer) as node, connect(node.url) as client:
        bucket = client.bucket("b")
        batch = bucket.get_batch(["silent", "more"], timeout_s=2.0)
        assert next(batch).tobytes() == A
        with pytest.raises(errors.SilenceTimeout, match=r"1 of 2 entries"):
            next(batch)
        assert [item.tobytes() for item in bucket.get_batch(["other"])] == [B]
        eventually(lambda: node.cancelled == [1])


class Breaking(Exception):
    """Ends the scripted session with an error."""


def break_after(
    pieces: list[Callable[[int], bytes]], rest: Callable[[int, pb.BatchRequest], Iterable[bytes]]
) -> ScriptedNode:
    """Answers the first request with `pieces`, then breaks the session; every later one with `rest`."""

    def answer(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        if len(node.requests) == 1:
            for make in pieces:
                yield make(batch_id)
            raise Breaking
        yield from rest(batch_id, request)

    node = ScriptedNode(answer)
    return node


def test_a_broken_batch_asks_for_what_is_missing_and_no_more() -> None:
    def rest(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        assert (list(request.name), request.first_index, request.resume_offset) == (["1", "2"], 1, 0)
        yield frame(batch_id, {1: B, 2: C})
        yield end(batch_id, [B, C], first_index=1)

    with break_after([lambda batch_id: frame(batch_id, {0: A})], rest) as node:
        assert read(node) == [A, B, C]


def test_a_broken_entry_goes_on_from_its_last_byte_in_its_version() -> None:
    def rest(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        assert (list(request.name), request.first_index) == (["1", "2"], 1)
        assert (request.resume_offset, request.resume_version) == (2000, "7.1")
        assert request.resume_checksum == crc32c(WHOLE[:2000])
        yield piece(batch_id, 1, WHOLE, 2000, 3000, "7.1")
        yield frame(batch_id, {2: C})
        yield end(batch_id, [WHOLE, C], first_index=1)

    first = [
        lambda batch_id: frame(batch_id, {0: A}),
        lambda batch_id: piece(batch_id, 1, WHOLE, 0, 1000, "7.1"),
        lambda batch_id: piece(batch_id, 1, WHOLE, 1000, 2000, "7.1"),
    ]
    with break_after(first, rest) as node:
        assert read(node, verify_payload=True) == [A, WHOLE, C]


def test_a_broken_entry_whose_version_is_gone_fails_and_the_others_arrive() -> None:
    def rest(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        yield frame(batch_id, {0: b""}, status=pb.NOT_FOUND, checksum=np.zeros(1, np.uint32))
        yield frame(batch_id, {1: B})
        statuses, checksums = bytes([pb.NOT_FOUND, pb.OK]), bytes(4) + crc32c(B).to_bytes(4, "little")
        yield end(batch_id, [b"", B], failed_entries=1, digest=crc32c(statuses + checksums))

    with break_after([lambda batch_id: piece(batch_id, 0, WHOLE, 0, 1000)], rest) as node, connect(node.url) as client:
        items = list(client.bucket("b").get_batch(["0", "1"], on_error="placeholder"))
        assert [item.status.name for item in items] == ["UNAVAILABLE", "OK"], (
            "whoever asks again gets what there is now"
        )
        assert items[1].tobytes() == B


@pytest.mark.parametrize("offset", [0, 500, 1000])
def test_a_resumed_entry_of_another_version_is_taken_from_its_beginning_or_not_at_all(offset: int) -> None:
    other = bytes(3000)

    def rest(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        yield piece(batch_id, 0, other, offset, 3000, "2")
        yield end(batch_id, [other])

    with break_after([lambda batch_id: piece(batch_id, 0, WHOLE, 0, 1000)], rest) as node:
        if not offset:
            assert read(node, 1, verify_payload=True) == [other]
            return
        with pytest.raises(LoaderError, match=r"arrived after Piece\(offset="):
            read(node, 1)


def test_an_object_that_begins_again_in_one_answer_is_got_in_its_new_version() -> None:
    other = bytes(2500)
    pieces = [piece(1, 0, WHOLE, 0, 1000), piece(1, 0, other, 0, 1000, "2"), piece(1, 0, other, 1000, 2500, "2")]
    with (
        ScriptedNode(always(*pieces, end(1, [other]))) as node,
        connect(node.url) as client,
    ):
        assert client.bucket("b").get("x") == other


def test_what_a_transform_has_made_anew_is_taken_from_its_beginning_and_never_mixed() -> None:
    other = bytes(2500)
    made = {"checksum_kind": np.array([pb.TRANSFORMED], np.uint8)}

    def begins_again(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        assert (request.resume_offset, request.resume_version) == (1000, "1/3000/12345678")
        yield piece(batch_id, 0, other, 0, 1000, "1/2500/87654321", **made)
        raise Breaking

    def goes_on(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        if len(node.requests) == 2:
            yield from begins_again(batch_id, request)
        assert (request.resume_offset, request.resume_version) == (1000, "1/2500/87654321")
        assert request.resume_checksum == crc32c(other[:1000])
        yield piece(batch_id, 0, other, 1000, 2500, "1/2500/87654321", **made)
        yield frame(batch_id, {1: B})
        yield end(batch_id, [other, B])

    first = [lambda batch_id: piece(batch_id, 0, WHOLE, 0, 1000, "1/3000/12345678", **made)]
    with break_after(first, goes_on) as node:
        assert read(node, 2, verify_payload=True) == [other, B]
        assert len(node.requests) == 3


def test_a_session_that_ends_politely_in_the_middle_is_resumed_too() -> None:
    def answer(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        at = request.first_index
        yield frame(batch_id, {at: ALL[at]})
        if at < 2:
            raise Breaking
        yield end(batch_id, [C], first_index=2)

    with ScriptedNode(answer) as node:
        assert read(node) == [A, B, C]
        assert [request.first_index for request in node.requests] == [0, 1, 2]


@pytest.mark.slow
def test_a_session_that_breaks_without_progress_is_given_up_and_says_where() -> None:
    def answer(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        raise Breaking
        yield b""

    def is_tried_again_and_again() -> bool:
        """Not if this process stands still after the first tries."""
        tried = len(node.requests)
        with pytest.raises(errors.NodeUnavailable, match=rf"127\.0\.0\.1:{node.port}.*gave up after \d+ tries"):
            read(node, retry_s=1.0)
        return len(node.requests) > tried + 2

    with ScriptedNode(answer) as node:
        eventually(is_tried_again_and_again)


def test_credit_is_granted_again_as_the_consumer_takes_and_not_before() -> None:
    large = seeded_bytes(1 << 20)

    def answer(batch_id: int, request: pb.BatchRequest) -> Iterator[bytes]:
        for at in range(8):
            yield frame(batch_id, {at: large})
        yield end(batch_id, [large] * 8)

    with ScriptedNode(answer) as node, connect(node.url) as client:
        batch = client.bucket("b").get_batch([str(at) for at in range(8)])
        assert isinstance(batch, Batch)
        assert next(batch).tobytes() == large
        assert node.credit == []
        assert sum(1 for _ in batch) == 7
        eventually(lambda: sum(node.credit) >= 2 << 20)
    assert node.requests[0].initial_credit_bytes == 8 << 20
    assert sum(node.credit) <= 8 << 20


def test_a_node_of_another_protocol_is_named_as_such() -> None:
    import grpc

    server = grpc.server(__import__("concurrent.futures").futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with connect(f"grpc://127.0.0.1:{port}") as client:
            for call in (
                client.buckets,
                lambda: list(client.bucket("b").get_batch(["a"])),
                lambda: client.bucket("b").get("a"),
            ):
                with pytest.raises(errors.Unsupported, match="not a storage node"):
                    call()
    finally:
        server.stop(None).wait(180)
