"""The frame codec: ordinary protobuf, without copies, and never fooled by other bytes."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader.wire.frame import (
    EntryFault,
    Frame,
    FrameError,
    Piece,
    decode_opened,
    decode_response,
    decode_single,
    decode_single_parts,
    encode_frame,
    encode_prefix,
    encode_single,
    encode_varint,
    single_prefix_bytes,
)
from ais_loader.wire.generated import ais_batch_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from tests.example_count import examples
from tests.table import table

U32_MAX = 2**32 - 1


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    sizes = draw(st.lists(st.integers(0, 300), max_size=20))
    count = len(sizes)

    def column(dtype: type, limit: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(0, limit), min_size=count, max_size=count)), dtype)

    first = draw(st.integers(0, U32_MAX - count))
    payload = draw(st.binary(min_size=sum(sizes), max_size=sum(sizes)))
    together = memoryview(payload)
    apart = [
        memoryview(bytes(together[stop - size : stop])) for size, stop in zip(sizes, accumulate(sizes), strict=True)
    ]
    piece = None
    if count == 1 and draw(st.booleans()):
        offset = draw(st.integers(0, U32_MAX - 1 - len(payload)))
        after = draw(st.integers(0, U32_MAX - offset - len(payload)))
        piece = Piece(offset, offset + len(payload) + after, draw(st.text(st.characters(codec="utf-8"), max_size=10)))
    faults = draw(
        st.dictionaries(
            st.integers(first, first + max(0, count - 1)),
            st.builds(EntryFault, st.text(st.characters(codec="utf-8"), max_size=20), st.sampled_from(["", "range"])),
            max_size=3,
        )
    )
    return Frame(
        index=np.arange(first, first + count, dtype=np.uint32),
        size=np.array(sizes, np.uint32),
        checksum=column(np.uint32, U32_MAX),
        status=column(np.uint8, 7),
        checksum_kind=column(np.uint8, 2),
        content=draw(st.sampled_from((together, apart))),
        piece=piece,
        errors=faults,
    )


ends = st.none() | st.builds(
    pb.End, outcome=st.sampled_from([0, 1]), entries=st.integers(0, 99), digest=st.integers(0, U32_MAX)
)
batch_ids = st.integers(0, 2**64 - 1)


def assert_same(found: Frame | None, expected: Frame) -> None:
    assert found is not None
    for column in ("index", "size", "checksum", "status", "checksum_kind"):
        mine, theirs = getattr(found, column), getattr(expected, column)
        assert (mine.dtype.itemsize, mine.tolist()) == (theirs.dtype.itemsize, theirs.tolist())
    assert found.payload == expected.payload
    assert found.piece == expected.piece
    assert found.errors == expected.errors


@pytest.mark.slow
@given(batch_id=batch_ids, frame=frames(), end=ends)
def test_what_is_encoded_is_decoded(batch_id: int, frame: Frame, end: pb.End | None) -> None:
    response = decode_response(encode_frame(batch_id, frame, end))
    assert (response.batch_id, response.end, response.reject) == (batch_id, end, None)
    assert_same(response.frame, frame)


@pytest.mark.slow
@given(batch_id=batch_ids, frame=frames(), end=ends)
def test_any_protobuf_reader_reads_what_is_encoded(batch_id: int, frame: Frame, end: pb.End | None) -> None:
    message = pb.SessionResponse.FromString(encode_frame(batch_id, frame, end))
    assert message.batch_id == batch_id
    assert message.HasField("end") == (end is not None)
    assert list(message.frame.index) == frame.index.tolist()
    assert list(message.frame.size) == frame.size.tolist()
    assert list(message.frame.checksum) == frame.checksum.tolist()
    assert (message.frame.status, message.frame.checksum_kind) == (
        frame.status.tobytes(),
        frame.checksum_kind.tobytes(),
    )
    assert message.frame.payload == bytes(frame.payload)
    assert message.frame.HasField("piece") == (frame.piece is not None)
    assert {e.index: EntryFault(e.message, e.kind) for e in message.frame.error} == frame.errors


@pytest.mark.slow
@given(batch_id=batch_ids, frame=frames(), end=ends)
def test_frames_of_any_protobuf_writer_are_decoded(batch_id: int, frame: Frame, end: pb.End | None) -> None:
    written = pb.SessionResponse.FromString(encode_frame(batch_id, frame, end)).SerializeToString()
    response = decode_response(written)
    assert (response.batch_id, response.end) == (batch_id, end)
    assert_same(response.frame, frame)


@pytest.mark.slow
@given(frame=frames(), cut=st.integers(0, 100))
def test_arrays_in_two_parts_and_fields_of_a_later_version_are_legal(frame: Frame, cut: int) -> None:
    message = pb.SessionResponse.FromString(encode_frame(5, frame)).frame
    first, second = pb.Frame(), pb.Frame()
    first.CopyFrom(message)
    cut = min(cut, len(message.index))
    first.index[:], second.index[:] = message.index[:cut], message.index[cut:]
    later = b"\x40\x07" + b"\x82\x01\x03new"  # field 8, a number; field 16, bytes
    content = later + second.SerializeToString() + first.SerializeToString()
    if cut not in (0, len(message.index)):
        first.index[:], second.index[:] = message.index[cut:], message.index[:cut]
        content = second.SerializeToString() + first.SerializeToString() + later
    elif cut == 0:
        content = first.SerializeToString() + second.SerializeToString() + later
    data = b"\x08\x05\x7a" + encode_varint(len(content)) + content
    assert_same(decode_response(data).frame, frame)
    assert_same(decode_response(data + later).frame, frame)


@pytest.mark.slow
@given(frame=frames())
def test_entries_are_the_same_wherever_they_lie(frame: Frame) -> None:
    apart = frame.entries()
    payload_bytes = frame.payload_bytes
    assert bytes(frame.payload) == b"".join(apart)
    assert (frame.entries(), frame.payload_bytes) == (apart, payload_bytes)
    assert [len(entry) for entry in apart] == frame.size.tolist()


def test_payload_and_arrays_are_views_of_the_received_bytes() -> None:
    frame = Frame(*(np.zeros(2, np.uint32),) * 3, *(np.zeros(2, np.uint8),) * 2, memoryview(b""))
    frame.index, frame.size, frame.content = (
        np.arange(2, dtype=np.uint32),
        np.array([3, 2], np.uint32),
        memoryview(b"abcde"),
    )
    data = encode_frame(1, frame)
    found = decode_response(data).frame
    assert found is not None
    assert found.payload.obj is data
    assert found.payload.readonly
    assert not any(getattr(found, column).flags.owndata for column in ("index", "size", "checksum", "status"))


def test_the_place_of_the_checksums_is_where_a_reader_writes_them() -> None:
    columns = {"index": np.arange(3, dtype=np.uint32), "size": np.array([1, 2, 3], np.uint32)}
    flags = {"status": np.zeros(3, np.uint8), "checksum_kind": np.ones(3, np.uint8)}
    prefix, at = encode_prefix(7, **columns, **flags, checksum=np.zeros(3, np.uint32), payload_bytes=6)
    late = np.array([0xAABBCCDD, 1, U32_MAX], "<u4")
    data = bytearray(prefix)
    data[at : at + 12] = late.tobytes()
    found = decode_response(bytes(data) + b"xyyzzz").frame
    assert found is not None
    assert found.checksum.tolist() == late.tolist()


@table(
    "event",
    [
        pb.SessionResponse(batch_id=3, end=pb.End(entries=5, digest=9)),
        pb.SessionResponse(batch_id=3, reject=pb.Reject(retry_after_ms=5, reason="busy")),
        pb.SessionResponse(batch_id=3),
        pb.SessionResponse(end=pb.End()),
    ],
    ids=["end", "reject", "nothing", "no id"],
)
def test_messages_without_a_frame_are_decoded(event: pb.SessionResponse) -> None:
    response = decode_response(event.SerializeToString())
    assert response.batch_id == event.batch_id
    assert response.frame is None
    assert response.end == (event.end if event.HasField("end") else None)
    assert response.reject == (event.reject if event.HasField("reject") else None)


def one_entry(payload: bytes = b"0123456789") -> Frame:
    column, flag = np.zeros(1, np.uint32), np.zeros(1, np.uint8)
    return Frame(column, np.array([len(payload)], np.uint32), column, flag, flag, memoryview(payload))


@pytest.mark.slow
@given(frame=frames(), end=ends, data=st.data())
@settings(max_examples=examples(300))
def test_damaged_messages_are_refused_or_still_consistent(
    frame: Frame, end: pb.End | None, data: st.DataObject
) -> None:
    """No exception but FrameError, whatever arrives; and what is accepted adds up."""
    damaged = bytearray(encode_frame(1, frame, end))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        kind = data.draw(st.sampled_from(["flip", "cut", "insert", "remove"]))
        if kind == "flip":
            damaged[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del damaged[max(1, at) :]
        elif kind == "insert":
            damaged[at:at] = data.draw(st.binary(max_size=5))
        elif len(damaged) > 1:
            del damaged[at]
    try:
        found = decode_response(bytes(damaged)).frame
    except FrameError:
        return
    if found is not None:
        assert (
            len(found.index) == len(found.size) == len(found.checksum) == len(found.status) == len(found.checksum_kind)
        )
        assert int(found.size.sum(dtype=np.uint64)) == len(found.payload)
        if found.piece is not None:
            assert len(found.index) == 1
            assert found.piece.offset + len(found.payload) <= found.piece.entry_size < 2**32


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_decoded_but_never_crash(noise: bytes) -> None:
    for data in (noise, b"\x08" + noise, b"\x08\x01\x7a" + encode_varint(len(noise)) + noise):
        try:
            decode_response(data)
        except FrameError:
            continue


def test_a_frame_longer_or_shorter_than_its_message_is_refused() -> None:
    data = encode_frame(1, one_entry())
    with pytest.raises(FrameError):
        decode_response(data[:-1])
    with pytest.raises(FrameError):
        decode_response(data + b"x")


@table(
    ("change", "message"),
    [
        ({"size": np.array([9], np.uint32)}, "sizes add up"),
        ({"size": np.array([U32_MAX], np.uint32)}, "sizes add up"),
        ({"status": np.zeros(2, np.uint8)}, "different lengths"),
        ({"checksum": np.zeros(0, np.uint32)}, "different lengths"),
        ({"piece": Piece(5, 10, "")}, "a piece"),
        ({"piece": Piece(0, 2**32, "")}, "a piece"),
        ({"piece": Piece(2**63, 2**64 - 1, "")}, "a piece"),
    ],
)
def test_columns_that_do_not_fit_together_are_refused(change: dict[str, object], message: str) -> None:
    frame = one_entry()
    for name, value in change.items():
        setattr(frame, name, value)
    with pytest.raises(FrameError, match=message):
        decode_response(encode_frame(1, frame))


@given(
    batch_id=st.integers(1, 2**64 - 1), payload=st.binary(min_size=1, max_size=300), checksum=st.integers(0, U32_MAX)
)
def test_the_short_form_of_one_small_answer_is_the_same_message(batch_id: int, payload: bytes, checksum: int) -> None:
    def digest_of(value: int) -> int:
        return value ^ 0x5A5A5A5A

    data = encode_single(batch_id, len(payload), checksum, digest_of(checksum)) + payload
    assert decode_single(data, batch_id, digest_of) == (payload, checksum)
    response = decode_response(data)
    assert response.batch_id == batch_id
    assert response.end == pb.End(entries=1, payload_bytes=len(payload), digest=digest_of(checksum))
    assert response.frame is not None
    assert (response.frame.index.tolist(), response.frame.status.tolist()) == ([0], [pb.OK])
    assert (response.frame.checksum.tolist(), response.frame.checksum_kind.tolist()) == ([checksum], [pb.STORED])
    assert response.frame.payload == payload
    assert decode_single(data, batch_id, digest_of, pb.UNCHECKED) is None
    at = single_prefix_bytes(batch_id, len(data))
    assert at == len(data) - len(payload)
    assert decode_single_parts(data[:at], data[at:], batch_id, digest_of) == checksum
    assert decode_single_parts(data[:at], data[at:], batch_id, digest_of, pb.UNCHECKED) is None
    for other in (0, 1, at - 1, at + 1):
        assert decode_single_parts(data[:other], data[other:], batch_id, digest_of) is None
    assert decode_single(data, batch_id - 1, digest_of) is None
    assert decode_single(data, batch_id, lambda value: value) is None
    position = random.Random(batch_id).randrange(len(data) - len(payload))
    assert (
        decode_single(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :], batch_id, digest_of) is None
    )
    for cut in (0, 1, 20, len(data) - 1):
        assert decode_single(data[:cut], batch_id, digest_of) is None


@given(
    batch_id=st.integers(1, 2**64 - 1),
    payload=st.binary(min_size=1, max_size=300),
    checksum=st.integers(0, U32_MAX),
    metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=100), max_size=4),
)
def test_the_short_form_of_an_opened_object_is_the_same_message(
    batch_id: int, payload: bytes, checksum: int, metadata: dict[str, str]
) -> None:
    def digest_of(value: int) -> int:
        return value ^ 0x5A5A5A5A

    info = objects_pb.ObjectInfo(size_bytes=len(payload), version="1.2.3", checksum=checksum, metadata=metadata)
    described = info.SerializeToString()
    end = digest_of(checksum)
    data = encode_single(batch_id, len(payload), checksum, end, described=described) + payload
    assert decode_opened(data, batch_id, digest_of) == (payload, checksum, info)
    response = decode_response(data)
    assert response.end == pb.End(entries=1, payload_bytes=len(payload), digest=end, object=info)
    assert response.frame is not None and response.frame.payload == payload
    assert decode_single(data, batch_id, digest_of) is None
    assert decode_opened(encode_single(batch_id, len(payload), checksum, end) + payload, batch_id, digest_of) is None
    assert decode_opened(data, batch_id - 1, digest_of) is None
    assert decode_opened(data, batch_id, lambda value: value) is None
    for cut in (0, 1, 20, len(data) - len(payload) - 1, len(data) - 1):
        assert decode_opened(data[:cut], batch_id, digest_of) is None
    for kind in (pb.UNCHECKED, pb.TRANSFORMED):
        other = encode_single(batch_id, len(payload), checksum, end, kind, described) + payload
        assert decode_opened(other, batch_id, digest_of) is None
        assert decode_opened(memoryview(other), batch_id, digest_of, kind) == (payload, checksum, info)


@table("value", [0, 1, 127, 128, 300, 2**32 - 1, 2**63, 2**64 - 1])
def test_varints_are_those_of_protobuf(value: int) -> None:
    assert b"\x08" + encode_varint(value) == (pb.SessionResponse(batch_id=value).SerializeToString() or b"\x08\x00")
