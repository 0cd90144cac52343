"""Datasets over a snapshot: the very bytes of its moment, in every epoch, whatever is written meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader

from ais_loader import BatchLoader, Client, MapDataset, ShufflePlan, connect
from ais_loader.testing import throwaway_node, throwaway_store

pytestmark = pytest.mark.slow

CORPUS = {f"en/{at:03}.wav": b"%d " % at * (at + 1) for at in range(48)}


@pytest.fixture(params=["embedded", "grpc"])
def store(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A store of this test alone: it is written to."""
    if request.param == "embedded":
        with throwaway_store(CORPUS, bucket="speech") as client:
            yield client
    else:
        with throwaway_node(CORPUS, bucket="speech") as node, connect(node.url) as client:
            yield client


def test_a_run_over_a_snapshot_reads_the_same_bytes_in_every_epoch(store: Client) -> None:
    bucket = store.bucket("speech")
    pinned = bucket.snapshot("run-1").pinned
    urls = [f"ais://{pinned}/{name}" for name in CORPUS]
    samples = MapDataset(store, list(CORPUS), bucket=pinned)
    planned = BatchLoader(samples, ShufflePlan(len(samples), batch_size=8, seed=1))
    mapped = DataLoader(MapDataset(store, urls), batch_size=8, shuffle=True, num_workers=0, collate_fn=list)
    for epoch in range(3):
        for loader in (planned, mapped):
            assert sorted(sample for batch in loader for sample in batch) == sorted(CORPUS.values())
        for at, name in enumerate(CORPUS):
            if (at + epoch) % 3 == 0:
                bucket.put(name, b"epoch %d" % epoch)
        present = {info.name for info in bucket.objects()}
        for name in sorted(present)[::5]:
            bucket.delete(name)
