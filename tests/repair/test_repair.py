"""Several nodes in one process make their copies equal: what was lost, missed, moved or deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from ais_loader import Bucket, Client, connect, errors
from ais_loader.errors import DriveFailed, LoaderError
from ais_loader.testing import eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.reserved import REMOTE_DELETED
from storage_node.cluster.repair import repair
from storage_node.cluster.repair.plan import State
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from storage_node.store.buckets import ReplicaStale
from storage_node.store.drive.drive import Drive
from storage_node.store.drive.preconditions import memory_of, took_part
from storage_node.store.format import CatalogEntry, Version, encode_metadata
from storage_node.store.replica_state import StaleReplicas, StoredVersion
from storage_node.store.store import Store
from storage_node.store.write import Upload
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.patience import PATIENT_CLIENT

TIMEOUT_S = 180.0
LARGE = bytes(range(256)) * 2000


@contextmanager
def client_of(cluster: LocalCluster) -> Iterator[tuple[Client, Bucket]]:
    with connect(",".join(node.url for node in cluster.nodes), options=PATIENT_CLIENT) as client:
        yield client, client.bucket(BUCKET)


def store_of(node: NodeServer) -> Store:
    assert node.batches is not None
    return node.batches.node.store


def held(node: NodeServer) -> dict[str, StoredVersion]:
    return {found.name: found for found in store_of(node).replicas.versions(BUCKET)}


def everything_in_place(nodes: list[NodeServer], names: set[str], dead: set[str] = frozenset()) -> bool:  # type: ignore[assignment]
    """Whether each of these names is on its owners, and nowhere else, in one version; the dead ones as tombstones."""
    view = nodes[0].membership.view
    assert view is not None
    by_uuid = {node.membership.node_uuid: held(node) for node in nodes}
    for name in names | dead:
        owners = {view.nodes[at].uuid for at in view.owners(view.buckets[BUCKET], name)}
        found = {uuid: versions[name] for uuid, versions in by_uuid.items() if name in versions}
        if set(found) != owners or len(set(found.values())) != 1:
            return False
        if any(one.is_tombstone != (name in dead) for one in found.values()):
            return False
    return True


def stopped(cluster: LocalCluster, number: int) -> ServerConfig:
    """Stop a node; what to start it with again."""
    node = cluster.nodes[number]
    config = node.config.replace(port=node.port)
    node.stop(grace_s=0.2)
    return config


@contextmanager
def back(root: Path, cluster: LocalCluster, number: int, config: ServerConfig) -> Iterator[NodeServer]:
    with NodeServer([root / f"node-{number}"], config) as node:
        cluster.nodes[number] = node
        yield node


def content(name: str, version: str) -> bytes:
    data = f"{name} {version} ".encode()
    return data + LARGE if name.endswith("7") else data


NAMES = {f"k{at}" for at in range(60)}


@pytest.mark.slow
def test_lost_copies_come_back_with_their_bytes_metadata_and_versions(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2, repair_interval_s=0.5) as cluster, client_of(cluster) as (_, bucket):
        for name in NAMES:
            bucket.put(name, content(name, "1"), metadata={"of": name})
        store = store_of(cluster.nodes[1])
        before = dict(store.objects(BUCKET))
        assert before
        for name in before:
            store.delete(BUCKET, name)
        eventually(lambda: everything_in_place(cluster.nodes, NAMES), TIMEOUT_S)
        after = dict(store.objects(BUCKET))
        assert {name: (one.version, one.checksum, one.modified_ns, one.metadata) for name, one in after.items()} == {
            name: (one.version, one.checksum, one.modified_ns, one.metadata) for name, one in before.items()
        }
        assert cluster.ask(sorted(before), local=True, initial_credit_bytes=1 << 30).status.keys() == set(
            range(len(before))
        )
        assert sum(node.repair.metrics.objects_pushed for node in cluster.nodes) >= len(before)


@pytest.mark.slow
def test_a_bucket_that_is_made_has_nobody_go_through_those_that_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "RETURN_S", 3600.0)  # else the start of each node has all others make one more pass
    with (
        LocalCluster(tmp_path, 3, copies=2, repair_interval_s=3600.0) as cluster,
        client_of(cluster) as (client, bucket),
    ):

        def in_place() -> bool:
            versions = {node.membership.view.version for node in cluster.nodes if node.membership.view is not None}
            return {node.repair.metrics.clean_version for node in cluster.nodes} == versions and len(versions) == 1

        bucket.put("k", b"x")
        eventually(in_place, TIMEOUT_S)
        passes = [node.repair.metrics.passes for node in cluster.nodes]
        for at in range(3):
            client.create_bucket(f"new-{at}")
            client.bucket(f"new-{at}").put("k", b"x")
        eventually(in_place, TIMEOUT_S)
        assert [node.repair.metrics.passes for node in cluster.nodes] == passes
        bucket.set(copies=3)
        eventually(in_place, TIMEOUT_S)
        assert all(node.repair.metrics.passes > before for node, before in zip(cluster.nodes, passes, strict=True))
        assert all(set(held(node)) == {"k"} for node in cluster.nodes)


@pytest.mark.slow
def test_a_node_that_returns_has_all_it_missed_and_serves_none_of_what_is_old(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2, repair_interval_s=0.5) as cluster, client_of(cluster) as (_, bucket):
        for name in NAMES:
            bucket.put(name, content(name, "1"))
        config = stopped(cluster, 1)
        names = sorted(NAMES)
        changed, dead = set(names[:20]), set(names[20:40])
        for name in changed:
            bucket.put(name, content(name, "2"))
        for name in dead:
            bucket.delete(name)
        bucket.put("born", b"while it was away")
        with back(tmp_path, cluster, 1, config) as node:
            with connect(node.url, options=PATIENT_CLIENT) as alone:
                for name in names:
                    try:
                        data = alone.bucket(BUCKET).get(name)
                    except errors.NotFound:
                        assert name in dead
                    else:
                        assert name not in dead
                        assert data == content(name, "2" if name in changed else "1")
            eventually(lambda: not store_of(node).replicas.stale.any, TIMEOUT_S)
            eventually(lambda: everything_in_place(cluster.nodes, (NAMES - dead) | {"born"}, dead), TIMEOUT_S)
            assert node.repair.metrics.silent == ()


def test_a_deletion_that_a_node_missed_comes_with_what_it_says_of_writes(tmp_path: Path) -> None:
    """With the ids of the writes that it replaced, with the nodes that took no part, and with what is known of the
    remote object."""
    with LocalCluster(tmp_path, 2, copies=2, repair_interval_s=3600.0) as cluster, client_of(cluster) as (_, bucket):
        bucket.put("k", b"data")
        eventually(lambda: all(len(held(node)) == 1 for node in cluster.nodes), TIMEOUT_S)
        returned, other = map(store_of, cluster.nodes)
        version = held(cluster.nodes[0])["k"].version
        later = version._replace(counter=version.counter + 1)
        marks = encode_metadata({REMOTE_DELETED: "1"})
        other.delete(BUCKET, "k", later, keep_tombstone=True, writes=memory_of(b"i" * 16, [1]), raw_metadata=marks)
        cluster.nodes[0].repair.compare_again()
        eventually(lambda: held(cluster.nodes[0])["k"].version == later, TIMEOUT_S)
        (missed,), (known,) = (store.replicas.newest(BUCKET, ["k"]) for store in (returned, other))
        assert missed is not None and known is not None
        assert missed.writes == known.writes and missed.write_id == b"i" * 16 and not took_part(missed.writes, 1)
        assert missed.raw_metadata == marks


def test_copies_in_doubt_are_refused_by_the_node_and_found_at_another(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster, client_of(cluster) as (_, bucket):
        bucket.put("k", b"right")
        eventually(lambda: all(node.repair.metrics.clean_version == 1 for node in cluster.nodes), TIMEOUT_S)
        store, uuid = store_of(cluster.nodes[0]), cluster.map.bucket[0].uuid
        announced = Version(99, 1)
        store.replicas.stale.mark_names(uuid, {"k": announced})
        answer = cluster.ask(["k"], local=True, initial_credit_bytes=1 << 20)
        assert (answer.status, answer.data) == ({0: batch_pb.UNAVAILABLE}, {0: b""})
        assert cluster.ask(["k"], initial_credit_bytes=1 << 20).data == {0: b"right"}
        with pytest.raises(ReplicaStale):
            store.head(BUCKET, "k")
        assert store.replicas.page(BUCKET, "", "", most=10, most_bytes=1000) == ([], None, ["k"], (), ())
        assert bucket.get("k") == b"right"
        assert bucket.head("k").size_bytes == 5
        for assembly in ("direct", "target"):
            items = list(bucket.get_batch(["k", "k", "none"], on_error="placeholder", assembly=assembly))
            assert [item.tobytes() for item in items[:2]] == [b"right", b"right"]
            assert items[2].status.name == "NOT_FOUND"
        assert [info.name for info in bucket.objects()] == ["k"]
        store.replicas.stale.trust_name(uuid, "k", announced)
        assert cluster.ask(["k"], local=True, initial_credit_bytes=1 << 20).data == {0: b"right"}


def test_what_has_arrived_before_it_is_doubted_leaves_no_doubt(tmp_path: Path) -> None:
    """A pass of repair saw an older copy here, and the newer one came before it noted that."""
    with LocalCluster(tmp_path, 2, copies=2) as cluster, client_of(cluster) as (_, bucket):
        bucket.put("k", b"new")
        node, stale = cluster.nodes[0], store_of(cluster.nodes[0]).replicas.stale
        eventually(lambda: not stale.any, TIMEOUT_S)
        newest = held(node)["k"]
        node.repair._mark_older(cluster.map.bucket[0], {"k": State(newest.version, False, newest.size_bytes)})
        assert not stale.bucket_uuids() and not stale.any


@pytest.mark.slow
def test_copies_all_of_which_are_in_doubt_are_waited_for(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster, client_of(cluster) as (_, bucket):
        bucket.put("k", b"right")
        for assembly in ("direct", "target"):
            for node in cluster.nodes:
                store_of(node).replicas.stale.mark_buckets([cluster.map.bucket[0].uuid])
            assert [item.tobytes() for item in bucket.get_batch(["k"], assembly=assembly)] == [b"right"]
        for node in cluster.nodes:
            store_of(node).replicas.stale.mark_buckets([cluster.map.bucket[0].uuid])
        assert bucket.head("k").size_bytes == 5


@pytest.mark.slow
@pytest.mark.parametrize("doubtful", [0, 1])
def test_a_copy_in_doubt_is_waited_for_where_the_other_is_on_a_broken_drive(tmp_path: Path, doubtful: int) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster, client_of(cluster) as (_, bucket):
        bucket.put("k", b"right")
        eventually(lambda: all(node.repair.metrics.clean_version == 1 for node in cluster.nodes), TIMEOUT_S)
        store, uuid, announced = store_of(cluster.nodes[doubtful]), cluster.map.bucket[0].uuid, Version(99, 1)
        broken = store_of(cluster.nodes[1 - doubtful])
        for drive in broken.drives:
            assert drive is not None
            broken.pool.disable_drive(drive.identity.drive_uuid, "I/O errors")
        for assembly in ("direct", "target"):
            store.replicas.stale.mark_names(uuid, {"k": announced})
            timer = threading.Timer(0.5, store.replicas.stale.trust_name, (uuid, "k", announced))
            timer.start()
            assert [item.tobytes() for item in bucket.get_batch(["k"], assembly=assembly)] == [b"right"]
            timer.join(TIMEOUT_S)


@pytest.mark.slow
def test_a_node_alone_waits_for_the_others_and_then_serves_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubted, mark = set[bytes](), StaleReplicas.mark_buckets

    def noted(stale: StaleReplicas, uuids: Iterable[bytes]) -> None:
        mark(stale, uuids := list(uuids))
        doubted.update(uuids)

    with LocalCluster(tmp_path, 2, copies=2, reconcile_patience_s=1.0) as cluster:
        with client_of(cluster) as (_, bucket):
            bucket.put("k", b"data")
        config = stopped(cluster, 1)
        stopped(cluster, 0)
        monkeypatch.setattr(StaleReplicas, "mark_buckets", noted)
        with back(tmp_path, cluster, 1, config) as node:
            store = store_of(node)
            assert doubted == {cluster.map.bucket[0].uuid}
            eventually(lambda: not store.replicas.stale.any, TIMEOUT_S)
            assert node.repair.metrics.silent == (cluster.map.node[0].peer_endpoint,)
            assert store.head(BUCKET, "k").size_bytes == 4


def test_a_bucket_of_single_copies_is_never_in_doubt(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 2, copies=1) as cluster:
        config = stopped(cluster, 1)
        stopped(cluster, 0)
        with back(tmp_path, cluster, 1, config) as node:
            assert not store_of(node).replicas.stale.any


@pytest.mark.slow
def test_a_node_that_joins_gets_its_objects_and_the_others_let_go_of_them(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2, repair_interval_s=600.0) as cluster:
        eventually(lambda: all(node.repair.metrics.clean_version == 1 for node in cluster.nodes), TIMEOUT_S)
        # As they were before it joined; had it begun to, it might have finished without them.
        for number in (0, 1):
            cluster.put_on(number, {name: content(name, "1") for name in NAMES})
        cluster.map.node[2].state = cluster_pb.MapNode.JOINING
        cluster.learn()
        assert ClusterView(cluster.map).former is not None
        eventually(lambda: _states(cluster) == [cluster_pb.MapNode.ACTIVE] * 3, TIMEOUT_S)
        eventually(lambda: everything_in_place(cluster.nodes, NAMES), TIMEOUT_S)
        with client_of(cluster) as (_, bucket):
            assert {name: bucket.get(name) for name in NAMES} == {name: content(name, "1") for name in NAMES}


@pytest.mark.slow
def test_a_copy_is_let_go_of_only_when_the_others_are_on_their_disks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the durability: the node that gives it up may have had it on its disk for long."""
    names = {f"{number:02}" for number in range(20)}
    synced: list[Path] = []
    fails = threading.Event()
    sync = Drive.sync

    def sync_or_fail(drive: Drive) -> None:
        if fails.is_set():
            raise DriveFailed("the disk takes nothing")
        synced.append(drive.root)
        sync(drive)

    monkeypatch.setattr(Drive, "sync", sync_or_fail)
    with LocalCluster(tmp_path, 3, copies=1, repair_interval_s=0.2) as cluster, client_of(cluster) as (_, bucket):
        for name in names:
            bucket.put(name, content(name, "1"))
        leaving = cluster.nodes[2]
        mine = set(held(leaving))
        assert mine
        fails.set()
        cluster.map.node[2].state = cluster_pb.MapNode.LEAVING
        cluster.learn()
        others = cluster.nodes[:2]
        eventually(lambda: mine <= held(others[0]).keys() | held(others[1]).keys(), timeout_s=TIMEOUT_S)
        passes = leaving.repair.metrics.passes
        eventually(lambda: leaving.repair.metrics.passes > passes + 2, timeout_s=TIMEOUT_S)
        assert set(held(leaving)) == mine and not synced
        fails.clear()
        eventually(lambda: not held(leaving), timeout_s=TIMEOUT_S)
        assert {tmp_path / "node-0", tmp_path / "node-1"} >= set(synced) and synced
        assert {name: bytes(bucket.get(name)) for name in names} == {name: content(name, "1") for name in names}


