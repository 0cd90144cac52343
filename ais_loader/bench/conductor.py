"""Conductor of a measurement: fills the bucket, has a crew measure, and makes the result.

A crew always runs in processes of its own, even a single one: the conductor costs the measured processes nothing, and
their memory and CPU time are theirs alone.
"""

from __future__ import annotations

from operator import sub
from typing import Any

from ais_loader.bench import filling, machine
from ais_loader.bench.calls import connected
from ais_loader.bench.crew import Crew, Live
from ais_loader.bench.plan import BenchPlan
from ais_loader.bench.result import result
from ais_loader.bench.tally import new_histogram
from ais_loader.objects.client import Client


def prepare(client: Client, plan: BenchPlan, filled: filling.Filled | None = None) -> bool:
    """Create the bucket and the data that the plan reads. Return whether anything was put. Raises InvalidRequest."""
    bucket = filling.own_bucket(client, plan.bucket, plan.copies)
    return plan.workload not in ("put", "put-many") and filling.fill(bucket, plan, filled)


def run(
    plan: BenchPlan,
    *,
    live: Live | None = None,
    described: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure, in a prepared bucket. After KeyboardInterrupt, the result covers what was done until then.

    Raises a process's connection error, and NodeUnavailable if a process died.
    """
    new_histogram()  # raises an error about missing packages before anything is started
    described = described or {}
    nodes = machine.Nodes(described)
    cold = machine.make_cold(described) if plan.cold else None
    crew = Crew(plan)
    try:
        crew.start()
        nodes.begin_peak()
        crew.warm_up()
        node_before, devices_before = nodes.cpu_s(), machine.device_counts_of(described)
        whole = crew.follow(live)
        node_after, devices = nodes.cpu_s(), machine.device_counts_of(described)
    finally:
        crew.end()
    notes = []
    if nodes.unseen and not plan.embedded:
        notes.append(f"processor time of nodes is not known: {', '.join(nodes.unseen)} cannot be seen from here")
    return result(
        plan,
        crew.measured,
        node_cpu_s=None if node_before is None or node_after is None else node_after - node_before,
        node_peak_bytes=nodes.peak_bytes(),
        whole=whole,
        devices={
            path: tuple(map(sub, devices[path], then)) for path, then in devices_before.items() if path in devices
        },
        cold=cold,
        notes=notes,
    )


def finish(plan: BenchPlan) -> None:
    """Delete the objects that the measurement has put. The data it read stays for the next one."""
    if plan.writes:
        with connected(plan) as client:
            filling.forget_written(client.bucket(plan.bucket))
