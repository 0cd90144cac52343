"""The bytes of a segment's index, and which pages of it can be given back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ais_loader.errors import StoreFormatError
from storage_node.store import format as fmt
from storage_node.store.checksum import crc32c
from storage_node.store.files import segment_format as segments
from storage_node.store.files.segment_format import (
    DEAD,
    FREED,
    HEAD_BYTES,
    LIVE,
    MAX_OBJECT_BYTES,
    PAGE_BYTES,
    UNKNOWN,
    Head,
    SlotPlace,
    round_up,
    row_offset,
)
from tests.table import table

TEXT = (Path(fmt.__file__).parents[1] / "FORMAT.md").read_text()
SIZES = st.lists(st.integers(0, 3 * PAGE_BYTES) | st.just(MAX_OBJECT_BYTES), min_size=1, max_size=20)


def encoded(sizes: list[int], states: Sequence[int] = ()) -> tuple[Head, list[int], list[bytes], bytes]:
    identities = [b"%d" % size * (at % 3) for at, size in enumerate(sizes)]
    head, offsets = segments.lay_out(sizes, [len(identity) for identity in identities])
    data = segments.encode_index(head, offsets, sizes, identities, states or [LIVE] * len(sizes))
    return head, offsets, identities, data


@given(sizes=SIZES)
def test_an_index_is_read_as_it_was_written_and_objects_overlap_neither_it_nor_each_other(sizes: list[int]) -> None:
    states = [*range(len(sizes) - 1), FREED]
    head, offsets, identities, data = encoded(sizes, states)
    assert segments.decode_head(data + b"what follows") == head and len(data) == head.index_bytes
    assert segments.decode_states(data[HEAD_BYTES:], len(sizes)).tolist() == states
    end = head.index_bytes
    for slot, (offset, size, identity) in enumerate(zip(offsets, sizes, identities, strict=True)):
        place = segments.decode_place(data[row_offset(slot) :], slot)
        assert place is not None and (place.offset, place.size) == (offset, size)
        assert data[place.identity_at :][: place.identity_bytes] == identity
        assert place.identity_checksum == crc32c(identity)
        assert segments.decode_state(data[row_offset(slot) :]) == states[slot]
        assert offset >= end and (size < 2048 or offset % PAGE_BYTES == 0) and offset % 8 == 0
        end = offset + size
    assert head.copy_at % PAGE_BYTES == 0 and end <= head.copy_at < end + PAGE_BYTES


@given(sizes=SIZES, at=st.integers(0), bits=st.integers(1, 255))
def test_one_wrong_byte_is_noticed_wherever_it_is(sizes: list[int], at: int, bits: int) -> None:
    _, _, identities, data = encoded(sizes)
    at %= len(data)
    damaged = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
    if at < HEAD_BYTES:
        with pytest.raises(StoreFormatError):
            segments.decode_head(damaged)
        return
    wrong = []
    for slot, identity in enumerate(identities):
        row = damaged[row_offset(slot) : row_offset(slot + 1)]
        place, state = segments.decode_place(row, slot), segments.decode_state(row)
        assert state == segments.decode_states(damaged[HEAD_BYTES:], len(sizes))[slot]
        if place is None or state == UNKNOWN or crc32c(_part(damaged, place)) != place.identity_checksum:
            wrong.append(slot)
        else:
            assert (state, _part(damaged, place)) == (LIVE, identity)
    assert len(wrong) == 1


def _part(data: bytes, place: SlotPlace) -> bytes:
    return data[place.identity_at : place.identity_at + place.identity_bytes]


@table("made_up", [bytes(48), b"\xff" * 48, b"\x55" * 48, b""])
def test_what_a_drive_makes_up_is_no_state_and_no_place(made_up: bytes) -> None:
    assert segments.decode_state(made_up) == UNKNOWN and segments.decode_place(made_up, 0) is None
    assert segments.decode_states(made_up * 3, 3).tolist() == [UNKNOWN] * 3
    assert segments.decode_states(made_up[:-1], 1).tolist() == [UNKNOWN]


def test_of_two_copies_the_later_state_counts() -> None:
    each = [LIVE, 5, 2**40, DEAD, FREED]
    one = np.array([*each * 5, *each, UNKNOWN], np.uint64)
    other = np.array([*(state for state in each for _ in each), *[UNKNOWN] * 6], np.uint64)
    wanted = [*(max(a, b) for b in each for a in each), *each, UNKNOWN]
    for merged in (segments.merge_states(one, other), segments.merge_states(other, one)):
        assert merged.tolist() == wanted


@example(sizes=[131072, 0, 131072], freed=[False] * 20, slots={0, 2}, untold=None)
@given(
    sizes=SIZES,
    freed=st.lists(st.booleans(), min_size=20, max_size=20),
    slots=st.sets(st.integers(0, 19), min_size=1),
    untold=st.integers(0, 19) | st.none(),
)
def test_holes_have_no_byte_of_an_object_that_is_alive_and_all_pages_of_those_that_are_freed(
    sizes: list[int], freed: list[bool], slots: set[int], untold: int | None
) -> None:
    slots = {slot % len(sizes) for slot in slots}
    gone = np.array([is_freed or slot in slots for slot, is_freed in enumerate(freed[: len(sizes)])])
    head, offsets, _, _ = encoded(sizes)

    def place(slot: int) -> tuple[int, int] | None:
        assert not gone[slot]
        return None if slot == untold else (offsets[slot], sizes[slot])

    holes = segments.holes_around(gone, slots, place, head.index_bytes, head.copy_at)
    assert holes == sorted(holes) and all(start % PAGE_BYTES == end % PAGE_BYTES == 0 for start, end in holes)
    assert all(head.index_bytes <= start < end <= head.copy_at for start, end in holes)
    given_back = {page for start, end in holes for page in pages(start, end - start)}
    alive = [(offset, size) for offset, size, is_gone in zip(offsets, sizes, gone, strict=True) if not is_gone]
    taken = {page for offset, size in [(0, head.index_bytes), *alive] for page in pages(offset, size)}
    assert not given_back & taken
    if untold is None:
        asked = {page for slot in slots for page in pages(offsets[slot], sizes[slot])}
        beside_empty = {offset // PAGE_BYTES for offset, size in alive if not size}  # it has no byte, but ends a hole
        assert asked - taken - beside_empty <= given_back


def pages(offset: int, size: int) -> range:
    """Those that have a byte of these."""
    return range(offset // PAGE_BYTES, round_up(offset + size, PAGE_BYTES) // PAGE_BYTES if size else 0)


def test_the_index_is_laid_out_as_the_tables_say() -> None:
    tables = TEXT[TEXT.index("A segment begins with its index") : TEXT.index("## Catalog")]
    rows = re.findall(r"^\| (\d+) \| (\S+)[^|]*\| ([^|]*) \|$", tables, re.MULTILINE)
    assert [int(offset) for offset, _, _ in rows] == [0, 4, 8, 12, 16, 24, 28, 0, 8, 16, 24, 28, 32, 36, 40, 44]
    head, offsets = segments.lay_out([5000, 10], [5, 7])
    assert (head, offsets) == ((2, 32 + 96 + 12, 12288), [4096, 9096])
    data = segments.encode_index(head, offsets, [5000, 10], [b"first", b"second!"], [DEAD, 7])

    def number(value: int, size: int = 4) -> bytes:
        return value.to_bytes(size, "little")

    begin = b"AISS" + number(2) + number(2) + number(140) + number(12288, 8)
    wanted = begin + number(crc32c(begin)) + bytes(4)
    for slot, (state, offset, size, at, identity) in enumerate(
        [(2**64 - 2, 4096, 5000, 128, b"first"), (7, 9096, 10, 133, b"second!")]
    ):
        check = (state * 0x9E3779B97F4A7C15 % 2**64) ^ 0xA1552653A1552653
        place = number(offset, 8) + number(size) + number(at) + number(len(identity)) + number(crc32c(identity))
        wanted += number(state, 8) + number(check, 8) + place + number(slot) + number(crc32c(place + number(slot)))
    assert data == wanted + b"firstsecond!"
    assert "0x9E3779B97F4A7C15" in tables and "0xA1552653A1552653" in tables


@table("generation", [1, 63, 64, 2**61])
def test_an_object_in_a_segment_is_named_as_if_the_segment_was_a_folder(generation: int) -> None:
    segment = segments.segment_path(generation)
    path = segments.slot_path(segment, 255, generation + 3)
    assert segment == b"segments/%02x/segment.%x" % (generation % 64, generation)
    assert path == b"%b/ff.%x" % (segment, generation + 3)
    assert (segments.is_segment(segment), segments.is_slot(segment)) == (True, False)
    assert (segments.is_segment(path), segments.is_slot(path)) == (False, True)
    assert segments.file_of(path) == segments.file_of(segment) == segment
    assert (segments.slot_of(path), fmt.generation_of_path(path)) == (255, generation + 3)
    assert segments.file_of(b"00/1f/aa.1") == b"00/1f/aa.1"
