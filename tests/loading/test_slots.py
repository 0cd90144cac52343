"""Slots: what a worker writes arrives as views, and no slot is written again while there is one."""

from __future__ import annotations

import gc
import os
import resource
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ais_loader.loading.slots import Parcel, SlotReader, SlotWriter
from ais_loader.values.packed import PackedBatch
from tests.table import table

LARGE = 50_000


class Channel:
    """Both ends in one process."""

    def __init__(self, most: int = 2) -> None:
        self.writer, self.reader = SlotWriter(most), SlotReader()
        self.parcel = Parcel()

    def pass_on(self, value: Any) -> Any:
        self.parcel, file = self.writer.write(value)
        if file is not None:
            self.reader.map(self.parcel.slot or 0, file)
            os.close(file)
        return self.reader.read(self.parcel)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


MIXED = {
    "tensors": [torch.arange(LARGE, dtype=torch.int64).view(-1, 2), torch.tensor(1.5, dtype=torch.bfloat16)],
    "arrays": (np.arange(LARGE, dtype=np.float32), np.arange(3) > 1, np.zeros((0, 4)), np.array(["2020"], "M8[D]")),
    "strided": (torch.arange(100).view(10, 10).t(), np.arange(100).reshape(10, 10)[::2, ::3]),
    "others": [b"bytes", "text", None, 7, {"deeper": (torch.tensor([True, False]), torch.zeros(0, 3))}],
    "complex": torch.tensor([1 + 2j]).conj(),
    "fortran": np.asfortranarray(np.arange(12).reshape(3, 4)),
}


