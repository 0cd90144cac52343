"""Experiments on the model of clusters, each a table of results; `cluster_model` writes them up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from benchmarks.cluster_costs import LOOPBACK, MIB, Hardware
from benchmarks.cluster_placement import Balance, Movement, balance, movement, uniformity
from benchmarks.cluster_simulation import Result, Setup, simulate

KIB = 1 << 10
SIZES = (10 * KIB, 100 * KIB, MIB)
Mode = Literal["target", "direct"]
MODES: tuple[Mode, ...] = ("target", "direct")
Say = Callable[[str], None]

MEASURED_RATES: tuple[tuple[str, Setup, int], ...] = (
    ("GetBatch ×128, 10 KiB, 1 client", Setup(1, "direct", 10 * KIB, workers=1, in_flight=3), 59_833),
    ("GetBatch ×128, 10 KiB, 4 clients", Setup(1, "direct", 10 * KIB, workers=4, in_flight=3), 60_210),
    ("GetBatch ×128, 100 KiB, 1 client", Setup(1, "direct", 100 * KIB, workers=1, in_flight=3), 12_106),
    ("GetBatch ×128, 100 KiB, 4 clients", Setup(1, "direct", 100 * KIB, workers=4, in_flight=3), 11_607),
    ("GetBatch ×128, 1 MiB, 1 client", Setup(1, "direct", MIB, workers=1, in_flight=3), 1_533),
    ("GetBatch ×128, 1 MiB, 4 clients", Setup(1, "direct", MIB, workers=4, in_flight=3), 1_307),
    ("single GET, 10 KiB, 4 clients", Setup(1, "direct", 10 * KIB, entries=1, workers=4, in_flight=1), 8_849),
)
"""Objects per second of the tables in `getbatch.md`: one node and its clients on 2 cores, page cache warm."""


THREE_NODES = (
    (10 * KIB, 4.66e-3, 1.72e-3, 2.23e-3),
    (100 * KIB, 18.1e-3, 4.84e-3, 12.4e-3),
    (MIB, 148e-3, 45.5e-3, 85.7e-3),
)
"""CPU seconds per batch of 128 of the target, of each of two other owners, and of the client, by size: means of three
rounds with three real nodes, one client, three batches in flight. The machine was busy with other work (a load of 6 on
2 cores), which makes CPU time dearer: what counts is what one part costs against another."""


def three_nodes() -> list[tuple[int, tuple[float, float, float], tuple[float, float, float]]]:
    """(size, measured, predicted), each of target, owner and client."""
    found = []
    for size, *measured in THREE_NODES:
        result = simulate(Setup(3, "target", size, workers=1, in_flight=3, batches=150, hardware=LOOPBACK))
        mean, most = result.node_cpu
        per_batch = (most, (3 * mean - most) / 2, result.worker_cpu)
        target, owner, client = (use / result.batches_s for use in per_batch)
        found.append((size, (measured[0], measured[1], measured[2]), (target, owner, client)))
    return found


def validate() -> list[tuple[str, float, float]]:
    """(what, measured, predicted) in objects per second."""
    found: list[tuple[str, float, float]] = []
    for name, setup, measured in MEASURED_RATES:
        predicted = simulate(replace(setup, hardware=LOOPBACK, batches=200 if setup.entries > 1 else 4_000))
        found.append((name, measured, predicted.batches_s * setup.entries))
    return found


def _batches(hosts: int) -> int:
    return {4: 400, 16: 500, 64: 600, 256: 1_500}.get(hosts, max(80, 4 * hosts))


def grid(hosts_of: tuple[int, ...], say: Say) -> dict[tuple[int, int, int, Mode], Result]:
    """By (hosts, size, entries per owner, mode), with two workers for each host and a batch under way for each."""
    found: dict[tuple[int, int, int, Mode], Result] = {}
    for hosts in hosts_of:
        for size in SIZES:
            per_owners: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64) if hosts == 64 else (1, 4, 16, 64)
            if hosts > 256:  # each batch of 128 owners is 600 events
                per_owners = (1, 16, 64) if size < MIB else (16,)
            for per_owner in per_owners:
                for mode in MODES:
                    found[hosts, size, per_owner, mode] = simulate(
                        Setup(hosts, mode, size, per_owner=per_owner, in_flight=1, batches=_batches(hosts))
                    )
            say(f"{hosts} hosts, {size >> 10} KiB done")
    return found


KINDS: dict[str, tuple[Mode, Literal["session", "request"]]] = {
    "target, one per session": ("target", "session"),
    "target, one per request": ("target", "request"),
    "direct": ("direct", "session"),
}


def few_workers(per_owners: tuple[int, ...], say: Say, batches: int = 300) -> dict[tuple[int, int, str], Result]:
    """By (size, entries per owner, kind): 4 workers, 8 batches in flight each, and 64 hosts that have time to spare."""
    found = {}
    for size in SIZES:
        for per_owner in per_owners:
            for kind, (mode, target_of) in KINDS.items():
                found[size, per_owner, kind] = simulate(
                    Setup(
                        64,
                        mode,
                        size,
                        entries=64,
                        per_owner=per_owner,
                        workers=4,
                        in_flight=8,
                        batches=batches,
                        target_of=target_of,
                    )
                )
    say("few workers done")
    return found


def quiet_latency(per_owners: tuple[int, ...]) -> dict[tuple[int, int, Mode], Result]:
    """By (size, entries per owner, mode): one worker, one batch at a time, nobody else."""
    return {
        (size, per_owner, mode): simulate(
            Setup(64, mode, size, entries=64, per_owner=per_owner, workers=1, in_flight=1, batches=60)
        )
        for size in SIZES
        for per_owner in per_owners
        for mode in MODES
    }


@dataclass(frozen=True, slots=True)
class Saturation:
    nodes_per_host: int
    gigabits: int
    kind: str
    result: Result


def saturation(nodes_of: tuple[int, ...], say: Say) -> list[Saturation]:
    """8 hosts, batches of 64 × 1 MiB from any node, 2 workers a node with 2 batches each: what gives in first."""
    found = []
    for gigabits in (25, 100):
        for nodes in nodes_of:
            for kind, (mode, target_of) in KINDS.items():
                setup = Setup(8, mode, MIB, entries=64, nodes_per_host=nodes, workers=16 * nodes, target_of=target_of)
                hardware = Hardware(nic_bytes_s=gigabits * 1e9 / 8)
                result = simulate(replace(setup, hardware=hardware, batches=96 * nodes))
                found.append(Saturation(nodes, gigabits, kind, result))
    say("saturation done")
    return found


@dataclass(frozen=True, slots=True)
class PlacementFindings:
    uniformity: tuple[float, float, float]
    equal: Balance
    mixed: Balance
    movements: list[tuple[str, Movement]]


def placement_findings(hosts: int, sample: int, names: int, say: Say) -> PlacementFindings:
    equal = np.ones(hosts)
    mixed = np.tile([1.0, 2.0, 4.0, 8.0], hosts // 4 + 1)[:hosts]
    some = sample // 8
    gone, doubled, ten = equal.copy(), equal.copy(), equal.copy()
    gone[hosts // 2] = 0.0
    doubled[hosts // 2] = 2.0
    ten[:10] = 0.0
    heavier = mixed.copy()
    heavier[3] *= 0.5
    cases = [
        ("one host joins", equal, np.ones(hosts + 1)),
        ("100 hosts join", equal, np.ones(hosts + 100)),
        ("one host leaves", equal, gone),
        ("10 hosts leave", equal, ten),
        ("one host's weight doubles", equal, doubled),
        ("mixed weights: one of weight 8 halves", mixed, heavier),
    ]
    found = PlacementFindings(
        uniformity(names),
        balance(equal, sample, 1),
        balance(mixed, sample // 2, 2),
        [(name, movement(before, after, some, 3 + at)) for at, (name, before, after) in enumerate(cases)],
    )
    say("placement done")
    return found
