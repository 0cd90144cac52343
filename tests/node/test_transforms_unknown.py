"""A node that knows no transforms: it ignores what it is asked for, and nobody takes what it sends for the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ais_loader import Entry, connect, errors
from storage_node.batch import session
from storage_node.batch.local_batch import LocalBatch
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.node_kit import bucket_of, serving


def ignores_them(resources: Any, batch_id: int, request: Any, *others: Any) -> LocalBatch:
    """As protobuf has it of fields that a version does not know."""
    del request.transform[:], request.transform_index[:]
    return LocalBatch(resources, batch_id, request, *others)


@pytest.mark.parametrize("on_error", ["raise", "placeholder"])
def test_a_node_of_the_version_before_is_never_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    monkeypatch.setattr(session, "TransformedBatch", ignores_them)
    with serving(tmp_path, etl_code=True) as node, bucket_of(node) as bucket:
        bucket.put("a", b"stored")
        assert bucket.client.get_batch([Entry("b", "a")]).tobytes() == [b"stored"]
        with pytest.raises(errors.Unsupported, match="came as it is stored"):
            list(bucket.client.get_batch([Entry("b", "a"), Entry("b", "a", etl="upper")], on_error=on_error))
        with pytest.raises(errors.Unsupported, match="came as it is stored"):
            bucket.get("a", etl="upper")


@pytest.mark.parametrize("assembly", ["direct", "target"])
def test_nor_is_one_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assembly: str) -> None:
    monkeypatch.setattr(session, "TransformedBatch", ignores_them)
    with (
        LocalCluster(tmp_path, 2, etl_code=True) as cluster,
        connect("grpc://" + ",".join(node.endpoint for node in cluster.nodes)) as client,
    ):
        bucket = client.bucket(BUCKET)
        bucket.put_many([(str(at), b"stored") for at in range(10)])
        client.etl.init("upper", lambda data: bytes(data).upper())
        entries = [Entry(BUCKET, str(at), etl="upper") for at in range(10)]
        with pytest.raises(errors.Unsupported, match="came as it is stored"):
            list(client.get_batch(entries, on_error="placeholder", assembly=assembly))
