"""Writes whose callers go away while they commit: they end as if nobody had gone, and their faults are logged."""

from __future__ import annotations

import asyncio
import gc
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ais_loader.testing import eventually, seeded_bytes
from storage_node.cluster.replication.commit import CommitProtocol, SnapshotBarrier
from storage_node.cluster.replication.replicas import outcome
from storage_node.cluster.replication.write_plan import Result
from storage_node.etl.jobs.cluster_store import NodeStore
from storage_node.etl.values import Content
from storage_node.promote.cluster import ClusterPromotion
from storage_node.promote.job import Job
from storage_node.promote.source import SourceFile
from storage_node.promote.walk import FoundFile, OpenFolder
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import copies_of, name_with, said, staged_files

DATA = seeded_bytes((1 << 20) + 5, seed=1)
TIMEOUT_S = 180.0


async def of_a_job(cluster: LocalCluster, name: str, path: Path) -> object:
    store = NodeStore(cluster.batches(0).node, cluster.nodes[0].repair._writes, None)  # type: ignore[arg-type]
    return await store.put_large(BUCKET, name, {}, Content.of(DATA))


async def of_a_promotion(cluster: LocalCluster, name: str, path: Path) -> object:
    node, writes = cluster.batches(0).node, cluster.nodes[0].repair._writes
    path.write_bytes(DATA)
    folder = OpenFolder(os.open(path.parent, os.O_RDONLY))
    replica_set = writes.replica_set(BUCKET)
    assert replica_set is not None
    heads = NodeStore(node, writes, None).heads  # type: ignore[arg-type]
    promotion = ClusterPromotion(node.store, writes, replica_set, Job(BUCKET), node.read, heads)
    source = SourceFile(FoundFile(path.name, name, folder, path.name, folder, b"", len(DATA), 0))
    try:
        return await promotion._put_large(source)
    finally:
        source.close()


def cancelled_while_it_commits(
    cluster: LocalCluster, patch: pytest.MonkeyPatch, write: Callable[[], Awaitable[object]]
) -> None:
    """Run a write on the first node, cancel it before it has a version, and wait for its commit."""
    passing = SnapshotBarrier.passing

    async def run() -> None:
        arrived, go_on = asyncio.Event(), asyncio.Event()

        @asynccontextmanager
        async def late(barrier: SnapshotBarrier, buckets: Iterable[bytes]) -> AsyncIterator[None]:
            arrived.set()
            await go_on.wait()
            async with passing(barrier, buckets):
                yield

        patch.setattr(SnapshotBarrier, "passing", late)
        task = asyncio.ensure_future(write())
        await arrived.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        go_on.set()
        await cluster.nodes[0].repair._writes.settle()

    loop = cluster.nodes[0]._loop
    assert loop is not None
    asyncio.run_coroutine_threadsafe(run(), loop).result(TIMEOUT_S)


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("write", [of_a_job, of_a_promotion])
def test_the_replica_of_the_own_node_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[..., Awaitable[object]], copies: int
) -> None:
    with LocalCluster(tmp_path, 2, copies=copies, repair_interval_s=600.0) as cluster:
        name = name_with(cluster, lambda owners: owners[0] == 0)
        cancelled_while_it_commits(cluster, monkeypatch, lambda: write(cluster, name, tmp_path / "file"))
        assert copies_of(cluster, name)[0][1] == DATA
        eventually(lambda: [said(cluster, owner, name) for owner in cluster.owners(name)] == [DATA] * copies)
        eventually(lambda: not staged_files(cluster))


@pytest.mark.slow
def test_an_unforeseen_fault_is_logged_even_if_the_caller_goes_away_at_that_moment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async def fail(*_: object) -> list[Result]:
            caller.cancel()
            raise RuntimeError("a fault of the commit")

        patched.setattr(CommitProtocol, "_run", fail)
        caller = asyncio.ensure_future(CommitProtocol(None, None).commit([]))  # type: ignore[arg-type]
        await asyncio.wait([caller])
        assert caller.cancelled()

    with monkeypatch.context() as patched:
        asyncio.run(run())
    gc.collect()
    assert "a fault of the commit" in caplog.text


@pytest.mark.slow
def test_a_step_is_not_begun_for_a_task_that_was_cancelled_before() -> None:
    begun: list[str] = []

    async def step(name: str) -> str:
        begun.append(name)
        return name

    async def run() -> None:
        cancelled, other = (asyncio.ensure_future(outcome(step, name)) for name in ("cancelled", "other"))
        cancelled.cancel()
        await asyncio.wait([cancelled, other])
        assert cancelled.cancelled() and other.result() == "other"

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that nobody awaits
        asyncio.run(run())
        gc.collect()
    assert begun == ["other"]
