"""When a ratio has fallen, where a knee is, and limits that are measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reads import access_patterns
from benchmarks.reads.access_patterns import COLOURS, Latencies
from benchmarks.report.__main__ import latencies_part
from benchmarks.report.judging import fallen, knee, ratios
from benchmarks.report.limits import memcpy, through_socket
from tests.table import table


def test_a_ratio_is_the_median_of_those_within_rounds() -> None:
    rates = {"ours": [2.0, 30.0, 4.0], "theirs": [1.0, 10.0, 4.0]}
    assert ratios(rates, {"gain": ("ours", "theirs")}) == {"gain": 2.0}


def test_what_fell_and_what_is_gone_is_told() -> None:
    recorded = {"a": 1.0, "b": 1.0, "c": 1.0}
    told = fallen({"a": 0.8, "b": 0.79}, recorded)
    assert [line[0] for line in told] == ["b", "c"]
    assert fallen(recorded | {"new": 0.1}, recorded) == []


def test_the_knee_is_the_fewest_workers_near_the_best() -> None:
    assert knee({1: 100.0, 2: 190.0, 4: 310.0, 8: 330.0, 16: 320.0}) == 4
    assert knee({1: 5.0}) == 1


def test_copying_is_measured() -> None:
    assert memcpy(1000, 10) > 0


@pytest.mark.slow
@table("tcp", [False, True])
@table("from_file", [False, True])
def test_blocks_come_through_sockets_of_each_kind(tcp: bool, from_file: bool) -> None:
    assert through_socket(10_000, 5, tcp=tcp, from_file=from_file) > 0


@pytest.mark.slow
def test_latencies_of_all_rounds_are_told_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measured(shards: int, members: int, batches: int, rounds: int, folder: Path) -> dict[str, list[Latencies]]:
        found: dict[str, list[Latencies]] = {name: [Latencies() for _ in range(rounds)] for name in COLOURS}
        for rounds_of_one in found.values():
            for number, one in enumerate(rounds_of_one):
                one.add([0.0, 0.001, 0.002 + number])
        return found

    monkeypatch.setattr(access_patterns, "measure", measured)
    text, figures = latencies_part(2, tmp_path)
    assert set(figures) == set(COLOURS)
    assert figures[access_patterns.GET_BATCH] == {"batches_s": [0.002, 1.002]}
    assert "| random GETs | " in text
    assert (tmp_path / "latencies.png").read_bytes().startswith(b"\x89PNG")
