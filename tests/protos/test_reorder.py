"""Frames of several keys put together: every entry once, with its bytes, in order; whatever the keys do."""

from __future__ import annotations

import zlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.wire.frame import EntryFault, Frame, FrameError, Piece
from ais_loader.wire.gather.reorder import Reorder, Resume, in_senders
from ais_loader.wire.generated import ais_batch_pb2 as pb
from tests.table import table

TARGET_BYTES = 40
PIECE_BYTES = 30


def content(at: int, size_bytes: int, edition: int = 0) -> bytes:
    return bytes((at * 31 + k * 7 + edition) % 251 for k in range(size_bytes))


def frame_of(entries: list[tuple[int, int, bytes, int]], piece: Piece | None = None) -> Frame:
    """Of (index in the part, entry, bytes, status); checksums and messages name the entry."""
    return Frame(
        np.array([index for index, *_ in entries], np.uint32),
        np.array([len(data) for _, _, data, _ in entries], np.uint32),
        np.array([zlib.crc32(data) for _, _, data, _ in entries], np.uint32),
        np.array([status for *_, status in entries], np.uint8),
        np.array([0 if status else 1 for *_, status in entries], np.uint8),
        memoryview(b"".join(data for _, _, data, _ in entries)),
        piece,
        {index: EntryFault(f"entry {entry}") for index, entry, _, status in entries if status},
    )


@dataclass
class Sender:
    """One sender's answer, frame by frame, as a node would cut it."""

    positions: list[int]
    sizes: list[int]
    failed: set[int]
    cuts: list[int]
    resume: Resume | None = None
    edition: int = 0
    """Of the objects that this node has; what has begun goes on as it began."""
    frames: deque[Frame] = field(init=False)

    def __post_init__(self) -> None:
        self.frames = deque()
        group: list[tuple[int, int, bytes, int]] = []
        cut = 0
        for index, at in enumerate(self.positions):
            size = self.sizes[at]
            offset = self.resume[0] if self.resume and index == 0 else 0
            if at not in self.failed and (size > PIECE_BYTES or offset):
                if group:
                    self.frames.append(frame_of(group))
                group = []
                edition = int(self.resume[2]) if self.resume and index == 0 else self.edition
                whole = content(at, size, edition)
                for begin in range(offset, size, PIECE_BYTES):
                    data = whole[begin : begin + PIECE_BYTES]
                    piece = frame_of([(index, at, data, pb.OK)], Piece(begin, size, str(edition)))
                    piece.checksum = np.array([zlib.crc32(whole[: begin + len(data)])], np.uint32)
                    self.frames.append(piece)
                continue
            failed = at in self.failed
            data = b"" if failed else content(at, size, self.edition)
            group.append((index, at, data, pb.FAILED if failed else pb.OK))
            if len(group) >= self.cuts[cut % len(self.cuts)]:
                self.frames.append(frame_of(group))
                group, cut = [], cut + 1
        if group:
            self.frames.append(frame_of(group))


@dataclass
class Consumer:
    """Puts together what comes out, and refuses what must not."""

    first_index: int
    ordered: bool
    order: list[int] = field(default_factory=list)
    data: dict[int, bytes] = field(default_factory=dict)
    status: dict[int, int] = field(default_factory=dict)
    begun: tuple[int, bytes] | None = None

    def take(self, frame: Frame) -> None:
        assert int(frame.size.sum()) == len(frame.payload)
        start = 0
        for at, size, status in zip(frame.index.tolist(), frame.size.tolist(), frame.status.tolist(), strict=True):
            entry, data, start = at - self.first_index, bytes(frame.payload[start : start + size]), start + size
            assert entry not in self.status, "an entry came twice"
            if status:
                assert frame.errors[at].message == f"entry {entry}"
            if self.begun is not None and self.begun[0] == entry:
                before, self.begun = self.begun[1], None
                if not status:
                    assert frame.piece is not None
                    assert frame.piece.offset == len(before)
                    data = before + data
            elif frame.piece is not None and not status:
                assert self.begun is None, "pieces of two entries are interleaved"
                assert frame.piece.offset == 0
            if not frame.completes_entry:
                self.begun = entry, data
                return
            self.order.append(entry)
            self.status[entry] = status
            self.data[entry] = b"" if status else data
        assert set(frame.errors) <= set(frame.index.tolist())


