"""Frames cover a batch once and in order; those that are sent from files are larger, and bounded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from storage_node.store.read.frame_plan import (
    FILE_FRAME_BYTES,
    MAX_FILES,
    MAX_WHOLE_BYTES,
    FrameSpan,
    goes_from_files,
    plan_frames,
)

KIB, MIB = 1 << 10, 1 << 20


def plan(
    sizes: list[int], in_files: list[bool] | None = None, file_frame_bytes: int = FILE_FRAME_BYTES
) -> list[FrameSpan]:
    mask: npt.NDArray[np.bool_] = np.array([True] * len(sizes) if in_files is None else in_files, bool)
    return list(
        plan_frames(np.array(sizes, np.int64), target_bytes=MIB, in_files=mask, file_frame_bytes=file_frame_bytes)
    )


def cuts(spans: list[FrameSpan]) -> list[tuple[int, int]]:
    return [(span.first, span.stop) for span in spans]


def test_entries_in_files_fill_larger_frames() -> None:
    assert cuts(plan([MIB] * 10)) == [(0, 4), (4, 8), (8, 10)]
    assert cuts(plan([100 * KIB] * 128)) == [(0, 40), (40, 80), (80, 120), (120, 128)]
    assert cuts(plan([3 * MIB, MIB, MIB])) == [(0, 2), (2, 3)]


def test_a_frame_holds_so_many_files_and_no_more() -> None:
    assert cuts(plan([40 * KIB] * 130)) == [(0, MAX_FILES), (MAX_FILES, 2 * MAX_FILES), (2 * MAX_FILES, 130)]


def test_small_entries_are_cut_as_ever() -> None:
    sizes = [10 * KIB] * 500
    assert plan(sizes) == list(plan_frames(np.array(sizes, np.int64), target_bytes=MIB))


def test_small_entries_before_a_large_one_do_not_go_with_it() -> None:
    assert cuts(plan([KIB] * 20 + [3 * MIB, 500 * KIB])) == [(0, 20), (20, 22)]


def test_a_frame_ends_before_what_is_not_in_a_file() -> None:
    there = [True] * 6
    there[2] = False
    assert cuts(plan([MIB] * 6, there)) == [(0, 2), (2, 3), (3, 6)]


def test_little_credit_means_small_frames() -> None:
    assert cuts(plan([600 * KIB] * 6, file_frame_bytes=2 * MIB)) == [(0, 3), (3, 6)]
    assert cuts(plan([600 * KIB] * 6, file_frame_bytes=0)) == cuts(
        list(plan_frames(np.array([600 * KIB] * 6, np.int64), target_bytes=MIB))
    )


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 40 * KIB), st.integers(0, 300 * KIB), st.integers(0, 6 * MIB)),
            st.sampled_from((True, True, True, False)),
        ),
        max_size=200,
    ),
    st.sampled_from((0, 1, MIB, 2 * MIB, FILE_FRAME_BYTES)),
)
def test_every_plan_covers_all_once_in_order_and_is_bounded(entries: list[tuple[int, bool]], most_bytes: int) -> None:
    sizes, there = [size for size, _ in entries], [is_there for _, is_there in entries]
    due, offset = 0, 0
    for span in plan(sizes, there, most_bytes):
        assert span.first == due
        if span.is_piece:
            assert sizes[span.first] > MAX_WHOLE_BYTES and span.offset == offset and span.payload_bytes <= MIB
            offset += span.payload_bytes
            if offset == sizes[span.first]:
                due, offset = due + 1, 0
            continue
        assert span.payload_bytes == sum(sizes[span.first : span.stop])
        assert span.payload_bytes <= MAX_WHOLE_BYTES + MIB // 2
        rest = np.array(sizes[span.first :], np.int64)
        if span.payload_bytes != next(plan_frames(rest, target_bytes=MIB)).payload_bytes:
            assert all(there[span.first : span.stop])
            assert goes_from_files(span.stop - span.first, span.payload_bytes)
            assert span.payload_bytes <= most_bytes
        due = span.stop
    assert due == len(sizes) and not offset
