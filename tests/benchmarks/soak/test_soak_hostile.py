"""Soak of a node under attack: what its rules find in invented samples, and a short run."""

from __future__ import annotations

import pytest

from ais_loader.testing import throwaway_folder
from benchmarks.soak.history import Operation
from benchmarks.soak.hostile import (
    CRITICAL_BYTES,
    DESCRIPTORS,
    MOST_BYTES,
    SPARE_DESCRIPTORS,
    STARVED_S,
    Phase,
    Sample,
    hostile,
    judge_node,
)
from benchmarks.soak.outcome import Outcome
from benchmarks.soak.overload import judge_progress
from tests.table import table

MiB = 1 << 20


def sampled(*found: tuple[Phase, int, int]) -> list[Sample]:
    return [Sample(float(at), phase, resident, descriptors) for at, (phase, resident, descriptors) in enumerate(found)]


@table(
    ("samples", "kinds"),
    [
        (sampled(("before", 80 * MiB, 50), ("attack", MOST_BYTES, DESCRIPTORS - 1), ("after", 99 * MiB, 60)), []),
        (sampled(("before", 80 * MiB, 50), ("attack", MOST_BYTES + 1, 60), ("after", 99 * MiB, 60)), ["memory"]),
        (sampled(("before", 80 * MiB, 50), ("attack", MiB, DESCRIPTORS), ("after", 99 * MiB, 60)), ["descriptors"]),
        (sampled(("before", MiB, 50), ("after", MiB, 51 + SPARE_DESCRIPTORS)), ["not calm"]),
        (sampled(("before", MiB, 50), ("after", MiB, 51 + SPARE_DESCRIPTORS), ("after", MiB, 50)), []),
        (sampled(("before", MiB, 50), ("after", CRITICAL_BYTES + 1, 50)), ["not calm"]),
        (sampled(("before", MiB, 50), ("attack", MiB, 50)), ["not calm"]),
    ],
)
def test_a_node_that_exceeds_its_bounds_or_does_not_recover_is_found(samples: list[Sample], kinds: list[str]) -> None:
    assert [wrong.kind for wrong in judge_node(samples)] == kinds


@pytest.mark.parametrize(("gap_s", "kinds"), [(STARVED_S - 1, []), (STARVED_S + 1, ["starved"])])
def test_a_client_that_waits_for_long_is_found(gap_s: float, kinds: list[str]) -> None:
    moments_s = [0.0, 1.0, 1.0 + gap_s]
    operations = [
        Operation("c", at, "read", int(end_s * 1e9), int(end_s * 1e9), "ok", {}, {})
        for at, end_s in enumerate(moments_s)
    ]
    outcome = Outcome("hostile", 1)
    judge_progress(operations, outcome, STARVED_S)
    assert [wrong.kind for wrong in outcome.violations] == kinds


@pytest.mark.exhaustive
def test_clients_are_served_rightly_beside_hostile_connections() -> None:
    with throwaway_folder() as folder:
        outcome = hostile(folder, seed=1, duration_s=25, say=print)
        assert [f"{wrong.kind}: {wrong.key}: {wrong.text}" for wrong in outcome.violations[:5]] == []
        assert outcome.events.total() > 5 and outcome.counts["put ok"] > 20 and outcome.counts["read ok"] > 20