@pytest.mark.slow
@given(data=st.data(), ordered=st.booleans())
def test_every_entry_comes_out_once_with_its_bytes_whatever_the_lanes_do(data: st.DataObject, ordered: bool) -> None:
    n = data.draw(st.integers(0, 40), label="entries")
    sizes = data.draw(st.lists(st.sampled_from([0, 1, 5, 13, 29, 31, 70, 150]), min_size=n, max_size=n), label="sizes")
    failed = {at for at in range(n) if data.draw(st.integers(0, 9)) == 0}
    first_index = data.draw(st.sampled_from([0, 7]), label="first index")
    reorder = Reorder(n, first_index, ordered=ordered)
    consumer = Consumer(first_index, ordered)
    senders: dict[int, Sender] = {}

    def assign(positions: list[int], resume: Resume | None = None) -> None:
        """Give entries to one to three new senders; one that has begun stays the first of its sender."""
        parts: dict[int, list[int]] = {}
        for number, at in enumerate(positions):
            parts.setdefault(0 if resume and number == 0 else data.draw(st.integers(0, 2)), []).append(at)
        for number, part in parts.items():
            key = reorder.add_sender(part)
            cuts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
            edition = data.draw(st.integers(0, 2))
            senders[key] = Sender(part, sizes, failed, cuts, resume if number == 0 else None, edition)

    def race(key: int) -> None:
        """A second sender for some of what one is still to deliver."""
        part = [at for at in reorder.hedgeable(key).tolist() if data.draw(st.booleans())]
        if part:
            rival = reorder.add_sender(part, rival=True)
            senders[rival] = Sender(part, sizes, failed, [3], reorder.resume_of(part[0]), data.draw(st.integers(0, 2)))

    assign(list(range(n)))
    closes_left, races_left = 4, 4
    while senders:
        key = data.draw(st.sampled_from(sorted(senders)))
        action = data.draw(st.sampled_from(["push", "push", "push", "pop", "close", "race", "give up"]))
        sender = senders[key]
        if action == "pop":
            if (frame := reorder.pop(TARGET_BYTES)) is not None:
                consumer.take(frame)
        elif action == "close" and closes_left:
            closes_left -= 1
            del senders[key]
            left, resume = reorder.close_sender(key)
            assign(left.tolist(), resume)
        elif action == "race" and races_left:
            races_left -= 1
            race(key)
        elif action == "give up" and reorder.is_beaten(key):
            assert not len(reorder.close_sender(key)[0])
            del senders[key]
        elif sender.frames and (wanted := reorder.wanted(key, sender.frames.popleft())) is not None:
            assert reorder.next_sender is not None
            assert not len(reorder.push(key, wanted))
        if key in senders and not senders[key].frames:
            assert not len(reorder.close_sender(key)[0])
            del senders[key]
    assert reorder.next_sender is None and reorder.complete
    while (frame := reorder.pop(TARGET_BYTES)) is not None:
        consumer.take(frame)

    assert sorted(consumer.order) == list(range(n))
    assert not ordered or consumer.order == list(range(n))
    for at in range(n):
        editions = [b"" if at in failed else content(at, sizes[at], edition) for edition in range(3)]
        assert consumer.data[at] in editions, "an entry of two answers"
    assert consumer.status == {at: pb.FAILED if at in failed else pb.OK for at in range(n)}
    assert reorder.held_bytes == 0
    assert reorder.received.all()
    assert reorder.status.tolist() == [consumer.status[at] for at in range(n)]
    assert reorder.checksum.tolist() == [zlib.crc32(consumer.data[at]) for at in range(n)]


def small(entries: list[tuple[int, int]], size_bytes: int = 10) -> Frame:
    return frame_of([(index, at, content(at, size_bytes), pb.OK) for index, at in entries])