@pytest.mark.slow
def test_a_node_that_leaves_gives_everything_away_and_goes(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 3, copies=2, repair_interval_s=0.5) as cluster, client_of(cluster) as (_, bucket):
        for name in NAMES:
            bucket.put(name, content(name, "1"))
        cluster.map.node[1].state = cluster_pb.MapNode.LEAVING
        cluster.learn()
        eventually(lambda: len(_states(cluster)) == 2, TIMEOUT_S)
        assert held(cluster.nodes[1]) == {}
        eventually(lambda: everything_in_place([cluster.nodes[0], cluster.nodes[2]], NAMES), TIMEOUT_S)
        assert {name: bucket.get(name) for name in NAMES} == {name: content(name, "1") for name in NAMES}


def _states(cluster: LocalCluster) -> list[int]:
    """As all nodes that are in the map see them; empty while they differ."""
    views = [node.membership.view for node in cluster.nodes]
    newest = max((view for view in views if view is not None), key=lambda view: view.version)
    there = [
        view
        for node, view in zip(cluster.nodes, views, strict=True)
        if view is not None and node.membership.node_uuid in newest.position
    ]
    if any(view.version != newest.version for view in there):
        return []
    return [node.state for node in newest.nodes]


@pytest.mark.slow
def test_tombstones_are_forgotten_when_all_have_them_and_their_time_is_over(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path, 3, copies=2, repair_interval_s=0.3, tombstone_grace_s=0.5) as cluster,
        client_of(cluster) as (_, bucket),
    ):
        for name in NAMES:
            bucket.put(name, content(name, "1"))
        for name in sorted(NAMES)[:30]:
            bucket.delete(name)
        left = set(sorted(NAMES)[30:])
        eventually(lambda: {name for node in cluster.nodes for name in held(node)} == left, TIMEOUT_S)
        eventually(lambda: everything_in_place(cluster.nodes, left), TIMEOUT_S)


