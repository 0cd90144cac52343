"""Promotion by nodes: only from their roots, each file once and on its owners, whoever promotes it and whoever dies."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ais_loader import ClusterOptions, Progress, connect, errors
from ais_loader.errors import StaleMap
from ais_loader.testing import eventually, seeded_bytes, throwaway_folder
from ais_loader.testing.node import NodeProcess
from ais_loader.transport.cluster import promote as promote_shares
from ais_loader.values.promote import PromoteResult, PromoteSpec
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_promote_pb2 as wire
from storage_node.promote import cluster as promoting
from storage_node.promote import group_promotion
from storage_node.promote.into_store import promote_group
from storage_node.promote.job import Job, Outcome, open_unless_stored
from storage_node.promote.source import SourceFile
from storage_node.promote.walk import Found
from storage_node.server import NodeServer
from storage_node.services.promote import _share
from storage_node.settings.config import ServerConfig
from storage_node.settings.sources import WrongSetting, configured, read_assignments, read_file
from storage_node.store.store import Store
from tests.cluster_processes import ClusterProcesses
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.write_kit import cluster_of, copies_of, held, staged_files
from tests.patience import PATIENT_CLIENT
from tests.table import table

LARGE = (1 << 20) + 4321
REPAIRED_S = 180.0
"""Longer than from one pass of repair to the next."""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """Below tmp_path/files."""
    made = {f"{at % 7}/{at:03d}": seeded_bytes(100 + at, seed=at) for at in range(300)}
    made |= {f"large{at}": seeded_bytes(LARGE + at, seed=1000 + at) for at in range(6)}
    for name, data in made.items():
        path = tmp_path / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with cluster_of(tmp_path / "nodes", 3, copies=2, promote_roots=(str(tmp_path / "files"),)) as running:
        yield running


def assert_stored(cluster: LocalCluster, files: dict[str, bytes]) -> None:
    """Every object on its two owners, in one version, and nothing else anywhere.

    Not at once on a busy machine: a node that did not answer a moment ago is passed over, and gets its copies from
    repair.
    """

    def holders() -> dict[str, list[int]]:
        stores = [cluster.batches(number).node.store for number in range(len(cluster.nodes))]
        there = [{name for name, _ in list(store.objects(BUCKET))} for store in stores]
        return {name: [number for number, names in enumerate(there) if name in names] for name in files}

    owners = {name: sorted(cluster.owners(name)) for name in files}
    eventually(lambda: holders() == owners, timeout_s=REPAIRED_S, interval_s=0.1)
    here = [held(cluster.batches(number).node.store) for number in range(len(cluster.nodes))]
    for name, data in files.items():
        found = {number: objects[name] for number, objects in enumerate(here) if name in objects}
        assert sorted(found) == owners[name]
        assert len(set(found.values())) == 1
        assert next(iter(found.values()))[1] == data
    assert {name for objects in here for name in objects} == set(files)
    eventually(lambda: staged_files(cluster) == 0)


def coordinator(result: PromoteResult) -> int:
    """The position of the node that coordinated the write."""
    assert result.info is not None
    return int(result.info.version.split(".")[2]) - 1


# -- from where


def test_a_node_promotes_from_its_roots_alone(tmp_path: Path) -> None:
    (tmp_path / "files" / "in").mkdir(parents=True)
    (tmp_path / "files" / "in" / "a").write_bytes(b"a")
    (tmp_path / "files" / "out").symlink_to("/etc")
    config = ServerConfig(port=0, promote_roots=(str(tmp_path / "files"),))
    with NodeServer([tmp_path / "drive"], config) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        for path in ("/etc", tmp_path, tmp_path / "files" / ".." / "files", tmp_path / "files" / "out" / "hosts"):
            with pytest.raises(errors.SourceRefused):
                bucket.promote(path)
        with pytest.raises(errors.InvalidRequest, match="absolute"):
            bucket.promote("files/in")
        assert list(bucket.objects()) == []
        assert bucket.promote(tmp_path / "files" / "in").promoted == 1


def test_a_node_without_roots_says_what_to_set(tmp_path: Path) -> None:
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0)) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        with pytest.raises(errors.SourceRefused, match="--promote-root"):
            bucket.promote(tmp_path)


@table("root", ["relative", "/a/../b", ""])
def test_roots_are_absolute_paths(root: str) -> None:
    with pytest.raises(ValueError, match="promote_roots"):
        ServerConfig(promote_roots=(root,))


def test_roots_are_set_as_a_list_or_as_one_text(tmp_path: Path) -> None:
    (tmp_path / "set.toml").write_text('promote_roots = ["/a b", "/c"]')
    for settings in (read_file(tmp_path / "set.toml"), read_assignments(["promote_roots=/a b:/c"])):
        assert configured(ServerConfig(), json.loads(json.dumps(settings))).store.promote_roots == ("/a b", "/c")
    with pytest.raises(WrongSetting, match="promote_roots"):
        read_assignments(["promote_roots=7"])


def test_of_nodes_that_cannot_promote_the_one_that_knows_most_says_why(tmp_path: Path) -> None:
    (tmp_path / "files" / "folder").mkdir(parents=True)
    configs = {1: {"promote_roots": (str(tmp_path / "files"),)}}
    with (
        LocalCluster(tmp_path / "nodes", 3, configs=configs) as cluster,
        connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client,
    ):
        bucket = client.bucket(BUCKET)
        with pytest.raises(errors.SourceUnreadable, match="missing"):
            bucket.promote(tmp_path / "files" / "missing")
        with pytest.raises(errors.SourceRefused, match="recursive"):
            bucket.promote(tmp_path / "files" / "folder", recursive=False)
        with pytest.raises(errors.SourceRefused, match="folders"):
            bucket.promote("/etc")


# -- by whom


@pytest.mark.parametrize("move", [False, True])
def test_nodes_that_see_the_same_files_take_their_share_and_each_file_is_stored_once(
    cluster: LocalCluster, tmp_path: Path, files: dict[str, bytes], move: bool
) -> None:
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        bucket = client.bucket(BUCKET)
        results = list(bucket.iter_promote(tmp_path / "files", move=move))
        assert [one.status for one in results] == ["promoted"] * len(files)
        assert sorted(one.name for one in results) == sorted(files)
        assert [coordinator(one) for one in results] == [cluster.owners(one.name)[0] for one in results]
        assert_stored(cluster, files)
        again = bucket.promote(tmp_path / "files", move=move)
        assert (again.promoted, again.skipped) == (0, 0 if move else len(files))
    assert sum(path.is_file() for path in (tmp_path / "files").rglob("*")) == (0 if move else len(files))


@pytest.mark.slow
@pytest.mark.parametrize("by_name", [False, True])
def test_one_node_promotes_for_all_owners(
    cluster: LocalCluster, tmp_path: Path, files: dict[str, bytes], by_name: bool
) -> None:
    endpoint = cluster.map.node[2].endpoint
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        node = endpoint if by_name else None
        results = list(client.bucket(BUCKET).iter_promote(tmp_path / "files", shared=False, node=node))
        assert client.bucket(BUCKET).promote(tmp_path / "files", shared=True).skipped == len(files)
    assert len({coordinator(one) for one in results}) == 1
    assert not by_name or coordinator(results[0]) == 2
    assert_stored(cluster, files)


@pytest.mark.slow
def test_a_node_that_does_not_see_the_files_gets_its_objects_from_those_that_do(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    seeing = {number: {"promote_roots": (str(tmp_path / "files"),)} for number in (0, 1)}
    with cluster_of(tmp_path / "nodes", 3, copies=2, configs=seeing) as cluster:
        with connect(cluster.nodes[2].url, options=PATIENT_CLIENT) as client:
            results = list(client.bucket(BUCKET).iter_promote(tmp_path / "files"))
        assert sorted(one.name for one in results) == sorted(files)
        assert {coordinator(one) for one in results} == {0, 1}
        assert_stored(cluster, files)


@pytest.mark.slow
def test_a_file_that_changes_while_it_is_copied_is_stored_nowhere(
    cluster: LocalCluster, tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(*arguments: object) -> SourceFile | None:
        source = open_unless_stored(*arguments)  # type: ignore[arg-type]
        if source is not None and source.found.path in ("large1", "0/007"):
            with (tmp_path / "files" / source.found.path).open("r+b") as file:
                file.write(b"changed")
        return source

    monkeypatch.setattr(group_promotion, "open_unless_stored", changing)
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        summary = client.bucket(BUCKET).promote(tmp_path / "files", on_error="return")
    assert {one.path: type(one.error) for one in summary.failures} == {
        "large1": errors.SourceChanged,
        "0/007": errors.SourceChanged,
    }
    assert copies_of(cluster, "large1") == copies_of(cluster, "0/007") == {}
    assert_stored(cluster, {name: data for name, data in files.items() if name not in ("large1", "0/007")})


@pytest.mark.slow
def test_large_files_that_are_moved_are_linked_where_they_belong_and_copied_elsewhere(
    cluster: LocalCluster, tmp_path: Path, files: dict[str, bytes]
) -> None:
    inodes = {name: (tmp_path / "files" / name).stat().st_ino for name in files if name.startswith("large")}
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        client.bucket(BUCKET).promote(tmp_path / "files", move=True)
    assert_stored(cluster, files)
    for name, inode in inodes.items():
        drive, record = cluster.batches(cluster.owners(name)[0]).node.store.locate(BUCKET, name)
        found = (drive.root / "objects" / os.fsdecode(record.path)).stat()
        assert (found.st_ino, found.st_nlink) == (inode, 1)


# -- who takes what


def test_a_share_is_taken_by_one_version_of_the_map_alone(cluster: LocalCluster) -> None:
    names = [f"n{at}" for at in range(200)]
    uuids = [bytes(node.uuid) for node in cluster.map.node]

    def share(number: int, taking: list[bytes], version: int = 1) -> set[str]:
        replica_set = promoting.ReplicaSet(cluster.view, cluster.view.buckets[BUCKET], number)
        mine = _share(replica_set, wire.PromoteRequest(participant=taking, map_version=version))
        return {name for name in names if mine(name)}

    for taking in ([0, 1, 2], [0, 2], [1]):
        shares = [share(number, [uuids[at] for at in taking]) for number in taking]
        assert sum(map(len, shares)) == len(names) and set().union(*shares) == set(names)
    for refused in (lambda: share(0, uuids, 2), lambda: share(0, uuids[1:])):
        with pytest.raises(StaleMap):
            refused()


def test_nodes_of_one_host_leave_no_name_to_nobody(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 4) as cluster:
        for at, node in enumerate(cluster.map.node):
            node.host = f"host-{at // 2}"
        view = ClusterView(cluster.map)
        taking = [bytes(cluster.map.node[at].uuid) for at in (0, 2)]
        request = wire.PromoteRequest(participant=taking, map_version=1)
        shares = [_share(promoting.ReplicaSet(view, view.buckets[BUCKET], number), request) for number in (0, 2)]
        assert all(sum(mine(f"n{at}") for mine in shares) == 1 for at in range(300))


def test_files_that_may_be_different_ones_are_not_promoted_before_it_is_said_whose(cluster: LocalCluster) -> None:
    with connect(cluster.nodes[0].url, options=PATIENT_CLIENT) as client:
        client.buckets()
        members = client._transport.members  # type: ignore[attr-defined]
    uuids = [bytes(node.uuid) for node in cluster.map.node]
    here = {uuids[at]: wire.LookResponse(machine=f"machine {at}", device=1, inode=2) for at in range(3)}
    spec = PromoteSpec(bucket=BUCKET, path="/data")
    for shared in ("auto", False):
        with pytest.raises(errors.InvalidRequest, match="several nodes"):
            promote_shares._choose(members, PromoteSpec(bucket=BUCKET, path="/data", shared=shared), here, {})  # type: ignore[arg-type]
    said = PromoteSpec(bucket=BUCKET, path="/data", shared=True)
    assert promote_shares._choose(members, said, here, {}) == sorted(uuids)
    named = PromoteSpec(bucket=BUCKET, path="/data", node=uuids[1].hex())
    assert promote_shares._choose(members, named, here, {}) == [uuids[1]]
    one_machine = {uuid: wire.LookResponse(machine="same", device=1, inode=2) for uuid in uuids}
    assert promote_shares._choose(members, spec, one_machine, {}) == sorted(uuids)
    with pytest.raises(errors.InvalidRequest, match="no node has this address or uuid"):
        promote_shares._choose(members, PromoteSpec(bucket=BUCKET, path="/data", node="x:1"), here, {})


# -- who gives up


@pytest.mark.parametrize("ended_by", ["client", "operator"])
def test_a_promotion_ends_with_its_client_and_with_its_node(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    first, begun, given_up = threading.Lock(), threading.Event(), threading.Event()

    def first_then_never(store: Store, job: Job, group: Sequence[Found]) -> list[Outcome]:
        done = promote_group(store, job, group[:1])
        if not first.acquire(blocking=False):
            begun.set()
            try:
                while not given_up.wait(0.01):
                    job.go_on()
            finally:
                given_up.set()
        return done

    monkeypatch.setattr("storage_node.services.promote.promote_group", first_then_never)
    config = ServerConfig(port=0, promote_roots=(str(tmp_path / "files"),))
    with (
        NodeServer([tmp_path / "drive"], config) as node,
        connect(node.url, options=ClusterOptions(retry_s=0.0)) as client,
    ):

        def stop(_: Progress) -> None:
            assert begun.wait(180)
            if ended_by == "operator":
                node.stop(grace_s=0.1)
            raise ValueError("enough")

        with pytest.raises(ValueError, match="enough"):
            client.create_bucket(BUCKET).promote(tmp_path / "files", progress=stop)
        assert given_up.wait(180)


# -- who dies


@pytest.mark.slow
def test_a_node_that_is_killed_goes_on_when_it_is_asked_again(tmp_path: Path, files: dict[str, bytes]) -> None:
    arguments = ["--promote-root", str(tmp_path / "files")]
    with throwaway_folder() as folder:
        dying = NodeProcess(folder, arguments=arguments, environment={"AIS_LOADER_FAILPOINT": "promote.staged:2"})
        with (
            dying as node,
            connect(node.url, options=PATIENT_CLIENT) as patient,
            connect(node.url, options=ClusterOptions(retry_s=0.0)) as client,
        ):
            patient.create_bucket("b")
            bucket = client.bucket("b")
            with pytest.raises(errors.NodeUnavailable):
                bucket.promote(tmp_path / "files")
        with NodeProcess(folder, arguments=arguments) as node, connect(node.url, options=PATIENT_CLIENT) as client:
            bucket = client.bucket("b")
            there = len(list(bucket.objects()))
            assert there < len(files)
            again = bucket.promote(tmp_path / "files")
            assert (again.promoted, again.skipped) == (len(files) - there, there)
            assert {info.name: bucket.get(info.name) for info in bucket.objects()} == files


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_others_go_on_when_a_node_dies_and_the_rest_is_promoted_without_it(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    # On a machine that stands still, another node may be silent for as long as a dead one; but not each time.
    assert any(others_go_on(tmp_path / "files", files) for _ in range(4))


def others_go_on(path: Path, files: dict[str, bytes]) -> bool:
    """Kill one of three nodes while all promote. Return whether every file is told that another one has to promote.

    Raises AssertionError unless all files are promoted in the end.
    """
    arguments = ["--promote-root", str(path)]
    with (
        throwaway_folder() as folder,
        ClusterProcesses(folder, 3, buckets={BUCKET: 2}, arguments=arguments) as cluster,
        connect(cluster.url) as client,  # waits for the dead one only so long
        connect(cluster.url, options=PATIENT_CLIENT) as patient,
    ):
        bucket, read = client.bucket(BUCKET), patient.bucket(BUCKET)
        told: list[PromoteResult] = []

        for result in bucket.iter_promote(path):
            if not told:
                cluster.nodes[2].kill()
            told.append(result)
        named = {one.name for one in told}
        failed = [one for one in told if one.error is not None]
        view = ClusterView(cluster.map)
        lost = {name for name in files if view.owners(view.buckets[BUCKET], name)[0] == 2}
        ended = [one.error for one in failed if one.path == ""]
        assert (failed or len(told) == len(files)) and all(one.error.retryable for one in failed if one.error)

        def promoted() -> int:
            summary = bucket.promote(path, on_error="return")
            return summary.complete and summary.promoted + summary.skipped

        assert eventually(promoted) == len(files)
        assert {name: read.get(name) for name in files} == files
        cluster.start()
        assert eventually(promoted) == len(files)
        assert {name: read.get(name) for name in files} == files
        print(len(named), len(lost), ended)
        # What was being committed with the dead one may have failed.
        return named - {""} >= set(files) - lost and (lost <= named or len(ended) == 1)
