"""Objects of a coded bucket on six nodes: taken from copies to fragments, kept so, and brought back."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import errors
from ais_loader.testing import eventually
from ais_loader.wire.redundancy import companion_name
from storage_node.cluster.coding.group import Manifest
from storage_node.cluster.map.mutations import begin_leave, remove_node
from storage_node.store.read.object_reader import open_object
from tests.coding.coded_cluster import BUCKET, CodedCluster, coded_cluster
from tests.faults.fault_kit import take_snapshot

GRACE_S = 10.0


def drawn(count: int, size_bytes: int = 10_000, *, seed: int = 1, prefix: str = "s/") -> dict[str, bytes]:
    draw = random.Random(seed)
    return {f"{prefix}{number:04}": draw.randbytes(size_bytes) for number in range(count)}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[CodedCluster]:
    with coded_cluster(tmp_path, coding_grace_s=GRACE_S, tombstone_grace_s=1.0) as running:
        yield running


def await_coded(cluster: CodedCluster, objects: dict[str, bytes]) -> None:
    """Wait until all is coded but what is too little for a group on its node."""
    eventually(lambda: cluster.files_bytes(objects) < 6 * 4 * (64 << 10))


@pytest.mark.slow
def test_what_has_settled_is_coded_and_read_as_before(cluster: CodedCluster) -> None:
    objects = {**drawn(600), "large": random.Random(2).randbytes(3_000_001), "mid": bytes(700_000), "empty": b""}
    cluster.bucket.put_many(objects.items())
    infos = {info.name: info for info in cluster.bucket.objects()}
    await_coded(cluster, objects)
    eventually(lambda: cluster.coded(["large"]))
    cluster.check(objects)
    assert {info.name: info for info in cluster.bucket.objects()} == infos, "versions, times and checksums stay"
    assert [bucket.name for bucket in cluster.client.buckets()] == [BUCKET]

    def are_whole() -> bool:
        """Whether each group has a manifest, and each of its fragments is on another host. A coder may be about to
        store some of them, or have failed to."""
        manifests, hosts = cluster.manifests(), dict[str, list[int]]()
        for name, number in cluster.fragments().items():
            hosts.setdefault(f"/.coded/{name.split('/')[0]}", []).append(number)
        return manifests == hosts.keys() and all(sorted(numbers) == list(range(6)) for numbers in hosts.values())

    eventually(are_whole, interval_s=0.1)
    summary = cluster.bucket.summary()
    assert (summary.objects, summary.size_bytes) == (len(objects), sum(map(len, objects.values())))
    cluster.bucket.put("large", b"new")
    cluster.bucket.delete("mid")
    assert cluster.bucket.get("large") == b"new"
    with pytest.raises(errors.ObjectNotFound):
        cluster.bucket.get("mid")


@pytest.mark.slow
def test_a_bucket_comes_back_to_copies_and_leaves_nothing(cluster: CodedCluster) -> None:
    objects = drawn(300)
    cluster.bucket.put_many(objects.items())
    await_coded(cluster, objects)
    info = cluster.bucket.set(redundancy="copies")
    assert (info.redundancy, info.copies) == ("copies", 3)
    eventually(lambda: cluster.plain(objects))
    cluster.check(objects)
    eventually(lambda: not cluster.manifests() and not cluster.fragments())
    cluster.check(objects)
    cluster.bucket.set(redundancy="rs:2+1")
    await_coded(cluster, objects)
    cluster.check(objects)
    cluster.client.delete_bucket(BUCKET, force=True)
    eventually(lambda: all(not store.buckets() for store in cluster.stores))


@pytest.mark.slow
def test_lost_and_damaged_fragments_are_written_again(cluster: CodedCluster) -> None:
    objects = drawn(300)
    cluster.bucket.put_many(objects.items())
    await_coded(cluster, objects)
    groups = cluster.manifests()  # stored after all fragments of their groups
    before = {name: at for name, at in cluster.fragments().items() if f"/.coded/{name.split('/')[0]}" in groups}
    lost, damaged = sorted(before)[:2]
    assert lost.split("/")[0] == damaged.split("/")[0]
    cluster.stores[before[lost]].delete(cluster.companion, lost)
    cluster.flip_bits(before[damaged], damaged)
    cluster.check(objects)
    eventually(
        lambda: (
            before.items() <= cluster.fragments().items()  # more may have been coded since
            and cluster.is_sound(before[damaged], damaged)
        ),
    )
    cluster.check(objects)


@pytest.mark.slow
def test_a_sparse_group_is_dissolved_and_its_objects_are_coded_again(cluster: CodedCluster) -> None:
    objects = drawn(400)
    cluster.bucket.put_many(objects.items())
    await_coded(cluster, objects)
    before = cluster.manifests()
    for name in list(objects)[:300]:
        cluster.bucket.delete(name)
        del objects[name]
    eventually(lambda: not before & cluster.manifests())
    cluster.check(objects)

    def fragments_are_those_of_manifests() -> bool:
        groups = {name.removeprefix("/.coded/") for name in cluster.manifests()}
        return {name.split("/")[0] for name in cluster.fragments()} == groups

    eventually(fragments_are_those_of_manifests)
    cluster.check(objects)


@pytest.mark.slow
@pytest.mark.parametrize("owner", [0, 1])
def test_an_owner_that_has_a_file_again_swaps_it(cluster: CodedCluster, owner: int) -> None:
    objects = drawn(300)
    cluster.bucket.put_many(objects.items())
    await_coded(cluster, objects)
    name = next(name for name in objects if cluster.coded([name]))
    store = cluster.stores[cluster.owners(name)[owner]]
    entry = store.replicas.newest(BUCKET, [name])[0]
    assert entry is not None
    with store.begin_put(BUCKET, name, entry.metadata) as upload:
        upload.assign(entry.version, entry.modified_ns, is_copy=True)
        upload.write(objects[name])
        assert upload.commit().has_file
    eventually(lambda: cluster.coded([name]))
    assert store.replicas.newest(BUCKET, [name])[0] == entry
    cluster.check(objects)


@pytest.mark.slow
def test_a_node_that_refuses_to_swap_gets_no_group_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with coded_cluster(tmp_path, nodes=3, redundancy="rs:2+1") as cluster:
        refusal = errors.DriveFailed("objects move between drives")
        monkeypatch.setattr(cluster.stores[2], "write_coded", lambda _, coded: [refusal] * len(coded))
        objects = drawn(300)
        cluster.bucket.put_many(objects.items())
        seen: list[tuple[float, int]] = []

        def is_steady() -> bool:
            seen.append((time.monotonic(), len(cluster.manifests())))
            return seen[-1][1] > 0 and seen[-1][0] - next(at for at, count in seen if count == seen[-1][1]) > 4.0

        eventually(is_steady)
        cluster.check(objects)


@pytest.mark.slow
def test_a_manifest_says_where_each_object_is(cluster: CodedCluster) -> None:
    objects = drawn(300)
    cluster.bucket.put_many(objects.items())
    await_coded(cluster, objects)

    def agree() -> bool:
        """Not while a coder stores what it has coded, or an owner compares what it has with the others."""
        where = {}
        for name in cluster.manifests():
            store = cluster.stores[cluster.owners(name)[0]]
            try:
                manifest = Manifest.decode(b"".join(open_object(store, BUCKET, name)))
            except errors.LoaderError:
                return False
            if not set(manifest.fragments) <= cluster.fragments().keys():
                return False
            for slot in manifest.slots:
                where[slot.name] = manifest.group, slot.offset, slot.version, slot.size_bytes
        entries = [(name, entry) for name in objects if cluster.coded([name]) for entry in cluster.entries(name)]
        assert entries
        return all(
            where.get(name) == (entry.group, entry.offset, entry.version, entry.size_bytes) for name, entry in entries
        )

    eventually(agree, interval_s=0.1)


@pytest.mark.slow
def test_what_cannot_be_coded_says_why(tmp_path: Path) -> None:
    with coded_cluster(tmp_path, nodes=3, redundancy=None) as cluster:
        create = cluster.client.create_bucket
        with pytest.raises(errors.InvalidRequest, match="6 different hosts, and the cluster has 3"):
            create(BUCKET, redundancy="rs:4+2")
        with pytest.raises(errors.InvalidRequest, match="implies copies=2"):
            create(BUCKET, redundancy="rs:2+1", copies=3)
        create(BUCKET)
        with pytest.raises(errors.InvalidRequest, match="6 different hosts"):
            cluster.bucket.set(redundancy="rs:4+2")
        assert cluster.bucket.set(redundancy="rs:2+1").copies == 2
        with pytest.raises(errors.InvalidRequest, match="is erasure coded"):
            cluster.bucket.set(copies=3)
        with pytest.raises(errors.InvalidRequest, match="cannot become a remote one"):
            cluster.bucket.set(remote=f"file://{tmp_path}/elsewhere")
        hidden = companion_name(cluster.stores[0].bucket(BUCKET).uuid_bytes)
        with pytest.raises(errors.InvalidName):
            cluster.client.bucket(hidden).set(copies=2)
        with pytest.raises(errors.InvalidName):
            cluster.client.delete_bucket(hidden, force=True)
        for there, name in ((cluster.client.bucket(hidden), "a"), (cluster.bucket, "/.coded/" + "0" * 32)):
            with pytest.raises(errors.InvalidName):
                there.put(name, b"x")
            with pytest.raises(errors.InvalidName):
                there.put_many([(name, b"x")])
            with pytest.raises(errors.InvalidName):
                there.delete(name)
            with pytest.raises(errors.InvalidName):
                there.delete_many([name])
        create("far", remote=f"file://{tmp_path}/far")
        with pytest.raises(errors.InvalidRequest, match="is a remote one"):
            cluster.client.bucket("far").set(redundancy="rs:2+1")


@pytest.mark.slow
def test_a_snapshot_keeps_the_groups_that_it_sees(tmp_path: Path) -> None:
    with coded_cluster(tmp_path, coding_grace_s=4.0, tombstone_grace_s=1.0) as cluster:
        objects = drawn(300)
        cluster.bucket.put_many(objects.items())
        await_coded(cluster, objects)
        take_snapshot(cluster.bucket, "then")
        before = {
            f"/.coded/{entry.group.hex()}" for name in objects for entry in cluster.entries(name) if entry.is_coded
        }
        cluster.bucket.put_many((name, b"new") for name in objects)
        deadline_s = time.monotonic() + 12.0
        eventually(lambda: time.monotonic() > deadline_s)
        assert before <= cluster.manifests(), "three times as long as an empty group is kept"
        then = cluster.client.bucket(f"{BUCKET}@then")
        assert [bytes(item.data) for item in then.get_batch(list(objects))] == list(objects.values())
        cluster.check(dict.fromkeys(objects, b"new"))
        cluster.bucket.delete_snapshot("then")
        eventually(lambda: not cluster.manifests() and not cluster.fragments())
        cluster.check(dict.fromkeys(objects, b"new"))


@pytest.mark.slow
def test_fragments_follow_nodes_that_leave_and_are_made_again_for_lost_ones(tmp_path: Path) -> None:
    with coded_cluster(tmp_path, nodes=8, coding_grace_s=GRACE_S, tombstone_grace_s=1.0) as cluster:
        objects = drawn(300) | {"large": random.Random(2).randbytes(2_000_003)}
        cluster.bucket.put_many(objects.items())
        await_coded(cluster, objects)
        leaver, lost = cluster.nodes[6], cluster.nodes[7]
        cluster.change(begin_leave(leaver.membership.node_uuid))
        eventually(lambda: len(cluster.view.nodes) == 7)
        cluster.check(objects)
        eventually(cluster.is_spread)
        lost.stop()
        cluster.check(objects)
        cluster.change(remove_node(lost.membership.node_uuid))
        eventually(lambda: len(cluster.view.nodes) == 6)
        cluster.check(objects)
        eventually(cluster.is_spread)
        cluster.check(objects)
        for node in cluster.nodes[:2]:
            node.stop()
        cluster.check(objects)
