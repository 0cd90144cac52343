"""Fragments that no manifest names, and manifests of buckets that are gone: removed, and nothing else with them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader.errors import BucketNotFound, DriveFailed
from ais_loader.testing import eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as pb
from storage_node.cluster.coding import keeper
from storage_node.cluster.coding.coder import record
from storage_node.cluster.coding.group import Manifest
from storage_node.cluster.repair.transfers import Transfers
from storage_node.context.errors import ReplicaLost
from storage_node.store.names import CODED_PREFIX
from tests.coding.coded_kit import CodedCluster
from tests.node.cluster_kit import BUCKET

pytestmark = pytest.mark.slow

GRACE_S = 3.0
DRAW = random.Random(7)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CodedCluster]:
    with CodedCluster(tmp_path, coding_grace_s=GRACE_S, repair_interval_s=0.5) as running:
        yield running


def groups(cluster: CodedCluster, count: int) -> list[Manifest]:
    made: list[Manifest] = []
    for number in range(count):
        made += cluster.put_coded({f"{number}/{at}": DRAW.randbytes(20_000) for at in range(20)})
    return made


def has(cluster: CodedCluster, fragment: str) -> bool:
    [entry] = cluster.store(cluster.holder(fragment)).replicas.newest(cluster.companion, [fragment])
    return entry is not None and entry.has_file


def manifest_owners(cluster: CodedCluster, manifest: Manifest) -> list[int]:
    return cluster.owners(CODED_PREFIX + manifest.group.hex())


def left_over(cluster: CodedCluster, manifest: Manifest, index: int = 1) -> str:
    """Write a fragment to its node once more, under another name."""
    node = cluster.holder(manifest.fragments[index])
    content = cluster.bytes_in(cluster.companion, manifest.fragments[index], node)
    return cluster.write_fragment(manifest.group, index, content, node, salt=1000)


def check(cluster: CodedCluster, manifests: list[Manifest]) -> None:
    for manifest in manifests:
        assert all(has(cluster, fragment) for fragment in manifest.fragments)
        names = [slot.name for slot in manifest.slots]
        answer = cluster.ask(names)
        assert not any(answer.status.values())
        assert [len(answer.data[at]) for at in range(len(names))] == [slot.size_bytes for slot in manifest.slots]


def test_fragments_that_no_manifest_names_are_removed_after_a_while(cluster: CodedCluster) -> None:
    made = groups(cluster, 2)
    written_s = time.monotonic()
    junk = [left_over(cluster, made[0]), left_over(cluster, made[0], 5), left_over(cluster, made[1])]
    alone = cluster.write_fragment(DRAW.randbytes(16), 0, b"of no group", 2)
    eventually(lambda: not any(has(cluster, one) for one in (*junk, alone)))
    assert time.monotonic() - written_s > GRACE_S - 0.5, "a keeper that is not done yet may still name them"
    check(cluster, made)


def test_a_manifest_that_cannot_be_stored_leaves_no_fragment_for_good(
    cluster: CodedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fragments on one host: one of them moves, and the first manifest that says so is not stored."""
    [manifest] = groups(cluster, 1)
    first = cluster.holder(manifest.fragments[0])
    content = cluster.bytes_in(cluster.companion, manifest.fragments[1], cluster.holder(manifest.fragments[1]))
    doubled = cluster.write_fragment(manifest.group, 1, content, first)
    failed: list[Manifest] = []

    async def once(writes: object, bucket: pb.MapBucket, manifests: list[Manifest]) -> None:
        if not failed:
            failed.extend(manifests)
            raise ReplicaLost("it is busy")
        await record(writes, bucket, manifests)  # type: ignore[arg-type]

    monkeypatch.setattr(keeper, "record", once)
    before = manifest.fragments[1]
    names = (manifest.fragments[0], doubled, *manifest.fragments[2:])
    cluster.write_manifest(manifest._replace(fragments=names))
    eventually(lambda: bool(failed))
    eventually(lambda: not has(cluster, doubled))
    [named] = {name for name in (failed[0].fragments[1], before) if has(cluster, name)}
    check(cluster, [manifest._replace(fragments=(names[0], named, *names[2:]))])


def test_a_fragment_stays_while_an_owner_has_the_manifest_that_names_it(
    cluster: CodedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> int:
        raise ReplicaLost("repair does not reach it")

    monkeypatch.setattr(Transfers, "push", lost)
    made = groups(cluster, 2)
    behind, before = manifest_owners(cluster, made[0])[2], made[0].fragments[1]
    new, control = left_over(cluster, made[0]), left_over(cluster, made[1])
    [older] = cluster.store(behind).replicas.newest(BUCKET, [CODED_PREFIX + made[0].group.hex()])
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "owners", lambda name: ClusterView(cluster.map).owners(cluster.map.bucket[0], name)[:2])
        cluster.write_manifest(made[0]._replace(fragments=(made[0].fragments[0], new, *made[0].fragments[2:])))
    eventually(lambda: not has(cluster, control))
    looked_s = time.monotonic() + 2 * GRACE_S
    eventually(lambda: time.monotonic() > looked_s)
    assert cluster.store(behind).replicas.newest(BUCKET, [CODED_PREFIX + made[0].group.hex()]) == [older]
    assert has(cluster, before) and has(cluster, new)


def test_a_fragment_stays_until_the_manifest_without_it_is_on_the_disks_of_all_owners(
    cluster: CodedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = groups(cluster, 8)
    failing = manifest_owners(cluster, made[0])[0]
    control = next(one for one in made if failing not in manifest_owners(cluster, one))
    junk = {one.group: left_over(cluster, one) for one in (made[0], control)}
    [drive] = cluster.store(failing).drives
    assert drive is not None

    def sync() -> None:
        raise DriveFailed("its cable is loose")

    with monkeypatch.context() as patch:
        patch.setattr(drive, "sync", sync)
        eventually(lambda: not has(cluster, junk[control.group]))
        looked_s = time.monotonic() + 2 * GRACE_S
        eventually(lambda: time.monotonic() > looked_s)
        assert has(cluster, junk[made[0].group]), "after a power failure, a manifest that names it may come back"
    eventually(lambda: not has(cluster, junk[made[0].group]))
    check(cluster, made)


# -- manifests of a bucket that is gone


def test_a_manifest_is_not_stored_in_another_bucket_of_that_name(cluster: CodedCluster) -> None:
    [manifest] = groups(cluster, 1)
    gone = pb.MapBucket(name=BUCKET, uuid=DRAW.randbytes(16))
    node = cluster.nodes[0]
    assert node._loop is not None and node.repair is not None
    storing = asyncio.run_coroutine_threadsafe(record(node.repair._writes, gone, [manifest]), node._loop)
    with pytest.raises(BucketNotFound, match="deleted meanwhile"):
        storing.result(180)


def test_a_manifest_of_a_bucket_that_is_gone_is_removed_with_its_fragments(cluster: CodedCluster) -> None:
    [manifest] = groups(cluster, 1)
    group = DRAW.randbytes(16)
    fragments = tuple(cluster.write_fragment(group, at, b"x" * manifest.fragment_bytes, at) for at in range(6))
    cluster.write_manifest(manifest._replace(group=group, bucket_uuid=DRAW.randbytes(16), fragments=fragments))
    name = CODED_PREFIX + group.hex()

    def is_gone() -> bool:
        found = [cluster.store(at).replicas.newest(BUCKET, [name])[0] for at in cluster.owners(name)]
        return all(entry is None or entry.is_tombstone for entry in found)

    eventually(is_gone)
    eventually(lambda: not any(has(cluster, one) for one in fragments))
    check(cluster, [manifest])
