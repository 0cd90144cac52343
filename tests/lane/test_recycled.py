"""Recycled buffers: never used again while anybody sees their bytes, and soon when nobody does."""

from __future__ import annotations

import ctypes
import gc
import pickle
import platform
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ais_loader import connect
from ais_loader.testing import seeded_bytes
from ais_loader.transport.session.lane import Lanes
from ais_loader.wire import recycled
from tests.node.node_kit import serving
from tests.table import table


def _torch() -> Any:
    import torch  # takes a second, which only the tests with tensors need

    return torch


KIB = 1 << 10
SIZES = [256 * KIB, 256 * KIB + 1, 300 * KIB, 512 * KIB, 1024 * KIB]
HOLDERS: dict[str, Callable[[memoryview], Any]] = {
    "view": lambda view: view.toreadonly(),
    "slice": lambda view: view[7:-9][3:].toreadonly(),
    "array": lambda view: np.frombuffer(view, np.uint8),
    "slice of an array": lambda view: np.frombuffer(view, np.uint8, offset=5)[::3],
    "tensor": lambda view: _torch().frombuffer(view, dtype=_torch().uint8),
    "slice of a tensor": lambda view: _torch().from_numpy(np.frombuffer(view, np.uint8))[4:90],
    "cast": lambda view: view[:1024].cast("I"),
    "pickle buffer": lambda view: pickle.PickleBuffer(view),
    "object": lambda view: view.obj,
    "view of the object": lambda view: memoryview(view.obj),
    "ctypes object": lambda view: (ctypes.c_ubyte * view.nbytes).from_buffer(view.obj),
}
BENEATH: dict[str, Callable[[memoryview], Any]] = {
    "array of the object": lambda view: np.asarray(view.obj),
    "slice of an array of the object": lambda view: np.asarray(view.obj)[3:-5],
    "array of a view of the object": lambda view: np.frombuffer(memoryview(view.obj), np.uint8),
    "tensor of the object": lambda view: _torch().from_numpy(np.asarray(view.obj)),
    "tensor of the object by dlpack": lambda view: _torch().from_dlpack(np.asarray(view.obj)),
    "array of the object by dlpack": lambda view: np.from_dlpack(np.asarray(view.obj)),
    "base": lambda view: view.obj.base,  # type: ignore[attr-defined]
    "array of the base": lambda view: np.asarray(view.obj.base)[:],  # type: ignore[attr-defined]
    "memory": lambda view: view.obj.base.base,  # type: ignore[attr-defined]
    "view of the memory": lambda view: memoryview(view.obj.base.base),  # type: ignore[attr-defined]
    "ctypes object in the memory": lambda view: (ctypes.c_ubyte * view.nbytes).from_buffer(
        view.obj.base.base  # type: ignore[attr-defined]
    ),
}
"""What refers to the memory itself, and not only to the array that it is lent as."""
ALL = HOLDERS | BENEATH


@pytest.fixture(autouse=True)
def _nothing_is_idle() -> Iterator[None]:
    recycled._idle.clear()
    yield
    recycled._idle.clear()


def idle_bound_bytes(block_bytes: int) -> int:
    """Return how much of idle blocks is kept; as much as is lent, also by what earlier tests have left."""
    lent_bytes = sum(len(loan.block) for loan in list(recycled._loans.values()))
    return max(recycled.IDLE_BYTES, min(lent_bytes, recycled.MAX_IDLE_BYTES) // block_bytes * block_bytes)


def block_of(view: memoryview) -> weakref.ref[Any]:
    """The memory that is lent, itself: an address alone may be malloc's, given anew."""
    exporter: Any = view.obj
    return weakref.ref(exporter.base.base)


def address(view: Any) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


def bytes_of(held: Any) -> bytes:
    return np.asarray(held).tobytes()


@settings(max_examples=25)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(SIZES), st.sampled_from(sorted(ALL)), st.integers(0, 5)), min_size=1, max_size=12
    )
)
def test_bytes_that_somebody_sees_stay_as_they_are_whatever_is_taken_later(steps: list[tuple[int, str, int]]) -> None:
    held: dict[int, tuple[Any, bytes]] = {}
    for number, (size_bytes, holder, place) in enumerate(steps):
        view = recycled.take(size_bytes)
        view[:] = bytes([number + 1]) * size_bytes
        kept = ALL[holder](view)
        held[place] = kept, bytes_of(kept)  # whoever was in this place is let go
        del view, kept
        for others, expected in held.values():
            assert bytes_of(others) == expected


@table("holder", HOLDERS)
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


@table("holder", ALL)
def test_a_buffer_is_not_used_again_while_anything_refers_to_it(holder: str) -> None:
    view = recycled.take(SIZES[0])
    view[:] = b"x" * len(view)
    held = ALL[holder](view)
    del view
    expected = bytes_of(held)
    for _ in range(3):
        later = recycled.take(SIZES[0])
        later[:] = b"y" * len(later)
        del later
    assert bytes_of(held) == expected and b"x" in expected


@pytest.mark.slow
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
    of_others = set(recycled._loans)  # of threads that earlier tests have left
    InACycle()
    recycled._idle.clear()
    gc.collect()
    assert seen == [b"x"]
    assert len(recycled._idle) == 2 and recycled._loans.keys() <= of_others