@table(
    "shape, order",
    [
        ((2, 3, 40, 50), (0, 2, 3, 1)),
        ((2, 1, 90, 90), (0, 2, 3, 1)),
        ((1, 3, 90, 90), (0, 2, 3, 1)),
        ((60, 7, 50), (2, 0, 1)),
    ],
)
def test_the_memory_format_of_a_tensor_survives(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    channel = Channel()
    sent = torch.arange(int(np.prod(shape)), dtype=torch.int32).view([shape[at] for at in order])
    sent = sent.permute([order.index(at) for at in range(len(shape))])
    for value in (sent, sent[1:], sent[..., ::2], sent.to(torch.float64)):
        got = channel.pass_on({"x": value})["x"]
        assert torch.equal(got, value)
        if value is not sent[..., ::2] and value.numel() == sent.numel():
            assert got.stride() == value.stride()
    if len(shape) == 4:
        last = sent.contiguous(memory_format=torch.channels_last)
        got = channel.pass_on(last)
        assert got.is_contiguous(memory_format=torch.channels_last) and got.stride() == last.stride()


def test_mixed_structures_arrive_as_they_were() -> None:
    channel = Channel()
    assert same(channel.pass_on(MIXED), MIXED)
    assert channel.parcel.slot is not None


@table("size_bytes", [0, 1_000, 64 << 10, 100_000, 300_000])
def test_bytes_among_arrays_arrive_as_they_were_with_and_without_a_slot(size_bytes: int) -> None:
    data = os.urandom(size_bytes)
    value = [data, np.arange(LARGE), "text", bytearray(data), [data, data[1:]], "é" * size_bytes]
    for channel in (Channel(), Channel(most=0)):
        got = channel.pass_on(value)
        assert same(got, value) and [type(one) for one in got] == [type(one) for one in value]
        assert (channel.parcel.slot is None) == (channel.writer._most == 0)


def test_small_values_need_no_slot_and_can_be_written_to() -> None:
    channel = Channel()
    got = channel.pass_on({"array": np.arange(4), "tensor": torch.arange(4)})
    assert channel.parcel.slot is None
    got["array"][0] = got["tensor"][0] = 9
    assert got["array"].tolist() == got["tensor"].tolist() == [9, 1, 2, 3]


def test_arrays_and_tensors_are_aligned_views_of_the_slot() -> None:
    channel = Channel()
    got = channel.pass_on([np.ones(3, np.uint8), torch.ones(LARGE), np.ones(5, np.float64)])
    slot = np.frombuffer(channel.reader._slots[0], np.uint8)
    for one in got:
        array = one.numpy() if isinstance(one, torch.Tensor) else one
        assert np.shares_memory(array, slot)
        assert (array.ctypes.data - slot.ctypes.data) % 64 == 0


def test_a_packed_batch_arrives_without_a_copy() -> None:
    channel = Channel()
    packed = PackedBatch(np.arange(LARGE).view(np.uint8), np.array([0, 5, 8 * LARGE]), np.zeros(2, np.uint8))
    got = channel.pass_on(packed)
    assert bytes(got[1]) == bytes(packed[1])
    assert np.shares_memory(got.values, np.frombuffer(channel.reader._slots[0], np.uint8))


@pytest.mark.slow
def test_a_slot_is_written_again_when_the_last_view_is_dropped() -> None:
    channel = Channel(most=1)
    batch = channel.pass_on([torch.zeros(LARGE), np.zeros(LARGE)])
    part = batch[0][10:20].view(2, 5).numpy()[1]
    del batch
    gc.collect()
    other = channel.pass_on([torch.ones(LARGE)])
    assert channel.parcel.slot is None, "a part of the tensor still refers to the slot"
    assert part.tolist() == [0] * 5
    del part
    gc.collect()
    assert channel.pass_on([torch.full((LARGE,), 2.0)])[0][0] == 2
    assert channel.parcel.slot == 0 and not channel.parcel.is_new
    assert other[0][0] == 1


@table("steps", range(6))
def test_memory_beneath_a_view_is_not_written_again_while_it_is_seen(steps: int) -> None:
    channel = Channel(most=1)
    beneath: Any = channel.pass_on(np.zeros(LARGE))
    for _ in range(steps):
        if isinstance(beneath, (memoryview, np.ndarray)):
            beneath = beneath.obj if isinstance(beneath, memoryview) else beneath.base
    held = np.asarray(beneath)
    expected = held.tobytes()
    del beneath
    gc.collect()
    channel.pass_on(np.ones(LARGE))
    assert channel.parcel.slot is None and held.tobytes() == expected


@pytest.mark.slow
def test_a_cap_bounds_the_slots_and_larger_batches_replace_one() -> None:
    channel = Channel(most=2)
    held = [channel.pass_on(torch.full((LARGE,), at)) for at in range(5)]
    assert len(channel.writer._slots) == len(channel.reader._slots) == 2
    assert [int(one[-1]) for one in held] == list(range(5))
    held.clear()
    gc.collect()
    assert channel.pass_on(torch.full((4 * LARGE,), 7))[-1] == 7
    assert channel.parcel.slot is not None and len(channel.writer._slots) == 2


@pytest.mark.slow
def test_full_memory_is_told_once_and_nothing_is_lost() -> None:
    channel = Channel(most=3)
    kept = channel.pass_on(torch.zeros(LARGE))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        assert channel.pass_on(torch.ones(LARGE))[-1] == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert channel.parcel.slot is None and "large" in channel.parcel.failure
    del kept
    gc.collect()
    assert channel.pass_on(torch.ones(LARGE))[-1] == 1
    assert channel.parcel.slot == 0


@pytest.mark.slow
def test_a_forked_child_that_drops_views_does_not_give_the_slot_back() -> None:
    channel = Channel(most=1)
    batch = channel.pass_on(np.zeros(LARGE))
    child = os.fork()
    if not child:
        del batch
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    channel.pass_on(np.ones(LARGE))
    assert channel.parcel.slot is None
    assert not batch.any()


@pytest.mark.slow
def test_no_descriptor_is_left() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    channel = Channel()
    batch = channel.pass_on(np.zeros(LARGE))
    del channel, batch
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


DTYPES = st.sampled_from(["u1", "i2", "i4", "f2", "f4", "f8", "c8", "?"])
ARRAYS = st.builds(
    lambda dtype, shape, is_tensor: torch.from_numpy(np.ones(shape, dtype)) if is_tensor else np.ones(shape, dtype),
    DTYPES,
    st.lists(st.integers(0, 30), max_size=3),
    st.booleans(),
)
TREES = st.recursive(ARRAYS | st.binary(max_size=9) | st.none(), lambda tree: st.lists(tree) | st.tuples(tree, tree))


@pytest.mark.slow
@given(st.lists(TREES, max_size=6))
def test_any_sequence_of_batches_arrives_while_all_are_held(trees: list[Any]) -> None:
    channel = Channel(most=3)
    values = [{"tree": tree, "ballast": np.full(LARGE, at, np.uint8)} for at, tree in enumerate(trees)]
    held = [channel.pass_on(value) for value in values]
    assert same(held, values)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: page-locked slots")
def test_pinned_slots_are_page_locked() -> None:
    channel = Channel()
    channel.reader = SlotReader(pin_memory=True)
    got = channel.pass_on(torch.arange(LARGE))
    assert got.is_pinned()
    assert torch.equal(got.to("cuda", non_blocking=True).cpu(), torch.arange(LARGE))
    assert same(channel.pass_on(MIXED), MIXED)


def test_what_one_of_several_readers_has_changed_takes_no_memory_once_it_has_dropped_it() -> None:
    writer, reader = SlotWriter(1), SlotReader(shared_as=3)
    parcel, file = writer.write(np.zeros(LARGE), [3])
    array = reader.read(parcel, file)
    array[:] = 1
    del array
    mapping = reader._slots[0]
    assert not any(mapping[slice(*parcel.spans[0])]), "the copies of its pages are there"
    assert not writer._slots[0][3]


def test_a_batch_is_never_read_from_a_slot_that_was_replaced() -> None:
    writer, reader = SlotWriter(1), SlotReader()
    reader.read(*writer.write(np.zeros(LARGE)))
    parcel, file = writer.write(np.ones(4 * LARGE))
    assert file is not None
    os.close(file)
    empty = os.memfd_create("empty")  # which cannot be mapped
    for at in (empty, None):
        with pytest.raises((ValueError, KeyError)):
            reader.read(parcel, at)


def test_a_slot_that_is_being_replaced_has_nothing_to_copy() -> None:
    writer, reader = SlotWriter(1), SlotReader(shared_as=0)
    parcel, file = writer.write(np.zeros(LARGE), [0])
    reader.read(parcel, file)
    copied = reader.copied(parcel)
    assert copied is not None and len(copied.parts[0]) == 8 * LARGE
    empty = os.memfd_create("empty")  # which cannot be mapped, as in the moment before another one is
    with pytest.raises(ValueError, match="empty"):
        reader.map(0, empty)
    os.close(empty)
    assert reader.copied(parcel) is None
