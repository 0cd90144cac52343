"""What is measured, what it is measured with, and what cannot be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from ais_loader.bench.calls import numbers
from ais_loader.bench.filling import content, equal
from ais_loader.bench.plan import BenchPlan, Sizes, size_bytes
from ais_loader.bench.tally import BenchTally
from ais_loader.errors import InvalidRequest
from tests.table import table


def plan(workload: str = "get-batch", url: str = "grpc://127.0.0.1:1", **fields: Any) -> BenchPlan:
    return BenchPlan(workload=workload, url=url, **fields)


def test_sizes_are_read_as_people_write_them() -> None:
    assert [size_bytes(text) for text in ("7", "10KiB", "1.5mib", "2 kB")] == [7, 10240, 1572864, 2000]


@table("text", ["", "ten", "10XB", "-1", "1MiB..4KiB", "lognormal:1KiB:0", "lognormal:0", "2000GiB"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Sizes.parse(text)


@pytest.mark.parametrize("text", ["4KiB..64KiB", "lognormal:10KiB:0.8"])
def test_sizes_differ_within_their_limits_and_are_the_same_again(text: str) -> None:
    sizes = Sizes.parse(text)
    drawn = [sizes.of(number) for number in range(500)]
    assert drawn == [Sizes.parse(text).of(number) for number in range(500)]
    assert len(set(drawn)) > 100
    assert (sizes.low if not sizes.sigma else 1) <= min(drawn) <= max(drawn) <= sizes.high


@table(
    ("fields", "says"),
    [
        ({"workload": "sing"}, "no workload"),
        ({"threads": 0}, "threads=0"),
        ({"duration_s": float("nan")}, "duration_s"),
        ({"workload": "put", "cold": True, "warm_up_s": 0}, "cold is about reads"),
        ({"cold": True}, "warm-up"),
        ({"workload": "put", "url": "/store", "processes": 2}, "one writer"),
        ({"workload": "ranges", "size": "1KiB"}, "do not fit"),
        ({"puts_percent": 101}, "percent"),
    ],
)
def test_what_cannot_be_measured_is_told(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        plan(**fields)


@table("size", [0, 1, 4095, (1 << 22) + 17, 3 << 22])
def test_bytes_follow_from_the_number_alone(size: int) -> None:
    data = bytes(content(5, size))
    assert len(data) == size
    assert equal(data, 5, size)
    if size:
        assert not equal(data[:-1] + bytes([data[-1] ^ 1]), 5, size)
        assert not equal(data + b"x", 5, size)
    if size > 100:
        assert equal(data[10:30], 5, size, start=10)
        assert not equal(data, 6, size)


def test_workers_share_the_objects_of_an_epoch() -> None:
    asked = plan(threads=2, processes=2, objects=101, epochs=2)
    shares = [list(numbers(asked, worker, asked.epochs)) for worker in range(asked.workers)]
    assert sorted(number for share in shares for number in share) == sorted([*range(101)] * 2)


def test_other_fills_are_other_folders() -> None:
    assert plan().prefix == plan("get", threads=4, batch=8).prefix
    assert len({plan().prefix, plan("members").prefix, plan(size="1KiB").prefix, plan(objects=5).prefix}) == 4


def test_tallies_add_up_over_processes() -> None:
    total = BenchTally()
    for elapsed_us in (100, 300):
        one = BenchTally()
        one.record(elapsed_us * 1000, 2, 20)
        one.errors["corrupt"] += 1
        total.add(BenchTally.unpacked(one.packed()))
    assert (total.calls, total.objects, total.size_bytes, total.errors["corrupt"]) == (2, 4, 40, 2)
    assert total.latency_ms()["p50"] == pytest.approx(0.1, rel=0.01)
    assert total.latency_ms()["max"] == pytest.approx(0.3, rel=0.01)
    assert BenchTally.unpacked(BenchTally().packed()).latency_ms() == {}
