"""A whole answer is accepted however it was cut into frames, and an answer with anything amiss is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.wire.answer_check import AnswerCheck, digest, digest_of_ok
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.frame import U8, U32, WIRE_U32, Frame, FrameError, Piece
from ais_loader.wire.generated import ais_batch_pb2 as pb
from tests.table import table

VERSION = "7"


@dataclass(frozen=True)
class Part:
    """Entries first .. first + len(contents) - 1 in one frame; of one entry, perhaps only what lies at `offset`."""

    first: int
    contents: tuple[bytes, ...]
    offset: int | None = None
    """Where the part of a large entry begins; None: whole entries."""
    stop: int = 0


def is_failed(content: bytes) -> bool:
    return not content


def frame_of(part: Part, first_index: int = 0) -> Frame:
    whole = part.contents
    sent = whole if part.offset is None else (whole[0][part.offset : part.stop],)
    covered = whole if part.offset is None else (whole[0][: part.stop],)
    return Frame(
        index=np.arange(first_index + part.first, first_index + part.first + len(whole)).astype(WIRE_U32),
        size=np.array([len(content) for content in sent], WIRE_U32),
        checksum=np.array([crc32c(content) for content in covered], WIRE_U32),
        status=np.array([pb.NOT_FOUND if is_failed(content) else pb.OK for content in whole], np.uint8),
        checksum_kind=np.zeros(len(whole), np.uint8),
        content=memoryview(b"".join(sent)),
        piece=None if part.offset is None else Piece(part.offset, len(whole[0]), VERSION),
    )


def columns(contents: Sequence[bytes]) -> tuple[U8, U32]:
    status = np.array([pb.NOT_FOUND if is_failed(content) else pb.OK for content in contents], np.uint8)
    return status, np.array([crc32c(content) for content in contents], np.uint32)


def end_of(contents: Sequence[bytes]) -> pb.End:
    status, checksum = columns(contents)
    return pb.End(entries=len(contents), failed_entries=int((status != 0).sum()), digest=digest(status, checksum))


def accept(check: AnswerCheck, frames: Sequence[Frame], end: pb.End) -> None:
    for frame in frames:
        check.take(frame)
    check.finish(end)


# Distinct contents: what stands in another's place has another checksum. An empty one stands for a failure.
CONTENTS = st.lists(st.binary(max_size=12), min_size=1, max_size=9).map(
    lambda found: [content and bytes((at,)) + content for at, content in enumerate(found)]
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[bytes], list[Part]]:
    """Contents, and the same cut into frames: runs of whole entries, and single entries in pieces."""
    contents = draw(CONTENTS)
    parts: list[Part] = []
    first = 0
    while first < len(contents):
        content = contents[first]
        if len(content) > 1 and draw(st.booleans()):
            cuts = sorted(draw(st.sets(st.integers(1, len(content) - 1), min_size=1, max_size=3)))
            bounds = [0, *cuts, len(content)]
            parts += [Part(first, (content,), at, stop) for at, stop in pairwise(bounds)]
            first += 1
            continue
        count = draw(st.integers(1, len(contents) - first))
        parts.append(Part(first, tuple(contents[first : first + count])))
        first += count
    return contents, parts


@given(answers(), st.sampled_from([0, 5, 70_000]), st.booleans())
def test_a_whole_answer_is_accepted_however_it_was_cut(
    answer: tuple[list[bytes], list[Part]], first_index: int, verify: bool
) -> None:
    contents, parts = answer
    check = AnswerCheck(len(contents), first_index, verify=verify)
    accept(check, [frame_of(part, first_index) for part in parts], end_of(contents))
    assert (check.received, check.partial) == (len(contents), None)


@given(answers(), st.data())
def test_an_answer_that_breaks_off_may_go_on_in_another_one(
    answer: tuple[list[bytes], list[Part]], data: st.DataObject
) -> None:
    contents, parts = answer
    check = AnswerCheck(len(contents), verify=True)
    broken_at = data.draw(st.integers(0, len(parts)))
    for part in parts[:broken_at]:
        check.take(frame_of(part))
    before = check.received
    check.restart()
    accept(check, [frame_of(part) for part in parts[broken_at:]], end_of(contents[before:]))
    assert check.received == len(contents)


@given(answers(), st.data())
def test_the_rest_of_an_entry_begins_where_it_was_asked_for(
    answer: tuple[list[bytes], list[Part]], data: st.DataObject
) -> None:
    contents, parts = answer
    if parts[0].offset is None:
        return
    begins = parts[data.draw(st.integers(1, sum(part.first == 0 for part in parts) - 1))]
    assert begins.offset is not None
    rest = [frame_of(part) for part in parts if part.first or (part.offset or 0) >= begins.offset]
    accept(AnswerCheck(len(contents), resume_offset=begins.offset), rest, end_of(contents))
    for wrong in (0, begins.offset + 1):
        with pytest.raises(FrameError, match="arrived after nothing"):
            AnswerCheck(len(contents), resume_offset=wrong).take(rest[0])


@table("breaks", [True, False])
def test_an_entry_may_begin_again(breaks: bool) -> None:
    before, after, last = b"of the first version", b"and of the second, which is longer", b"last"

    def frames(content: bytes) -> list[Frame]:
        return [frame_of(Part(0, (content,), at, stop)) for at, stop in pairwise([0, 6, 12, len(content)])]

    check = AnswerCheck(2, verify=True)
    for frame in frames(before)[:2]:
        check.take(frame)
    if breaks:
        check.restart()
    else:  # or what was asked for is the rest: of another node, say
        check = AnswerCheck(2, resume_offset=12, verify=True)
    with pytest.raises(FrameError, match="arrived after"):
        check.take(frames(after)[1])
    accept(check, [*frames(after), frame_of(Part(1, (last,)))], end_of([after, last]))


@given(answers(), st.data())
def test_an_answer_with_anything_amiss_is_not_accepted(
    answer: tuple[list[bytes], list[Part]], data: st.DataObject
) -> None:
    contents, parts = answer
    at = data.draw(st.integers(0, len(parts) - 1))
    frames = [frame_of(part) for part in parts]
    end = end_of(contents)
    one = frames[at]
    kind = data.draw(st.sampled_from(["lost", "twice", "swapped", "status", "checksum", "piece", "end", "payload"]))
    if kind == "lost":
        del frames[at]
    elif kind == "twice":
        if one.piece is not None and not one.piece.offset:
            return  # it begins again
        frames.insert(at, one)
    elif kind == "swapped":
        if at + 1 == len(frames):
            return
        frames[at], frames[at + 1] = frames[at + 1], one
    elif kind == "status":
        status = one.status.copy()
        status[-1] = pb.CORRUPT if status[-1] == pb.OK else pb.OK
        frames[at] = replace(one, status=status)
    elif kind == "checksum":
        if not one.completes_entry:
            return  # of a piece in the middle only its own bytes say that it is wrong
        checksum = one.checksum.copy()
        checksum[-1] ^= 1
        frames[at] = replace(one, checksum=checksum)
    elif kind == "piece":
        if one.piece is None or (at == 0 and len(frames) == 1):
            return
        other = data.draw(st.sampled_from([{"offset": one.piece.offset + 1}, {"entry_size": 99}, {"version": "8"}]))
        if one.piece.offset == 0 and "offset" not in other:
            return  # the first piece says what the others must be
        frames[at] = replace(one, piece=replace(one.piece, **other))  # type: ignore[arg-type]
    elif kind == "end":
        field = data.draw(st.sampled_from(["entries", "failed_entries", "digest"]))
        setattr(end, field, (getattr(end, field) + 1) % (1 << 32))
    else:
        if not len(one.payload):
            return
        changed = bytearray(one.payload)
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1
        frames[at] = replace(one, content=memoryview(bytes(changed)))
    with pytest.raises(FrameError):
        accept(AnswerCheck(len(contents), verify=kind == "payload"), frames, end)


@given(CONTENTS, st.data())
def test_what_another_puts_in_order_is_compared_with_end_all_the_same(
    contents: list[bytes], data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(contents))))
    check, short = AnswerCheck(len(contents)), AnswerCheck(len(contents))
    for k, at in enumerate(order):
        frame = frame_of(Part(at, (contents[at],)))
        check.count(frame)
        if k:
            short.count(frame)
    check.finish(end_of(contents))
    with pytest.raises(FrameError):
        short.finish(end_of(contents))


def test_an_answer_may_end_behind_a_failure_only_where_that_was_asked_for() -> None:
    contents = [b"a", b"", b"c"]
    frame = frame_of(Part(0, (b"a", b"")))
    end = end_of(contents[:2])
    end.outcome = pb.End.STOPPED
    accept(AnswerCheck(3, may_stop=True), [frame], end)
    with pytest.raises(FrameError, match="ended after 2 of 3"):
        accept(AnswerCheck(3), [frame], end)
    end = end_of(contents[:1])
    end.outcome = pb.End.STOPPED
    with pytest.raises(FrameError, match="ended after 1 of 3"):
        accept(AnswerCheck(3, may_stop=True), [frame_of(Part(0, (b"a",)))], end)


@given(st.integers(0, (1 << 32) - 1))
def test_the_digest_of_one_good_entry_has_a_short_form(checksum: int) -> None:
    assert digest_of_ok(checksum) == digest(np.zeros(1, np.uint8), np.array([checksum], np.uint32))
