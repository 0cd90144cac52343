"""Objects too large for a batch, which come by a call of their own: from a holder that has them whole, whoever is asked
first."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.testing import seeded_bytes
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.cluster.repair.repair import Repair
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.store.store_kit import file_of, flip_a_byte

MiB = 1 << 20
DATA = seeded_bytes(9 * MiB, seed=3)
NAMES = [f"large-{at}" for at in range(3)]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage_node.store.read.batch_lookup.MAX_ITEM_BYTES", MiB)


@contextmanager
def reading(cluster: LocalCluster, retry_s: float = 240.0) -> Iterator[Bucket]:
    with connect(cluster.nodes[0].url, options=ClusterOptions(retry_s=retry_s)) as client:
        yield client.bucket(BUCKET)


@pytest.mark.slow
@pytest.mark.parametrize("at", [10, 6 * MiB], ids=["at its beginning", "in the middle"])
def test_a_damaged_copy_is_read_around(tmp_path: Path, at: int) -> None:
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=600.0, scrub_interval_s=0) as cluster:
        cluster.put(dict.fromkeys(NAMES, DATA))
        for name in NAMES:
            first = cluster.owners(name)[0]
            flip_a_byte(file_of(cluster.batches(first).node.store, name, BUCKET), at)
        with reading(cluster) as bucket:
            for name in NAMES:
                assert bucket.get(name) == DATA
                assert bucket.get(name, start=1, length=8 * MiB, verify=True) == DATA[1 : 1 + 8 * MiB]


def test_where_all_copies_are_damaged_it_is_said(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=600.0, scrub_interval_s=0) as cluster:
        cluster.put({NAMES[0]: DATA})
        for number in range(2):
            flip_a_byte(file_of(cluster.batches(number).node.store, NAMES[0], BUCKET), 10)
        with reading(cluster) as bucket, pytest.raises(errors.CorruptObject):
            bucket.get(NAMES[0])


@pytest.mark.slow
def test_a_node_that_joins_and_has_not_got_it_yet_says_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By weight, the node that joins is the first owner of all; nobody sends it anything."""

    async def never(repair: Repair) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Repair, "_run", never)
    with LocalCluster(tmp_path, 2, repair_interval_s=600.0) as cluster:
        cluster.map.node[0].weight, cluster.map.node[1].weight = 1e-12, 1.0
        cluster.map.node[1].state = cluster_pb.MapNode.JOINING
        cluster.put_on(0, dict.fromkeys(NAMES, DATA))
        cluster.learn()
        assert {tuple(cluster.holders(name)) for name in NAMES} == {(1, 0)}
        with reading(cluster) as bucket:
            for name in NAMES:
                assert bucket.get(name) == DATA
        cluster.nodes[0].stop(grace_s=0.2)
        with (
            connect(cluster.nodes[1].url, options=ClusterOptions(retry_s=0.3)) as client,
            pytest.raises(errors.NodeUnavailable),
        ):
            client.bucket(BUCKET).get(NAMES[0])