def test_what_is_the_next_run_is_passed_on_where_it_lies() -> None:
    reorder = Reorder(6, 100)
    key, other = reorder.add_sender([0, 2, 4]), reorder.add_sender([1, 3, 5])
    first, second = small([(0, 0), (1, 2), (2, 4)], 20), small([(0, 1), (1, 3), (2, 5)], 20)
    reorder.push(other, second)
    assert reorder.pop(TARGET_BYTES) is None
    reorder.push(key, first)
    out = [frame for frame in (reorder.pop(70), reorder.pop(70)) if frame]
    assert [frame.index.tolist() for frame in out] == [[100, 101, 102], [103, 104, 105]]
    entries = [entry for frame in out for entry in frame.entries()]
    assert all(entry.obj is (first, second)[at % 2].payload.obj for at, entry in enumerate(entries))
    assert [bytes(entry) for entry in entries] == [content(at, 20) for at in range(6)]


def test_small_entries_of_two_lanes_are_gathered_into_one_frame_and_their_bytes_are_let_go() -> None:
    reorder = Reorder(6)
    even, odd = reorder.add_sender([0, 2, 4]), reorder.add_sender([1, 3, 5])
    reorder.push(even, small([(0, 0), (1, 2), (2, 4)]))
    assert (reorder.next_sender, reorder.held_bytes_of(even), reorder.held_bytes_of(odd)) == (odd, 30, 0)
    reorder.push(odd, small([(0, 1), (1, 3), (2, 5)]))
    frame = reorder.pop()
    assert frame is not None
    assert frame.index.tolist() == [0, 1, 2, 3, 4, 5]
    assert bytes(frame.payload) == b"".join(content(at, 10) for at in range(6))
    assert (reorder.held_bytes, reorder.held_bytes_of(even), reorder.next_sender) == (0, 0, None)


def test_a_failed_entry_that_does_not_count_yet_goes_to_another_lane() -> None:
    reorder = Reorder(3, ordered=True)
    key = reorder.add_sender([0, 1, 2])
    frame = frame_of([(0, 0, b"a", pb.OK), (1, 1, b"", pb.NOT_FOUND), (2, 2, b"c", pb.OK)])
    left = reorder.push(key, frame, again=frame.status == pb.NOT_FOUND)
    assert left.tolist() == [1]
    assert reorder.next_sender == -1
    other = reorder.add_sender(left)
    assert reorder.next_sender == other
    reorder.push(other, frame_of([(0, 1, b"b", pb.OK)]))
    out = reorder.pop()
    assert out is not None
    assert (out.index.tolist(), bytes(out.payload), out.errors) == ([0, 1, 2], b"abc", {})


def test_entries_that_nobody_has_come_out_as_failed_in_their_place() -> None:
    reorder = Reorder(3, 5)
    key = reorder.add_sender([0, 2])
    reorder.fail([1], pb.UNAVAILABLE, EntryFault("nobody answers", "node-unavailable"))
    reorder.push(key, frame_of([(0, 0, b"a", pb.OK), (1, 2, b"c", pb.OK)]))
    out = reorder.pop()
    assert out is not None
    assert out.status.tolist() == [pb.OK, pb.UNAVAILABLE, pb.OK]
    assert out.errors == {6: EntryFault("nobody answers", "node-unavailable")}


@pytest.mark.parametrize("ordered", [True, False])
def test_a_large_entry_fails_after_some_of_its_pieces_when_nobody_can_go_on(ordered: bool) -> None:
    reorder = Reorder(2, ordered=ordered)
    key = reorder.add_sender([0, 1])
    reorder.push(key, frame_of([(0, 0, b"abc", pb.OK)], Piece(0, 6, "v")))
    left, resume = reorder.close_sender(key)
    assert (left.tolist(), resume) == ([0, 1], (3, zlib.crc32(b"abc"), "v"))
    assert reorder.resume_of(0) == resume
    reorder.fail(left, pb.UNAVAILABLE, EntryFault("gone"))
    out = []
    while (frame := reorder.pop()) is not None:
        out.append((frame.index.tolist(), frame.status.tolist(), bytes(frame.payload), frame.completes_entry))
    assert [each for each in out if each[0] == [0]] == [
        ([0], [pb.OK], b"abc", False),
        ([0], [pb.UNAVAILABLE], b"", True),
    ]
    assert [each for each in out if each[0] != [0]] == [([1], [pb.UNAVAILABLE], b"", True)]
    assert reorder.complete


