"""A node that ignores the transforms that it is asked for: nobody takes what it sends for the result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ais_loader import Client, Entry, Status, connect, errors
from ais_loader.testing import seeded_bytes
from storage_node.batch import session
from storage_node.batch.local_batch import LocalBatch
from storage_node.batch.resources import BatchCall
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.node_kit import bucket_of, serving

LARGE = seeded_bytes(3 << 20, seed=3)
NAMES = [f"{at}" for at in range(12)]


GATHERED = session._Session._gathered


def ignores_them(of: Any, call: BatchCall) -> LocalBatch:
    """As protobuf has it of fields that a version does not know."""
    del call.request.transform[:], call.request.transform_index[:]
    return LocalBatch(call, of._gathered)


def test_what_is_sent_as_it_is_stored_fails_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session._Session, "_gathered", ignores_them)
    with serving(tmp_path, etl_code=True) as node, bucket_of(node) as bucket:
        bucket.put("a", b"stored")
        bucket.put("large", LARGE)  # comes in pieces
        entries = [
            Entry("b", "a"),
            Entry("b", "a", etl="upper"),
            Entry("b", "large", etl="upper"),
            Entry("b", "none", etl="upper"),
            Entry("b", "a"),
        ]
        assert bucket.client.get_batch(entries[:1]).tobytes() == [b"stored"]
        items = list(bucket.client.get_batch(entries, on_error="placeholder"))
        assert [item.status for item in items] == [
            Status.OK,
            Status.FAILED,
            Status.FAILED,
            Status.NOT_FOUND,
            Status.OK,
        ]
        for item in items[1:3]:
            assert isinstance(item.error, errors.Unsupported) and not item.data
            assert f"entry {item.index}: {node.url} sent it as it is stored" in str(item.error)
        batch = bucket.client.get_batch(entries, on_error="placeholder")
        assert batch.tobytes() == [b"stored", None, None, None, b"stored"]
        with pytest.raises(errors.Unsupported, match=f"entry 1: {node.url} sent it as it is stored"):
            list(bucket.client.get_batch(entries))
        with pytest.raises(errors.Unsupported, match="sent it as it is stored"):
            bucket.get("a", etl="upper")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), 2, copies=2, etl_code=True, etl_workers=1) as cluster:
        with client_of(cluster) as client:
            bucket = client.bucket(BUCKET)
            bucket.put_many([(name, b"stored") for name in NAMES])
            once = client.create_bucket("once", copies=1)
            once.put_many([(name, b"stored") for name in halves_of(cluster)])
            once.put("large", LARGE)
            client.etl.init("upper", lambda data: bytes(data).upper())
        yield cluster


def halves_of(cluster: LocalCluster) -> list[str]:
    """Names of objects in the bucket "once": six that the first node owns, then six that the second does."""
    view = cluster.nodes[0].membership.view
    assert view is not None
    owners = {f"{at}": view.owners(view.buckets["once"], f"{at}")[0] for at in range(200)}
    return [name for node in (0, 1) for name in [name for name, owner in owners.items() if owner == node][:6]]


def client_of(cluster: LocalCluster) -> Client:
    return connect("grpc://" + ",".join(node.endpoint for node in cluster.nodes))


def make_ignorant(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, *old: int) -> None:
    """From now on these nodes ignore transforms."""

    def ignored_there(of: Any, call: BatchCall) -> Any:
        if any(call.resources.node is cluster.nodes[at].batches.node for at in old):  # type: ignore[union-attr]
            return ignores_them(of, call)
        return GATHERED(of, call)

    monkeypatch.setattr(session._Session, "_gathered", ignored_there)


@pytest.mark.slow
def test_of_a_cluster_each_entry_names_who_sent_it(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    make_ignorant(cluster, monkeypatch, 1)
    old = cluster.nodes[1].endpoint
    with client_of(cluster) as client:
        entries = [Entry("once", name, etl="upper" if at % 2 else None) for at, name in enumerate(halves_of(cluster))]
        items = list(client.get_batch(entries, on_error="placeholder", assembly="direct"))
        large = client.get_batch([Entry("once", "large", etl="upper")], on_error="placeholder", assembly="direct")
        failed = [item for item in items if item.error is not None]
        for item in items:
            if item.error is None:
                assert item.tobytes() == (b"STORED" if item.index % 2 else b"stored")
        assert [item.index for item in failed] == [7, 9, 11]
        for item in failed:
            assert isinstance(item.error, errors.Unsupported)
            assert f"entry {item.index}: {old} sent it as it is stored" in str(item.error)
        for item in large:
            assert isinstance(item.error, errors.Unsupported) or item.tobytes() == LARGE.upper()
