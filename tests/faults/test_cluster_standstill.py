"""A node that is stopped for a while, as by a debugger or a machine that sleeps, and goes on as if nothing were."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader.testing import eventually
from protos.cluster_map import ClusterView
from tests.faults.test_cluster_repair import BUCKET, KEYS, TIMEOUT_S, delete, equal, put, reading, three

pytestmark = pytest.mark.slow  # real processes, killed and awaited


def test_a_node_that_stood_still_serves_nothing_old_when_it_goes_on(tmp_path: Path) -> None:
    with three(tmp_path) as (cluster, bucket, ledger):
        view = ClusterView(cluster.map)
        owners = {key: view.owners(view.buckets[BUCKET], key) for key in KEYS}
        # It has copies of these, and another node coordinates their writes.
        keys = [key for key in KEYS if owners[key][1] == 1]
        assert len(keys) > 4
        cluster.nodes[1].pause()
        put(bucket, ledger, keys[::2])
        delete(bucket, ledger, keys[1::2])
        with reading(cluster.url, ledger) as clients:
            cluster.nodes[1].resume()
            clients.round(3)
            eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
            clients.check()
        assert "stood still" in cluster.nodes[1].log()
