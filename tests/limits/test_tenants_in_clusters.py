"""Tenants of a cluster: every node knows for whom it works, and turns on several nodes never wait in a circle."""

from __future__ import annotations

import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ais_loader import ClusterOptions, connect
from ais_loader.testing import eventually
from storage_node.limits.fair_scheduler import WeightedScheduler
from tests.node.cluster_kit import BUCKET, LocalCluster


def test_a_client_says_for_whom_it_fetches_and_so_does_a_node_that_gathers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged: set[tuple[int, str]] = set()
    queues: set[int] = set()
    charge, push = WeightedScheduler.charge, WeightedScheduler.push

    def logged_charge(queue: WeightedScheduler[Any], name: str, cost: float) -> None:
        if id(queue) in queues:
            charged.add((id(queue), name))
        charge(queue, name, cost)

    def logged_push(queue: WeightedScheduler[Any], name: str, cost: float, item: Any) -> None:
        if id(queue) in queues:
            charged.add((id(queue), name))
        push(queue, name, cost, item)

    monkeypatch.setattr(WeightedScheduler, "charge", logged_charge)
    monkeypatch.setattr(WeightedScheduler, "push", logged_push)
    # More than a node answers in passing, charged to nobody.
    objects = {f"{at}": bytes([at]) * 1000 for at in range(100)}
    names = list(objects)
    with LocalCluster(tmp_path, 2, spread=names) as cluster:
        cluster.put(objects)
        queues |= {id(cluster.batches(number).resources.slots._scheduler) for number in range(2)}
        with (
            connect(cluster.nodes[0].url, options=ClusterOptions(tenant="team")) as here,
            pickle.loads(pickle.dumps(here)) as client,
        ):
            for assembly in ("target", "direct"):
                charged.clear()
                entries = [f"ais://{BUCKET}/{name}" for name in names]
                items = list(client.get_batch(entries, assembly=assembly))
                assert [item.tobytes() for item in items] == list(objects.values())
                eventually(lambda: charged == {(queue, "team") for queue in queues})


@pytest.mark.slow
def test_batches_that_nodes_gather_from_each_other_for_many_tenants_all_end(tmp_path: Path) -> None:
    objects = {f"{at}": random.Random(at).randbytes(60_000 + at) for at in range(40)}
    names = list(objects)
    config: dict[str, Any] = {"read_threads": 1, "memory_bytes": 1 << 20, "peer_window_bytes": 100_000}
    with LocalCluster(tmp_path, 3, spread=names, tenant_weights={"tenant 1": 0.1}, **config) as cluster:
        cluster.put(objects)

        def fetch(number: int) -> None:
            draw = random.Random(number)
            with connect(cluster.nodes[number % 3].url, options=ClusterOptions(tenant=f"tenant {number}")) as client:
                wanted = [draw.sample(names, 20) for _ in range(8)]
                batches = client.get_batches(
                    [[f"ais://{BUCKET}/{name}" for name in batch] for batch in wanted],
                    in_flight=4,
                    assembly="target",
                    streaming=number % 2 == 0,
                    ordered=number % 3 != 0,
                )
                for names_of, batch in zip(wanted, batches, strict=True):
                    found = {item.index: item.tobytes() for item in batch}
                    assert found == {at: objects[name] for at, name in enumerate(names_of)}

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(fetch, range(6), timeout=180))
        cluster.settle()
        services = [cluster.batches(number) for number in range(3)]
        eventually(
            lambda: all(service.resources.slots.in_use == service.resources.slots.waiting == 0 for service in services)
        )
        assert sum(service.resources.batches_assembled for service in services) >= 6 * 8
