"""Recycled buffers: never used again while anybody sees their bytes, and soon when nobody does."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader import connect
from ais_loader.testing import seeded_bytes
from ais_loader.transport.session import recycled
from tests.node.node_kit import serving

KIB = 1 << 10
SIZES = [256 * KIB, 256 * KIB + 1, 300 * KIB, 512 * KIB, 1024 * KIB]
HOLDERS: dict[str, Callable[[memoryview], Any]] = {
    "view": lambda view: view.toreadonly(),
    "slice": lambda view: view[7:-9][3:].toreadonly(),
    "array": lambda view: np.frombuffer(view, np.uint8),
    "slice of an array": lambda view: np.frombuffer(view, np.uint8, offset=5)[::3],
    "tensor": lambda view: torch.frombuffer(view, dtype=torch.uint8),
    "slice of a tensor": lambda view: torch.from_numpy(np.frombuffer(view, np.uint8))[4:90],
    "cast": lambda view: view[:1024].cast("I"),
}


@pytest.fixture(autouse=True)
def _nothing_is_idle() -> Iterator[None]:
    recycled._idle.clear()
    yield
    recycled._idle.clear()


def block_of(view: memoryview) -> Any:
    """The memory that is lent, itself: an address alone may be malloc's, given anew."""
    exporter: Any = view.obj
    return exporter.base.base


def address(view: Any) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def bytes_of(held: Any) -> bytes:
    return np.asarray(held).tobytes()


@settings(max_examples=25)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(SIZES), st.sampled_from(sorted(HOLDERS)), st.integers(0, 5)), min_size=1, max_size=12
    )
)
def test_bytes_that_somebody_sees_stay_as_they_are_whatever_is_taken_later(steps: list[tuple[int, str, int]]) -> None:
    held: dict[int, tuple[Any, bytes]] = {}
    for number, (size_bytes, holder, place) in enumerate(steps):
        view = recycled.take(size_bytes)
        view[:] = bytes([number + 1]) * size_bytes
        kept = HOLDERS[holder](view)
        held[place] = kept, bytes_of(kept)  # whoever was in this place is let go
        del view, kept
        for others, expected in held.values():
            assert bytes_of(others) == expected


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_buffer_comes_back_with_the_last_who_holds_it_and_not_before_as_often_as_it_is_taken(holder: str) -> None:
    view = recycled.take(SIZES[0])
    block = block_of(view)
    for _ in range(3):
        held = HOLDERS[holder](view)
        del view
        assert block_of(recycled.take(SIZES[0])) is not block
        recycled._idle.clear()
        del held
        view = recycled.take(SIZES[0])
        assert block_of(view) is block


def test_what_lies_in_a_cycle_comes_back_when_the_cycle_has_gone_and_not_while_its_finalizers_run() -> None:
    seen = []

    class InACycle:
        def __init__(self) -> None:
            self.myself, self.view = self, recycled.take(SIZES[0])
            self.view[:1] = b"x"

        def __del__(self) -> None:
            other = recycled.take(SIZES[0])
            other[:1] = b"y"
            seen.append(bytes(self.view[:1]))

    gc.collect()
    InACycle()
    recycled._idle.clear()
    gc.collect()
    assert seen == [b"x"]
    assert len(recycled._idle) == 2 and not recycled._lent


def test_what_lies_idle_is_bounded_and_what_came_last_is_used_first() -> None:
    views = [recycled.take(4096 * KIB) for _ in range(9)]
    last = block_of(views[-1])
    while views:
        views.pop(0)
    assert sum(map(len, recycled._idle)) == recycled.IDLE_BYTES
    assert block_of(recycled.take(4096 * KIB)) is last


def test_a_buffer_that_is_much_too_large_is_left_to_others() -> None:
    recycled.take(4096 * KIB)
    small = recycled.take(300 * KIB)
    assert len(small) == 300 * KIB
    assert len(block_of(small)) == 512 * KIB
    assert [len(idle) for idle in recycled._idle] == [4096 * KIB]


def test_a_view_that_is_read_only_can_be_hashed_as_one_of_bytes_can() -> None:
    view = recycled.take(SIZES[0])
    view[:] = bytes(SIZES[0])
    assert hash(view.toreadonly()) == hash(memoryview(bytes(SIZES[0])))


def test_threads_that_take_and_let_go_at_once_never_see_each_others_bytes() -> None:
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            view = recycled.take(SIZES[0])
            view[::4096] = bytes([number]) * len(view[::4096])
            if bytes(view[::4096]) != bytes([number]) * len(view[::4096]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not wrong


def test_items_that_are_kept_stay_right_while_later_batches_come_into_the_buffers_of_dropped_ones(
    tmp_path: Path,
) -> None:
    data = {f"{at}": seeded_bytes(400_000 + at, seed=at) for at in range(12)}
    with serving(tmp_path) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        for name, value in data.items():
            bucket.put(name, value)
        used: set[int] = set()
        frames = 0
        kept: list[tuple[str, Any]] = []
        for turn in range(8):
            batch = bucket.get_batch(list(data), timeout_s=20)
            items = list(batch)
            addresses = {address(item.data.obj) for item in items}
            frames, used = frames + len(addresses), used | addresses
            item = items[turn]
            kept.append((item.entry.name, np.frombuffer(item.data, np.uint8) if turn % 2 else item.data[5:]))
            del items, item, batch
            for name, held in kept:
                assert bytes_of(held) == data[name][-len(held) :]
        assert client.describe()["lane"] == "unix"
        assert len(used) < frames, "no buffer was used twice"
