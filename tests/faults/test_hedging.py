"""A node that freezes in the middle of a batch, with a second copy elsewhere: what it owes is asked of the other holder
long before anybody gives it up, within a budget; and without one the batch is complete all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Client, ClusterOptions, connect
from ais_loader.testing import SeededObjects, eventually, throwaway_folder
from ais_loader.values.batch import Batch
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.gather.hedging import BURST_ENTRIES
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import serve_all
from tests.patience import PATIENT_CLIENT

pytestmark = pytest.mark.slow  # real processes, frozen and awaited

MiB = 1 << 20
SMALL = SeededObjects({f"s/{at:04d}": (60_000 + at, at) for at in range(300)})
LARGE = SeededObjects({f"l/{at}": (12 * MiB + at, 900 + at) for at in range(3)})
OBJECTS = SMALL | LARGE
MIXED = [*list(SMALL)[:100], "l/0", *list(SMALL)[100:200], "l/1", "l/2", *list(SMALL)[200:]]
LONG_S, SHORT_S = 300.0, 12.0
"""Silences after which a node is given up: never in a test, and soon."""


@pytest.fixture(scope="module")
def running() -> Iterator[ClusterProcesses]:
    # Nodes that stand still for a moment keep their leases, without which a batch asks for their entries again.
    arguments = ["--set", "read_lease_s=60"]
    with (
        throwaway_folder() as folder,
        ClusterProcesses(Path(folder), 3, buckets={"b": 2}, metrics=True, arguments=arguments) as cluster,
    ):
        with connect(cluster.url, options=PATIENT_CLIENT) as client:
            client.bucket("b").put_many(OBJECTS.items())
        serve_all(cluster)
        yield cluster


@pytest.fixture
def cluster(running: ClusterProcesses) -> Iterator[ClusterProcesses]:
    """Three nodes that serve all they have; each test may leave one frozen."""
    try:
        yield running
    finally:
        for node in running.nodes:
            node.resume()
        serve_all(running)


def is_frozen(cluster: ClusterProcesses, number: int) -> bool:
    return Path(f"/proc/{cluster.nodes[number].pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def first_owner(cluster: ClusterProcesses, name: str) -> int:
    view = ClusterView(cluster.map)
    return view.owners(view.buckets["b"], name)[0]


def freeze_in_the_middle(
    cluster: ClusterProcesses, client: Client, number: int, *, times: int = 1, **options: Any
) -> Batch:
    """A batch of which some entries have come when the node stops, consumed whole while it stands.

    It has all objects `times` over: no sender may have sent all when the first entries have come.
    """
    names = MIXED * times
    batch = client.bucket("b").get_batch(names, **options)
    came = [next(batch)]
    cluster.nodes[number].pause()
    came.extend(batch)
    seen = [item.index for item in came]
    assert sorted(seen) == list(range(len(names)))
    assert options.get("ordered") is False or seen == sorted(seen)
    assert all(item.tobytes() == OBJECTS[names[item.index]] for item in came)
    assert is_frozen(cluster, number)
    return batch


@pytest.mark.parametrize(
    ("number", "ordered"),
    [
        *((0, True), (1, False), (2, True)),
        *(pytest.param(number, number == 1, marks=pytest.mark.exhaustive) for number in range(3)),
    ],
)
def test_a_batch_does_not_wait_for_a_node_that_freezes_when_others_have_copies(
    cluster: ClusterProcesses, number: int, ordered: bool
) -> None:
    # With a budget for all the batches that may find out.
    with connect(cluster.url, options=replace(PATIENT_CLIENT, hedge_budget=1.0)) as client:
        batch = freeze_in_the_middle(
            cluster, client, number, times=2, assembly="direct", ordered=ordered, timeout_s=LONG_S
        )
        assert batch.timing.hedged > 0
        assert batch.timing.retries == 0  # nothing was given up

        def finds_nothing_out() -> bool:
            with client.bucket("b").get_batch(list(SMALL), assembly="direct", timeout_s=LONG_S) as after:
                assert [item.data for item in after] == list(SMALL.values())
                assert after.timing.retries == 0
                return after.timing.hedged == 0

        # Afterwards it is asked last, for a while, and no further batch has to find out; unless the while is over
        # between two batches, or another node stands still, as on a busy machine.
        eventually(finds_nothing_out)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_neither_does_a_batch_that_a_node_gathers(cluster: ClusterProcesses, number: int) -> None:
    """Whether it is the gathering node that freezes, then its client asks another, or one that it gathers from."""
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        with client.bucket("b").get_batch(list(SMALL)[:3], assembly="target") as batch:
            assert [item.data for item in batch] == list(SMALL.values())[:3]
        before = {at: counts(cluster, at) for at in range(3) if at != number}
        batch = freeze_in_the_middle(cluster, client, number, times=3, assembly="target", timeout_s=LONG_S)
        assert batch.timing.retries == 0
        hedged = recovered = 0
        for at, (hedged_before, recovered_before) in before.items():
            now = counts(cluster, at)
            hedged, recovered = hedged + now[0] - hedged_before, recovered + now[1] - recovered_before
        assert recovered == 0  # nobody was given up
        assert batch.timing.hedged + hedged > 0


def counts(cluster: ClusterProcesses, number: int) -> tuple[int, int]:
    """Entries that a node has hedged, and recovered."""
    numbers = cluster.nodes[number].numbers()
    return int(numbers["ais_loader_hedged_entries_total"]), int(numbers["ais_loader_recoveries_total"])


def test_without_a_budget_a_frozen_node_is_given_up_when_its_time_is_over(cluster: ClusterProcesses) -> None:
    with connect(cluster.url, options=ClusterOptions(hedge_budget=0.0)) as client:
        batch = freeze_in_the_middle(cluster, client, 1, times=2, assembly="direct", timeout_s=SHORT_S)
        assert batch.timing.hedged == 0
        assert batch.timing.retries > 0


def test_no_more_is_hedged_than_the_budget_allows(cluster: ClusterProcesses) -> None:
    share = 0.0004
    with connect(cluster.url, options=ClusterOptions(hedge_budget=share)) as client:
        batch = freeze_in_the_middle(cluster, client, 1, times=2, assembly="direct", timeout_s=SHORT_S)
        assert 0 < batch.timing.hedged <= share * (BURST_ENTRIES + len(MIXED))
        assert batch.timing.retries > 0


def test_a_single_object_is_read_from_its_second_owner_while_the_first_is_frozen(cluster: ClusterProcesses) -> None:
    names = [name for name in SMALL if first_owner(cluster, name) == 2][:20]
    with connect(cluster.url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket("b")
        assert bucket.get(names[0]) == OBJECTS[names[0]]
        cluster.nodes[2].pause()
        for name in [*names, "l/0", "l/1", "l/2"]:
            assert bucket.get(name, timeout_s=LONG_S) == OBJECTS[name]
            assert bucket.get(name, start=1000, length=5000, timeout_s=LONG_S) == OBJECTS[name][1000:6000]
        with bucket.open(names[1], timeout_s=LONG_S) as file:
            assert file.read() == OBJECTS[names[1]]
        assert client.bucket("b").head(names[2]).size_bytes == len(OBJECTS[names[2]])
