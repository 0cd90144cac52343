"""A node that keeps its connections and answers nothing: what concerns the whole cluster is asked of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ais_loader import connect
from ais_loader.testing import eventually
from ais_loader.transport.grpc import watchdog as watchdogs
from tests.node.cluster_kit import BUCKET
from tests.node.write_kit import cluster_of
from tests.patience import PATIENT_CLIENT

OBJECTS = {f"a/{at:02d}": bytes(at) for at in range(30)}
NEVER_S = 1e6


@pytest.mark.slow
@pytest.mark.parametrize("silent", [0, 1])
def test_listings_counts_and_buckets_come_from_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    monkeypatch.setattr(watchdogs, "CALL_TIMEOUT_S", NEVER_S)
    with (
        cluster_of(tmp_path, 3, copies=2, linked=True, clients_linked=True) as cluster,
        connect(",".join(link.url for link in cluster.client_links), options=PATIENT_CLIENT) as client,
    ):
        bucket = client.bucket(BUCKET)
        bucket.put_many(OBJECTS.items())
        eventually(lambda: not bucket.summary().silent)  # by now there is a connection to each
        links = cluster.links[silent], cluster.client_links[silent]
        for link in links:
            link.stall()
        try:
            assert [found.name for found in client.buckets()] == [BUCKET]
            assert bucket.info().copies == 2
            assert [info.name for info in bucket.objects()] == list(OBJECTS)
            found = eventually(lambda: found if (found := bucket.summary()).complete else None)
            assert (found.objects, found.size_bytes) == (30, sum(map(len, OBJECTS.values())))
            assert len(found.silent) == 1
        finally:
            for link in links:
                link.flow()


def test_a_call_is_waited_for_while_its_node_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdogs, "CHECK_S", 0.05)
    looks: list[bool] = []
    ended: list[bool] = []

    def is_alive() -> bool:
        looks.append(True)
        return len(looks) < 2

    with watchdogs.Watchdog(NEVER_S, is_alive) as watchdog:
        watchdog._watch(lambda: ended.append(True))
    assert (looks, ended, watchdog.fired) == ([True, True], [True], True)