@table(
    ("kind", "status"), [("", pb.UNAVAILABLE), ("object-not-found", pb.UNAVAILABLE), ("object-deleted", pb.NOT_FOUND)]
)
@table("at_last", [False, True])
def test_an_entry_of_which_pieces_have_come_is_not_missing_unless_it_was_deleted(
    kind: str, status: int, at_last: bool
) -> None:
    reorder = Reorder(1, first_index=4)
    key = reorder.add_sender([0])
    reorder.push(key, frame_of([(0, 0, b"abc", pb.OK)], Piece(0, 6, "v")))
    fault = EntryFault("it has version w", kind)
    if at_last:  # as nobody who was asked for the rest has it
        left, _ = reorder.close_sender(key)
        reorder.fail(left, pb.NOT_FOUND, fault)
    else:
        frame = frame_of([(0, 0, b"", pb.NOT_FOUND)])
        frame.errors[0] = fault
        reorder.push(key, frame)
    begun, failed = reorder.pop(), reorder.pop()
    assert begun is not None and failed is not None
    assert failed.status.tolist() == [status]
    assert fault.message in failed.errors[4].message
    assert failed.errors[4].kind == (kind if status == pb.NOT_FOUND else "node-unavailable")


@pytest.mark.parametrize("ordered", [True, False])
def test_an_entry_that_fails_after_some_of_its_pieces_takes_no_bytes_of_those_that_come_with_it(ordered: bool) -> None:
    reorder = Reorder(3, ordered=ordered)
    key = reorder.add_sender([0, 1, 2])
    reorder.push(key, frame_of([(0, 0, b"abc", pb.OK)], Piece(0, 6, "v")))
    reorder.push(key, frame_of([(0, 0, b"", pb.CORRUPT), (1, 1, b"one", pb.OK), (2, 2, b"other", pb.OK)]))
    assert reorder.held_bytes == len(b"abconeother")
    came: dict[int, list[bytes]] = {}
    while (frame := reorder.pop()) is not None:
        assert int(frame.size.sum()) == len(frame.payload)
        at = 0
        for index, size in zip(frame.index.tolist(), frame.size.tolist(), strict=True):
            came.setdefault(index, []).append(bytes(frame.payload[at : at + size]))
            at += size
    assert came == {0: [b"abc", b""], 1: [b"one"], 2: [b"other"]}


@pytest.mark.parametrize("status", [pb.OK, pb.FAILED])
def test_an_entry_that_the_consumer_has_begun_comes_before_pieces_of_others(status: int) -> None:
    """Any order: what the consumer has is a beginning of entry 0, and it takes one large entry at a time."""
    sizes = [3 * PIECE_BYTES, 2 * PIECE_BYTES, 5]
    reorder = Reorder(3, ordered=False, begun=True)
    first, other = reorder.add_sender([0]), reorder.add_sender([1, 2])
    for frame in Sender([1, 2], sizes, set(), [1]).frames:
        reorder.push(other, frame)
    came = reorder.pop()
    assert came is not None and came.index.tolist() == [2]
    assert reorder.pop() is None
    assert reorder.streaming_sender == first
    for frame in Sender([0], sizes, {0} if status else set(), [1]).frames:
        reorder.push(first, frame)
    order = []
    while (came := reorder.pop()) is not None:
        order += came.index.tolist()
    assert order == [0] * (1 if status else 3) + [1, 1]


