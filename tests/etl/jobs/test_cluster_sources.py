"""Sources of a job in a cluster, looked up and read while nodes do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from ais_loader.errors import LoaderError, NodeUnavailable
from ais_loader.testing import seeded_bytes
from ais_loader.wire.object_info import Stored
from storage_node.cluster.repair.source_reader import RemoteStream
from storage_node.context.errors import ReplicaLost
from storage_node.etl.jobs.cluster_store import NodeStore
from storage_node.etl.values import MAX_IN_MEMORY_BYTES, Spool
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import name_with

TIMEOUT_S = 180.0


def on_loop(cluster: LocalCluster, work: Coroutine[Any, Any, Any]) -> Any:
    loop = cluster.nodes[0]._loop
    assert loop is not None
    return asyncio.run_coroutine_threadsafe(work, loop).result(TIMEOUT_S)


def test_an_object_that_only_the_first_owner_has_is_not_gone_while_that_is_not_asked(tmp_path: Path) -> None:
    """The other owner was not told of the write: a job that took its answer for certain would delete the result."""
    with LocalCluster(tmp_path, 3, copies=2, repair_interval_s=600.0) as cluster:
        name = name_with(cluster, lambda owners: 0 not in owners)
        first = cluster.owners(name)[0]
        cluster.put_on(first, {name: b"abc"})
        node, writes = cluster.batches(0).node, cluster.nodes[0].repair._writes

        store = NodeStore(node, writes, Spool(tmp_path / "spool"))

        async def heads_after_a_failure() -> list[Stored | LoaderError]:
            writes.channels.failed(cluster.nodes[first].peer_endpoint)
            return await store.heads(BUCKET, [name])

        (found,) = on_loop(cluster, heads_after_a_failure())
        assert isinstance(found, NodeUnavailable)
        writes.channels.answered(cluster.nodes[first].peer_endpoint)
        (found,) = on_loop(cluster, store.heads(BUCKET, [name]))
        assert isinstance(found, Stored) and found.size_bytes == 3


@pytest.mark.parametrize("size_bytes", [1 << 20, MAX_IN_MEMORY_BYTES + (1 << 20)])
def test_a_source_whose_node_dies_while_it_is_read_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    with LocalCluster(tmp_path, 2, copies=1, repair_interval_s=600.0) as cluster:
        name = name_with(cluster, lambda owners: owners == [1])
        data = seeded_bytes(size_bytes, seed=1)
        cluster.put({name: data})
        node, writes = cluster.batches(0).node, cluster.nodes[0].repair._writes
        store = NodeStore(node, writes, Spool(tmp_path / "spool"))

        async def lost(stream: RemoteStream) -> bytes:
            raise ReplicaLost("it does not answer")

        with monkeypatch.context() as dying:
            dying.setattr(RemoteStream, "next", lost)
            (failed,) = on_loop(cluster, store.read(BUCKET, [name]))
        assert isinstance(failed, NodeUnavailable), failed
        (found,) = on_loop(cluster, store.read(BUCKET, [name]))
        assert b"".join(found.content.chunks()) == data
        found.content.close()
