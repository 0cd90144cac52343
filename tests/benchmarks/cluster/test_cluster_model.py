"""The model of clusters: invariants that hold for any figures, and a case computed by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

from benchmarks.cluster.model import MEASURED_RATES, MIB, Costs, Hardware, Setup, main, simulate, validate
from tests.table import table

MODES: list[Literal["target", "direct"]] = ["target", "direct"]
KIB = 1 << 10
NO_COSTS = Costs(*[0.0] * 10)


@table("mode", MODES)
@table(("size", "per_owner", "sigma"), [(10 * KIB, 4, 0.0), (MIB, 8, 0.0), (100 * KIB, 0, 1.0)])
def test_every_entry_is_delivered_once_and_in_request_order(
    mode: Literal["target", "direct"], size: int, per_owner: int, sigma: float
) -> None:
    result = simulate(
        Setup(8, mode, size, entries=64, per_owner=per_owner, size_sigma=sigma, batches=60, seed=3, record=True)
    )
    entries = per_owner * min(8, 64 // per_owner) if per_owner else 64
    complete = [positions for positions in result.delivered.values() if len(positions) == entries]
    assert len(complete) == 60
    assert all(positions == list(range(len(positions))) for positions in result.delivered.values())


@pytest.mark.parametrize("mode", MODES)
def test_bytes_are_neither_made_nor_lost(mode: Literal["target", "direct"]) -> None:
    result = simulate(Setup(4, mode, 100 * KIB, entries=32, per_owner=8, workers=1, in_flight=1, batches=40))
    one_more = 32 * 100 * KIB  # the batch that begins when the last one ends has not been read yet
    assert result.delivered_bytes == 40 * one_more
    assert result.read_bytes == result.to_client_bytes == result.delivered_bytes
    if mode == "direct":
        assert result.node_to_node_bytes == 0
    else:
        assert result.node_to_node_bytes == result.delivered_bytes * 3 // 4, "a quarter is the target's own"


@pytest.mark.parametrize("mode", MODES)
def test_a_faster_network_is_never_slower(mode: Literal["target", "direct"]) -> None:
    rates = []
    for gigabits in (1, 4, 16, 64):
        hardware = Hardware(nic_bytes_s=gigabits * 1e9 / 8)
        rates.append(simulate(Setup(4, mode, MIB, entries=32, per_owner=8, batches=80, hardware=hardware)).bytes_s)
    assert all(faster >= 0.99 * slower for slower, faster in pairwise(rates))
    assert rates[-1] > 2 * rates[0]


@pytest.mark.slow
def test_where_only_the_network_costs_a_target_moves_each_byte_twice() -> None:
    hardware = Hardware(nic_bytes_s=1e9, latency_s=0.0, drive_bytes_s=1e15, drive_latency_s=0.0)
    setup = Setup(8, "direct", MIB, entries=32, per_owner=4, in_flight=8, batches=400)
    setup = replace(setup, costs=NO_COSTS, hardware=hardware)
    direct = simulate(setup).bytes_s / 8e9
    target = simulate(replace(setup, mode="target", target_of="request")).bytes_s / 8e9
    assert 0.8 < direct <= 1.01
    assert target == pytest.approx(direct * 8 / 15, rel=0.2), "seven of eight bytes go out of a NIC twice"


def test_one_batch_worked_out_by_hand() -> None:
    costs = replace(NO_COSTS, node_request_s=3e-3, node_byte_s=2e-9, read_byte_s=1e-9, client_request_s=4e-3)
    hardware = Hardware(nic_bytes_s=1e9, latency_s=1e-3, drive_bytes_s=1e15, drive_latency_s=0.0)
    setup = Setup(2, "direct", 100_000, entries=4, per_owner=2, workers=1, in_flight=1, batches=3)
    setup = replace(setup, costs=costs, hardware=hardware)
    # Asks twice (2 ms each); the second owner takes 1 ms to reach, 3.4 ms, 0.2 ms of wire, 1 ms back; then 2 ms.
    assert simulate(setup).latencies_s == pytest.approx([0.0116] * 2)
    # Asks (2 ms), 1 ms; plans (3 ms), asks the other owner (2 ms), and reads its own entries while that one works;
    # the other takes 1 + 3.4 + 0.2 + 1 ms, 2 ms to accept; 0.4 ms to emit; wire 0.4 ms, 1 ms; the client's half 2 ms.
    expected = 0.002 + 0.001 + 0.003 + 0.002 + 0.0056 + 0.002 + 0.0004 + 0.0004 + 0.001 + 0.002
    assert simulate(replace(setup, mode="target")).latencies_s == pytest.approx([expected] * 2)


def test_the_same_seed_gives_the_same_figures() -> None:
    setup = Setup(4, "target", 10 * KIB, per_owner=4, batches=50, seed=9)
    assert simulate(setup).latencies_s == simulate(setup).latencies_s
    assert simulate(setup).latencies_s != simulate(replace(setup, seed=10)).latencies_s


@pytest.mark.slow
def test_the_page_is_made_with_its_pictures(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(main, ["--quick", "--folder", str(tmp_path)], catch_exceptions=False)
    assert outcome.exit_code == 0
    page = (tmp_path / "model.md").read_text()
    pictures = re.findall(r"\((\w+\.png)\)", page)
    assert pictures == ["model.png"]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    assert "nan" not in page


@pytest.mark.slow
def test_predictions_of_one_node_are_within_a_third_of_what_was_measured() -> None:
    assert {name: predicted / measured for name, measured, predicted in validate()} == {
        name: pytest.approx(1.0, abs=0.34) for name, _, _ in MEASURED_RATES
    }