def test_what_is_not_due_is_refused() -> None:
    reorder = Reorder(4)
    key = reorder.add_sender([0, 1])
    with pytest.raises(ValueError, match="belongs to another sender"):
        reorder.add_sender([1])
    with pytest.raises(FrameError, match="of a sender that has 2"):
        reorder.push(key, small([(2, 2)]))
    reorder.push(key, small([(0, 0)]))
    with pytest.raises(FrameError, match="came again"):
        reorder.push(key, small([(0, 0)]))
    with pytest.raises(FrameError, match="where None was due"):
        reorder.push(key, frame_of([(1, 1, b"abc", pb.OK)], Piece(3, 6, "v")))
    reorder.push(key, frame_of([(1, 1, b"abc", pb.OK)], Piece(0, 6, "v")))
    with pytest.raises(FrameError, match="due=3"):
        reorder.push(key, frame_of([(1, 1, b"def", pb.OK)], Piece(3, 6, "w")))
    with pytest.raises(FrameError, match="due=3"):
        reorder.push(key, small([(1, 1)]))
    reorder.close_sender(key)
    with pytest.raises(FrameError, match="not asked for any more"):
        reorder.push(key, frame_of([(1, 1, b"def", pb.OK)], Piece(3, 6, "v")))


@pytest.mark.parametrize("ordered", [True, False])
def test_the_first_of_two_lanes_to_deliver_an_entry_has_it_and_the_other_answer_is_passed_over(ordered: bool) -> None:
    reorder = Reorder(4, ordered=ordered)
    slow = reorder.add_sender([0, 1, 2, 3])
    reorder.push(slow, small([(0, 0)]))
    rival = reorder.add_sender(reorder.hedgeable(slow)[:2], rival=True)
    assert reorder.next_sender == slow and reorder.next_rival == rival
    assert reorder.hedgeable(slow).tolist() == [3]
    reorder.push(rival, small([(0, 1)], 7))
    late = reorder.wanted(slow, small([(1, 1), (2, 2)]))
    assert late is not None
    assert (late.index.tolist(), bytes(late.payload)) == ([2], content(2, 10))
    reorder.push(slow, late)
    assert reorder.is_beaten(rival) and not reorder.is_beaten(slow)
    assert reorder.wanted(rival, small([(1, 2)])) is None
    with pytest.raises(FrameError, match="came again"):
        again = small([(1, 1)])
        assert reorder.wanted(slow, again) is again  # it was late once, this is once too often
        reorder.push(slow, again)
    reorder.push(slow, small([(3, 3)]))
    out = b""
    while (frame := reorder.pop()) is not None:
        out += bytes(frame.payload)
    assert out == content(0, 10) + content(1, 7) + content(2, 10) + content(3, 10)
    assert reorder.complete and reorder.held_bytes == reorder.held_bytes_of(slow) == reorder.held_bytes_of(rival) == 0


def test_of_an_entry_in_pieces_only_one_lane_delivers_the_rest() -> None:
    reorder = Reorder(1)
    slow = reorder.add_sender([0])
    reorder.push(slow, frame_of([(0, 0, b"abc", pb.OK)], Piece(0, 9, "v")))
    rival = reorder.add_sender(reorder.hedgeable(slow), rival=True)
    assert reorder.resume_of(0) == (3, zlib.crc32(b"abc"), "v")
    reorder.push(rival, frame_of([(0, 0, b"def", pb.OK)], Piece(3, 9, "v")))
    assert reorder.wanted(slow, frame_of([(0, 0, b"def", pb.OK)], Piece(3, 9, "v"))) is None
    assert reorder.is_beaten(slow)
    assert reorder.wanted(slow, frame_of([(0, 0, b"ghi", pb.OK)], Piece(6, 9, "v"))) is None
    reorder.push(rival, frame_of([(0, 0, b"ghi", pb.OK)], Piece(6, 9, "v")))
    out = [reorder.pop() for _ in range(3)]
    assert b"".join(frame.payload for frame in out if frame) == b"abcdefghi"


def test_a_failure_that_does_not_count_and_a_lane_that_ends_leave_the_entry_to_the_other() -> None:
    reorder = Reorder(3)
    slow = reorder.add_sender([0, 1, 2])
    rival = reorder.add_sender([0, 1], rival=True)
    missing = frame_of([(0, 0, b"", pb.NOT_FOUND)])
    assert reorder.contested(rival, missing).tolist() == [True]
    assert not len(reorder.push(rival, missing, again=missing.status > 0))
    assert reorder.hedgeable(slow).tolist() == [0, 2]
    assert reorder.close_sender(slow)[0].tolist() == [0, 2]
    assert reorder.next_sender == -1
    assert reorder.close_sender(rival)[0].tolist() == [1]
    with pytest.raises(ValueError, match="belongs to none"):
        reorder.add_sender([0], rival=True)