@pytest.mark.slow
def test_a_tombstone_stays_while_a_node_is_away(tmp_path: Path) -> None:
    with (
        LocalCluster(tmp_path, 3, copies=2, repair_interval_s=0.3, tombstone_grace_s=0.1) as cluster,
        client_of(cluster) as (_, bucket),
    ):
        for name in NAMES:
            bucket.put(name, content(name, "1"))
        config = stopped(cluster, 1)
        for name in NAMES:
            bucket.delete(name)
        passes = cluster.nodes[0].repair.metrics.passes
        eventually(lambda: cluster.nodes[0].repair.metrics.passes > passes + 2, TIMEOUT_S)
        left = [node for at, node in enumerate(cluster.nodes) if at != 1]
        assert {name for node in left for name in held(node)} == NAMES
        with back(tmp_path, cluster, 1, config):
            eventually(lambda: all(held(node) == {} for node in cluster.nodes), TIMEOUT_S)
            assert list(bucket.objects()) == []


@pytest.mark.slow
def test_a_deletion_leaves_nothing_with_a_former_owner_that_has_nothing(tmp_path: Path) -> None:
    """Else clients that go on deleting would keep a change of the map from ever being finished."""
    # No node is ever out of touch, so that no deletion is tried twice: of the first try, the last node cannot be asked.
    config = {"repair_interval_s": 600.0, "reach_timeout_s": TIMEOUT_S, "read_lease_s": 600.0}
    with LocalCluster(tmp_path, 4, copies=2, linked=True, **config) as cluster:
        cluster.map.node[2].state = cluster_pb.MapNode.JOINING
        cluster.learn()
        cluster.links[3].refuse()  # so that nobody finishes the change
        names = [
            name for at in range(400) if len(cluster.holders(name := f"n{at}")) == 3 and 3 not in cluster.holders(name)
        ][:40]
        left = 0
        with client_of(cluster) as (_, bucket):
            for name in names:
                bucket.put(name, b"there")
                bucket.delete(name)
                (former,) = set(cluster.holders(name)) - set(cluster.owners(name))
                left += name in held(cluster.nodes[former])
                assert all(held(cluster.nodes[owner])[name].is_tombstone for owner in cluster.owners(name))
        assert left < len(names) / 4, "but where it stood in for an owner that was slow"
        eventually(lambda: not any(store_of(node).replicas.stale.any for node in cluster.nodes), TIMEOUT_S)


