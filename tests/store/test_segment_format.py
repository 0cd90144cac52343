"""The bytes of a segment's index, and which pages of it can be given back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.store import format as fmt
from storage_node.store import segment_format as segments
from storage_node.store.checksum import crc32c
from storage_node.store.errors import FormatError
from storage_node.store.segment_format import MAX_OBJECT_BYTES, PAGE_BYTES, SegmentIndex

TEXT = (Path(fmt.__file__).parents[1] / "FORMAT.md").read_text()
SIZES = st.lists(st.integers(0, 3 * PAGE_BYTES) | st.just(MAX_OBJECT_BYTES), min_size=1, max_size=20)


def index_of(sizes: list[int]) -> SegmentIndex:
    identities = [b"%d" % size * (at % 3) for at, size in enumerate(sizes)]
    index_bytes, offsets = segments.lay_out(sizes, [len(identity) for identity in identities])
    return SegmentIndex(offsets, sizes, identities, index_bytes)


@given(sizes=SIZES)
def test_an_index_is_read_as_it_was_written_and_objects_overlap_neither_it_nor_each_other(sizes: list[int]) -> None:
    index = index_of(sizes)
    data = segments.encode_index(index, range(len(sizes)))
    assert segments.index_size(data) == len(data) == index.index_bytes
    assert segments.decode_index(data + b"what follows") == index
    assert segments.decode_states(data, len(sizes)).tolist() == list(range(len(sizes)))
    end = index.index_bytes
    for offset, size in zip(index.offsets, sizes, strict=True):
        assert offset >= end and (size < 2048 or offset % PAGE_BYTES == 0) and offset % 8 == 0
        end = offset + size


@given(sizes=SIZES, at=st.integers(0), bit=st.integers(0, 7))
def test_an_index_with_one_wrong_bit_is_refused_unless_it_is_in_a_state(sizes: list[int], at: int, bit: int) -> None:
    index = index_of(sizes)
    data = bytearray(segments.encode_index(index, [0] * len(sizes)))
    at %= len(data)
    data[at] ^= 1 << bit
    if segments.HEAD_BYTES <= at < segments.state_offset(len(sizes)):
        assert segments.decode_index(bytes(data)) == index
    else:
        with pytest.raises(FormatError):
            segments.decode_index(bytes(data))


@given(
    sizes=SIZES, freed=st.lists(st.booleans(), min_size=20, max_size=20), slots=st.sets(st.integers(0, 19), min_size=1)
)  # fmt: skip
def test_holes_have_no_byte_of_an_object_that_is_alive_and_all_pages_of_those_that_are_freed(
    sizes: list[int], freed: list[bool], slots: set[int]
) -> None:
    slots = {slot % len(sizes) for slot in slots}
    freed = [is_freed or slot in slots for slot, is_freed in enumerate(freed[: len(sizes)])]
    index = index_of(sizes)
    holes = segments.holes_around(index, freed, slots, index.offsets[-1] + sizes[-1])
    assert holes == sorted(holes) and all(start % PAGE_BYTES == end % PAGE_BYTES == 0 for start, end in holes)
    assert all(index.index_bytes <= start < end for start, end in holes)
    given_back = {page for start, end in holes for page in pages(start, end - start)}
    taken = set(pages(0, index.index_bytes))
    for offset, size, is_freed in zip(index.offsets, sizes, freed, strict=True):
        taken.update(pages(offset, size) if not is_freed else ())
    assert not given_back & taken
    asked = {page for slot in slots if sizes[slot] for page in pages(index.offsets[slot], sizes[slot])}
    assert asked - taken <= given_back


def pages(offset: int, size: int) -> range:
    return range(offset // PAGE_BYTES, (offset + max(size, 1) - 1) // PAGE_BYTES + 1)


def test_the_index_is_laid_out_as_the_table_says() -> None:
    table = TEXT[TEXT.index("A segment begins with its index") :]
    rows = re.findall(r"^\| (\d+) \| (\S+)[^|]*\| ([^|]*) \|$", table, re.MULTILINE)[:7]
    assert [int(offset) for offset, _, _ in rows] == [0, 4, 8, 12, 16, 20, 24]
    index = SegmentIndex([4096, 12288], [5000, 10], [b"first", b"second!"], segments.lay_out([5000, 10], [5, 7])[0])
    data = segments.encode_index(index, [segments.DEAD, segments.FREED])
    entry = (4096).to_bytes(8, "little") + (5000).to_bytes(4, "little") + b"\5\0first"
    other = (12288).to_bytes(8, "little") + (10).to_bytes(4, "little") + b"\7\0second!"
    head = b"AISS" + b"".join(number.to_bytes(4, "little") for number in (1, 2, len(entry + other)))
    states = (2**64 - 2).to_bytes(8, "little") + (2**64 - 1).to_bytes(8, "little")
    checksum = crc32c(head + entry + other).to_bytes(4, "little")
    assert data == head + checksum + bytes(4) + states + entry + other


@pytest.mark.parametrize("generation", [1, 63, 64, 2**63])
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
