"""Nodes of a coded bucket that are killed: in the middle of a conversion, and any two of six under batches.

Whatever was acknowledged is read with its bytes, by a client that sees no error, with up to two nodes away. After a
conversion that was stopped, all is coded in the end, and no fragment is left that belongs to no group.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ais_loader import Bucket, ClusterOptions, connect
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.generated import ais_replica_pb2 as pb
from ais_loader.wire.generated import ais_replica_pb2_grpc as rpc
from ais_loader.wire.redundancy import companion_name
from storage_node.store.store import Store
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import Kind, read, serve_all
from tests.peer_kit import PROCESS_OPERATOR

pytestmark = pytest.mark.slow  # real processes, killed and awaited

BUCKET = "b"
NODES, DATA, PARITY = 6, 4, 2
LEFT_BYTES = DATA * (64 << 10)
"""Less than this on a node stays as copies."""
DRAW = random.Random(5)
OBJECTS = {f"s/{at:03}": DRAW.randbytes(DRAW.randrange(1, 60_000)) for at in range(200)} | {
    "large": DRAW.randbytes(5_000_001)
}
RETRY_S = 240.0
GRACE_S = 20


@contextmanager
def coded(folder: Path, *, delay_s: float = 0.0, min_copies: int = PARITY + 1) -> Iterator[ClusterProcesses]:
    """Six nodes with a coded bucket without objects. `min_copies`: with fewer, what a test kills may have all copies
    of an object that a busy machine left with fewer."""
    settings = {"coding_delay_s": delay_s, "coding_grace_s": GRACE_S, "repair_interval_s": 1, "tombstone_grace_s": 1}
    arguments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    buckets = {BUCKET: PARITY + 1}
    with ClusterProcesses(folder, NODES, buckets=buckets, min_copies=min_copies, arguments=arguments) as cluster:
        parent = cluster.map.bucket[0]
        parent.coding.data, parent.coding.parity = DATA, PARITY
        cluster.map.bucket.add(
            name=companion_name(parent.uuid), uuid=uuid.uuid4().bytes, copies=1, min_copies=1, coded_of=parent.uuid
        )
        cluster.map.version += 1
        cluster.teach()
        yield cluster


def progress(node: NodeProcess) -> pb.CodingProgress:
    with PROCESS_OPERATOR.through(grpc.insecure_channel(node.peer_endpoint), node.peer_endpoint) as channel:
        return rpc.RepairStub(channel).Progress(pb.ProgressRequest(), timeout=180).coding


def await_coded(cluster: ClusterProcesses) -> None:
    """Wait until what no node has begun to code is too little for a group on each."""

    def ended() -> bool:
        coded_bytes = sum(progress(node).bytes_coded for node in cluster.nodes)
        return coded_bytes > sum(map(len, OBJECTS.values())) - NODES * LEFT_BYTES

    eventually(ended)


def settled(cluster: ClusterProcesses) -> bool:
    """Whether there are groups, all of them whole. What was coded before a node died is in none of its counters."""
    found = [progress(node) for node in cluster.nodes]
    return sum(one.groups for one in found) >= NODES and not any(one.short_groups for one in found)


def check(bucket: Bucket, content: Mapping[str, bytes] = OBJECTS) -> None:
    for assembly in ("direct", "target"):
        read(bucket, list(content), Kind(assembly, ordered=True), content=content)


def assert_each_fragment_has_a_manifest(cluster: ClusterProcesses, folder: Path) -> None:
    """Once what a coder that died has left is older than `coding_grace_s`, by the drives beside the nodes."""
    uuid_, companion = cluster.map.bucket[0].uuid, companion_name(cluster.map.bucket[0].uuid)

    def found() -> tuple[set[str], set[str], set[str]]:
        """Groups with fragments, those with a manifest, and those that objects name."""
        groups, manifests, named = set[str](), set[str](), set[str]()
        for number in range(NODES):
            with Store.open([folder / f"node-{number}" / "drive-0"], mode="r") as store:
                groups |= {name.split("/")[0] for name, _ in store.replicas.scan(companion, "", "", tombstones=False)}
                manifests |= {
                    name.removeprefix("/.coded/")
                    for name, _ in store.replicas.scan(BUCKET, "/.coded/", "", tombstones=False)
                }
                entries = [store.replicas.newest_entry(uuid_, name) for name in OBJECTS]
                named |= {entry.group.hex() for entry in entries if entry is not None and entry.is_coded}
        return groups, manifests, named

    def is_kept() -> bool:
        groups, manifests, named = found()
        return groups == manifests and named <= manifests

    eventually(is_kept, interval_s=1.0)


@pytest.mark.parametrize("point", ["code.fragments", "code.manifest", "code.swapped", "code.done"])
def test_a_node_that_dies_within_a_conversion_loses_nothing(tmp_path: Path, point: str) -> None:
    with coded(tmp_path) as cluster:
        node = cluster.nodes[0]
        node._environment["AIS_LOADER_FAILPOINT"] = point
        node.restart()
        cluster.teach()
        with connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S)) as client:
            bucket = client.bucket(BUCKET)
            assert bucket.put_many(OBJECTS.items()).stored == len(OBJECTS)
            eventually(lambda: not node.alive)
            check(bucket)
            del node._environment["AIS_LOADER_FAILPOINT"]
            node.kill()
            node.start()
            cluster.teach()
            serve_all(cluster)
            check(bucket)
            is_swapped = point in ("code.swapped", "code.done")
            eventually(lambda: progress(node).groups_coded > 0 or is_swapped)
            eventually(lambda: not any(progress(one).short_groups for one in cluster.nodes))
            check(bucket)


def test_all_nodes_that_die_within_a_conversion_go_on_with_it(tmp_path: Path) -> None:
    with coded(tmp_path, min_copies=1) as cluster:  # writes go on while most nodes are dead, and all return
        points = [
            "code.fragments",
            "code.manifest",
            "code.swapped",
            "put.committed:60",
            "put.published:40",
            "code.done",
        ]
        for node, point in zip(cluster.nodes, points, strict=True):
            node._environment["AIS_LOADER_FAILPOINT"] = point
            node.restart()
        cluster.teach()
        with connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S)) as client:
            client.bucket(BUCKET).put_many(list(OBJECTS.items())[:20])
            with ThreadPoolExecutor(1) as pool:
                putting = pool.submit(client.bucket(BUCKET).put_many, OBJECTS.items())
                eventually(lambda: sum(not node.alive for node in cluster.nodes) >= 3)
                for node in cluster.nodes:
                    del node._environment["AIS_LOADER_FAILPOINT"]
                cluster.kill()
                cluster.start()
                cluster.teach()
                assert putting.result(timeout=180).stored == len(OBJECTS)
            serve_all(cluster)
            check(client.bucket(BUCKET))
            eventually(lambda: settled(cluster), interval_s=1.0)
            check(client.bucket(BUCKET))
        assert_each_fragment_has_a_manifest(cluster, tmp_path)


def test_any_two_of_six_nodes_are_killed_under_batches(tmp_path: Path) -> None:
    with coded(tmp_path) as cluster, connect(cluster.url, options=ClusterOptions(retry_s=RETRY_S)) as client:
        bucket = client.bucket(BUCKET)
        assert bucket.put_many(OBJECTS.items()).stored == len(OBJECTS)
        await_coded(cluster)
        kinds = itertools.cycle([Kind("direct", ordered=True), Kind("target", ordered=False)])
        for pair in itertools.combinations(range(NODES), 2):
            serve_all(cluster)
            read(bucket, list(OBJECTS), next(kinds), at=40, harm=lambda pair=pair: cluster.kill(pair), content=OBJECTS)
            check(bucket)
            cluster.start()
            cluster.teach(pair)
        serve_all(cluster)
        assert_each_fragment_has_a_manifest(cluster, tmp_path)