def test_what_is_left_of_a_lane_that_did_not_keep_to_the_order_goes_on_in_two() -> None:
    """As a node that lies may have it: pieces of the last entry, and then no more."""
    reorder = Reorder(3)
    key = reorder.add_sender([0, 1, 2])
    reorder.push(key, frame_of([(2, 2, b"abc", pb.OK)], Piece(0, 6, "v")))
    left = reorder.close_sender(key)[0].tolist()
    assert left == [2, 0, 1]
    assert in_senders(left, ordered=False) == [left] and in_senders([0, 2], ordered=True) == [[0, 2]]
    begun, others = (reorder.add_sender(part) for part in in_senders(left, ordered=True))
    reorder.push(begun, frame_of([(0, 2, b"def", pb.OK)], Piece(3, 6, "v")))
    reorder.push(others, frame_of([(0, 0, b"x", pb.OK), (1, 1, b"y", pb.OK)]))
    out = b""
    while (frame := reorder.pop()) is not None:
        out += bytes(frame.payload)
    assert out == b"xyabcdef" and reorder.complete


@table("ordered", [True, False])
@table("popped", [0, 1, 2])
def test_an_entry_begins_again_and_what_is_held_of_it_is_dropped(ordered: bool, popped: int) -> None:
    def pieces(size_bytes: int, edition: int) -> list[Frame]:
        return list(Sender([1], [0, size_bytes], set(), [1], edition=edition).frames)

    buffer = Reorder(3, ordered=ordered)
    first = buffer.add_sender([1])
    for frame in pieces(100, 1)[:2]:
        buffer.push(first, frame)
    other = buffer.add_sender([0])
    buffer.push(other, frame_of([(0, 0, content(0, 5), pb.OK)]))
    out = [frame for frame in (buffer.pop(TARGET_BYTES) for _ in range(popped)) if frame is not None]
    left, resume = buffer.close_sender(first)
    assert left.tolist() == [1] and resume is not None and resume[0] == 2 * PIECE_BYTES
    again = buffer.add_sender([1, 2])
    with pytest.raises(FrameError, match="was due"):
        buffer.push(again, pieces(70, 2)[1])
    for frame in pieces(70, 2):
        buffer.push(again, frame)
    buffer.push(again, frame_of([(1, 2, content(2, 4), pb.OK)]))
    while (frame := buffer.pop(TARGET_BYTES)) is not None:
        out.append(frame)
    data = {0: b"", 1: b"", 2: b""}
    for frame in out:
        start, index = 0, frame.index.tolist()
        for at, size in zip(index, frame.size.tolist(), strict=True):
            kept = data[at][: frame.piece.offset] if frame.piece is not None else b""
            assert frame.piece is None or frame.piece.offset == len(kept)
            data[at] = kept + bytes(frame.payload[start : start + size])
            start += size
    assert data == {0: content(0, 5), 1: content(1, 70, 2), 2: content(2, 4)}
    assert buffer.complete and buffer.held_bytes == 0 and not buffer.begun
    assert not any(buffer.held_bytes_of(sender) for sender in (first, other, again))


def test_what_is_asked_for_again_leaves_the_bytes_of_the_others_in_their_places() -> None:
    reorder = Reorder(3, 0, ordered=True)
    frame = frame_of([(0, 0, b"zero", pb.OK), (1, 1, b"", pb.UNAVAILABLE), (2, 2, b"two", pb.OK)])
    frame.content = [memoryview(b"zero"), memoryview(b""), memoryview(b"two")]  # as from fragments
    assert reorder.push(reorder.add_sender([0, 1, 2]), frame, again=frame.status > 0).tolist() == [1]
    reorder.push(reorder.add_sender([1]), frame_of([(0, 1, b"one", pb.OK)]))
    out = reorder.pop(100)
    assert out is not None and [bytes(data) for data in out.entries()] == [b"zero", b"one", b"two"]