def test_what_lies_idle_is_bounded_and_what_came_last_is_used_first() -> None:
    views = [recycled.take(2048 * KIB) for _ in range(3 + idle_bound_bytes(2048 * KIB) // (2048 * KIB))]
    last = block_of(views[-1])
    while views:
        views.pop(0)
    assert sum(map(len, recycled._idle)) == idle_bound_bytes(2048 * KIB)
    assert block_of(recycled.take(2048 * KIB)) is last


def test_as_much_may_lie_idle_as_is_lent() -> None:
    batches = [[recycled.take(2048 * KIB) for _ in range(30)] for _ in range(2)]
    del batches[0]
    assert len(recycled._idle) == 30
    before = {id(block) for block in recycled._idle}
    batches.append([recycled.take(2048 * KIB) for _ in range(30)])
    assert {id(block_of(view)()) for view in batches[-1]} == before
    batches.clear()
    assert sum(map(len, recycled._idle)) == idle_bound_bytes(2048 * KIB)


def test_one_large_buffer_is_kept_besides() -> None:
    large = 64 << 20
    view = recycled.take(large)
    block = block_of(view)()
    smaller = [recycled.take(2048 * KIB) for _ in range(8)]
    del view
    smaller.clear()
    assert sum(map(len, recycled._idle)) == recycled.IDLE_BYTES + len(block)
    del block
    again = recycled.take(large - (1 << 20))
    assert (len(again), len(recycled._idle)) == (large - (1 << 20), 8)
    assert recycled.take(recycled.MAX_LARGE_BYTES + 1) is not None
    assert len(recycled._idle) == 8  # one that is too large is not kept


@pytest.mark.parametrize("mib", [4, 5, 31])
def test_large_buffers_begin_at_a_huge_page(mib: int) -> None:
    views = [recycled.take((mib << 20) + at) for at in range(3)]
    assert [np.frombuffer(view, np.uint8).ctypes.data % (2 << 20) for view in views] == [0, 0, 0]
    assert [len(view) for view in views] == [(mib << 20) + at for at in range(3)]


def test_a_buffer_that_is_much_too_large_is_left_to_others() -> None:
    recycled.take(3072 * KIB)
    small = recycled.take(300 * KIB)
    assert len(small) == 300 * KIB
    assert len(block_of(small)()) == 512 * KIB
    assert [len(idle) for idle in recycled._idle] == [3072 * KIB]


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
        thread.join(180)
    assert not wrong


def refuse_unix(self: Lanes, offer: object) -> NoReturn:
    raise ConnectionRefusedError


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The given (buffer|NumPy array) is not writable:UserWarning")
@pytest.mark.parametrize("socket", ["unix", "tcp"])
def test_whatever_is_kept_of_items_stays_right_while_later_batches_come_into_the_buffers_of_dropped_ones(
    tmp_path: Path, socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if socket == "tcp":
        monkeypatch.setattr(Lanes, "_by_unix", refuse_unix)
    data = {f"{at}": seeded_bytes(400_000 + at, seed=at) for at in range(12)}
    with serving(tmp_path) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        for name, value in data.items():
            bucket.put(name, value)
        used: set[int] = set()
        frames = 0
        kept: list[tuple[Any, bytes]] = []
        holders = list(ALL)
        for turn in range(len(holders) + 2):
            batch = bucket.get_batch(list(data), timeout_s=180.0)
            if turn >= len(holders):
                packed = batch.packed()
                values = packed.values if turn % 2 else memoryview(packed.values)
                kept.append((values, b"".join(data.values())))
                del packed, values
            else:
                items = list(batch)
                assert {item.entry.name: bytes(item.data) for item in items} == data
                addresses = {address(item.data.obj) for item in items}
                frames, used = frames + len(addresses), used | addresses
                held = ALL[holders[turn]](items[turn % len(items)].data)
                kept.append((held, bytes_of(held)))
                del items, held
            del batch
            for held, expected in kept:
                assert bytes_of(held) == expected
            del held
        assert client.describe()["lane"] == socket
        assert len(used) < frames, "no buffer was used twice"


@pytest.mark.slow
def test_what_a_file_received_is_freed_with_it_and_not_by_the_collector(tmp_path: Path) -> None:
    """Reading a file that is larger than what comes with its opening leaves no batch behind."""
    size_bytes = 1 << 20
    with serving(tmp_path) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        bucket.put("a", bytes(size_bytes))
        gc.collect()
        before = len(recycled._loans)
        gc.disable()
        try:
            for _ in range(10):
                with bucket.open("a") as file:
                    assert len(file.read(size_bytes)) == size_bytes
                with bucket.open("a") as file:
                    file.read(1)
            assert len(recycled._loans) <= before + 2
        finally:
            gc.enable()


_BYTES_OF_EACH_EPOCH = """
import resource, sys
import ais_loader

store = ais_loader.connect(sys.argv[1], mode="r")
names = [f"{number:02}" for number in range(16)]


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def read() -> None:
    for _ in range(4):
        held = store.bucket("b").get_batch(names).tobytes()  # is dropped when the next one is there
        assert [len(one) for one in held] == [100 << 10] * 8 + [1 << 20] * 8


read()
before = faults()
read()
print(faults() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="how malloc keeps memory is that of glibc")
def test_bytes_of_a_batch_take_the_memory_of_an_earlier_one(tmp_path: Path) -> None:
    sizes = [100 * KIB] * 8 + [1024 * KIB] * 8
    with connect(tmp_path) as store:
        store.create_bucket("b").put_many((f"{at:02}", seeded_bytes(size)) for at, size in enumerate(sizes))
    done = subprocess.run(
        [sys.executable, "-c", _BYTES_OF_EACH_EPOCH, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    pages = 4 * sum(sizes) // 4096
    assert int(done.stdout) < pages / 20, "each batch touches memory that is new to the process"