def test_a_write_begun_by_an_older_map_is_what_others_are_told_until_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalCluster(tmp_path, 2, copies=2) as cluster, client_of(cluster) as (_, bucket):
        coordinator = cluster.nodes[cluster.owners("k")[0]]
        arrived, go_on = threading.Event(), threading.Event()
        store = store_of(cluster.nodes[cluster.owners("k")[1]])
        commit = store.commit_many

        def slow_commit(uploads: Sequence[Upload | LoaderError]) -> list[CatalogEntry | LoaderError]:
            arrived.set()
            assert go_on.wait(TIMEOUT_S)
            return commit(uploads)

        monkeypatch.setattr(store, "commit_many", slow_commit)
        writer = threading.Thread(target=bucket.put, args=("k", b"data"), daemon=True)
        writer.start()
        assert arrived.wait(TIMEOUT_S)
        cluster.learn()
        assert known_version(coordinator) == cluster.map.version
        assert coordinator.repair.progress().map_version == cluster.map.version - 1
        go_on.set()
        writer.join(TIMEOUT_S)
        eventually(lambda: coordinator.repair.progress().map_version == cluster.map.version, TIMEOUT_S)
        assert bucket.get("k") == b"data"


def known_version(node: NodeServer) -> int:
    view = node.membership.view
    assert view is not None
    return view.version
