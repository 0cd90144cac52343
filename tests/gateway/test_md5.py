"""MD5 of bodies: the digests are hashlib's, alone and side by side, however the bytes are cut."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from storage_node.gateway import md5
from storage_node.gateway.md5 import LANES, Md5

STREAMS = 20
TIMEOUT_S = 120.0
needs_lanes = pytest.mark.skipif(not LANES, reason="no native module, or no AVX-512VL: hashlib computes them")


@pytest.fixture(params=["lanes", "hashlib"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "hashlib":
        monkeypatch.setattr(md5, "LANES", 0)
    elif not LANES:
        pytest.skip("no native module, or no AVX-512VL")
    return str(request.param)


def cut(rng: random.Random, data: bytes) -> list[bytes]:
    pieces, at = [], 0
    while at < len(data):
        size = rng.choice([1, 63, 64, 65, 1000, 64 << 10, 200_000])
        pieces.append(data[at : at + size])
        at += size
    return pieces


def expected(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 1000, 65_536, 65_537, 1_000_003])
def test_the_digest_is_that_of_hashlib(implementation: str, size: int) -> None:
    data = random.Random(size).randbytes(size)
    rng = random.Random(1)
    made = Md5()
    made.update([])
    for piece in cut(rng, data):
        made.update([piece, b""])
    assert made.hexdigest() == expected(data)
    assert made.hexdigest() == expected(data), "a digest can be asked for twice"
    made.update([b"more"])
    assert made.hexdigest() == expected(data + b"more")


def test_bodies_of_many_threads_do_not_mix(implementation: str) -> None:
    begins = threading.Barrier(STREAMS)

    def run(number: int) -> None:
        rng = random.Random(number)
        data = rng.randbytes(rng.randint(0, 1_500_000))
        pieces, made = cut(rng, data), Md5()
        begins.wait(TIMEOUT_S)
        while pieces:
            count = rng.randint(1, 8)
            made.update(pieces[:count])
            pieces = pieces[count:]
        assert made.hexdigest() == expected(data)

    with ThreadPoolExecutor(STREAMS) as pool:
        for one in [pool.submit(run, number) for number in range(STREAMS)]:
            one.result(TIMEOUT_S)


@needs_lanes
def test_updates_that_arrive_meanwhile_advance_together(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    native, all_wait = md5.md5_advance, threading.Event()

    def advance(streams: Sequence[Any]) -> None:
        widths.append(len(streams))
        if len(widths) == 1:
            assert all_wait.wait(TIMEOUT_S)
        native(streams)

    monkeypatch.setattr(md5, "md5_advance", advance)
    together = md5._Together()
    monkeypatch.setattr(md5, "_together", together)
    data = [random.Random(number).randbytes(1 << 20) for number in range(LANES + 2)]
    bodies = [Md5() for _ in data]
    with ThreadPoolExecutor(len(data)) as pool:
        running = [pool.submit(body.update, [one]) for body, one in zip(bodies, data, strict=True)]
        deadline = threading.Event()
        while len(together._updates) < len(data):  # each is added before it waits
            assert not deadline.wait(0.001)
        all_wait.set()
        for one in running:
            one.result(TIMEOUT_S)
    assert widths[:2] == [1, LANES]
    assert not together._updates
    monkeypatch.setattr(md5, "md5_advance", native)
    assert [body.hexdigest() for body in bodies] == [expected(one) for one in data]


@needs_lanes
def test_an_error_reaches_every_thread_that_waits_and_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    native = md5.md5_advance

    def advance(streams: Sequence[Any]) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(md5, "md5_advance", advance)
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(Md5().update, [bytes(1 << 20)]) for _ in range(4)]
        for one in running:
            with pytest.raises(MemoryError):
                one.result(TIMEOUT_S)
    monkeypatch.setattr(md5, "md5_advance", native)
    made = Md5()
    made.update([bytes(1 << 20)])
    assert made.hexdigest() == expected(bytes(1 << 20))


@needs_lanes
def test_the_native_function_refuses_what_is_no_stream() -> None:
    state = bytearray(md5._BEGINNING)
    for streams in ([(state, [b"list"])], [state], [(state,)], [(bytes(state), (b"",))], [(state, ("text",))], 7):
        with pytest.raises((TypeError, BufferError)):
            md5.md5_advance(streams)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="88 bytes"):
        md5.md5_advance([(bytearray(87), (b"",))])
    assert state == md5._BEGINNING
    state.append(0)  # no call has kept it
