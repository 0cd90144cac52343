"""Node processes that come, go and die while clients read and write: nothing old returns, nothing deleted rises."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ais_loader import Bucket, connect, errors
from ais_loader.testing import NodeProcess, eventually
from ais_loader.testing.cluster import ClusterProcesses
from protos import ais_cluster_pb2 as cluster_pb
from protos import ais_replica_pb2 as wire
from protos import ais_replica_pb2_grpc as rpc
from protos.cluster_map import ClusterView
from storage_node.cluster.asking import ask_nodes, newest_map
from storage_node.cluster.change import change_map
from storage_node.cluster.edits import add_node, begin_leave

pytestmark = pytest.mark.slow  # real processes, killed and awaited

BUCKET = "b"
TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 20.0
GONE = -1


class Ledger:
    """What is known of each key: its number of acknowledged changes, and whether the last one was a deletion.

    A reader notes what it has to expect at least before it asks: an answer of an earlier state is a fault.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged: dict[str, int] = {}
        self._begun: dict[str, tuple[int, bool]] = {}
        self._alive: dict[str, bool] = {}

    def begin(self, key: str, *, alive: bool) -> int:
        with self._lock:
            number = self._begun.get(key, (0, True))[0] + 1
            self._begun[key] = number, alive
            return number

    def done(self, key: str, number: int, *, alive: bool) -> None:
        with self._lock:
            self._acknowledged[key], self._alive[key] = number, alive

    def expected(self, key: str) -> tuple[int, bool]:
        """The newest acknowledged change, and whether the object is there after it."""
        with self._lock:
            return self._acknowledged[key], self._alive[key]

    def fault(self, key: str, before: tuple[int, bool], found: int) -> str | None:
        """What is wrong with an answer that was asked for when `before` was expected; GONE: there is no object."""
        number, alive = before
        with self._lock:
            newest, _ = self._begun[key]
        if found == GONE:
            return f"{key}: change {number} of {newest} is not there" if alive and newest == number else None
        if found < number or (found == number and not alive):
            return f"{key}: read change {found} after {number} ({'put' if alive else 'deleted'}) was acknowledged"
        return None

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._acknowledged)


def content(key: str, number: int) -> bytes:
    data = f"{key} {number} ".encode()
    return data + b"x" * 400_000 if key.endswith("9") else data + b"y" * 100


class Clients:
    """Reads every key in every way until it is stopped; a writer changes keys when it is told."""

    def __init__(self, url: str, ledger: Ledger) -> None:
        self._url = url
        self._ledger = ledger
        self._stopping = threading.Event()
        self.faults: list[str] = []
        self.unanswered: list[str] = []
        self.reads = [0, 0, 0, 0]
        ways = (self._get, self._direct, self._target, self._head)
        self._threads = [
            threading.Thread(target=self._read, args=(number, way), daemon=True) for number, way in enumerate(ways)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, number: int, way: object) -> None:
        assert callable(way)
        with connect(self._url) as client:
            bucket = client.bucket(BUCKET)
            while not self._stopping.is_set():
                keys = self._ledger.names()
                for at in range(0, len(keys), 10):
                    if self._stopping.is_set():
                        return
                    try:
                        way(bucket, keys[at : at + 10])
                    except Exception as error:  # noqa: BLE001 - shown by the test
                        self.unanswered.append(f"{way}: {error!r}")
                    self.reads[number] += 1

    def _judge(self, key: str, before: tuple[int, bool], data: bytes | None) -> None:
        found = GONE if data is None else int(data.split(b" ", 2)[1])
        if data is not None and data != content(key, found):
            self.faults.append(f"{key}: damaged")
        if (fault := self._ledger.fault(key, before, found)) is not None:
            self.faults.append(fault)

    def _get(self, bucket: Bucket, keys: Sequence[str]) -> None:
        for key in keys:
            before = self._ledger.expected(key)
            try:
                data: bytes | None = bucket.get(key)
            except errors.NotFound:
                data = None
            self._judge(key, before, data)

    def _head(self, bucket: Bucket, keys: Sequence[str]) -> None:
        for key in keys:
            before = self._ledger.expected(key)
            try:
                found = int(bucket.head(key).metadata["number"])
            except errors.NotFound:
                found = GONE
            if (fault := self._ledger.fault(key, before, found)) is not None:
                self.faults.append(f"head: {fault}")

    def _direct(self, bucket: Bucket, keys: Sequence[str]) -> None:
        self._batch(bucket, keys, "direct")

    def _target(self, bucket: Bucket, keys: Sequence[str]) -> None:
        self._batch(bucket, keys, "target")

    def _batch(self, bucket: Bucket, keys: Sequence[str], assembly: str) -> None:
        before = [self._ledger.expected(key) for key in keys]
        items = list(bucket.get_batch(list(keys), on_error="placeholder", assembly=assembly))
        for key, one, item in zip(keys, before, items, strict=True):
            if item.status.name == "OK":
                self._judge(key, one, item.tobytes())
            elif item.status.name == "NOT_FOUND":
                self._judge(key, one, None)
            else:
                self.unanswered.append(f"{assembly}: {key}: {item.status.name} {item.error}")

    def round(self, times: int = 1) -> None:
        """Return when every way of reading has gone on for some time."""
        goal = [count + times * (len(self._ledger.names()) // 10 + 1) for count in self.reads]
        eventually(lambda: all(count >= wanted for count, wanted in zip(self.reads, goal, strict=True)), TIMEOUT_S)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()

    def check(self) -> None:
        self.stop()
        assert self.faults == []
        assert self.unanswered == []


@contextmanager
def reading(url: str, ledger: Ledger) -> Iterator[Clients]:
    clients = Clients(url, ledger)
    try:
        yield clients
    finally:
        clients.stop()


def put(bucket: Bucket, ledger: Ledger, keys: Sequence[str]) -> None:
    for key in keys:
        number = ledger.begin(key, alive=True)
        bucket.put(key, content(key, number), metadata={"number": str(number)})
        ledger.done(key, number, alive=True)


def delete(bucket: Bucket, ledger: Ledger, keys: Sequence[str]) -> None:
    for key in keys:
        number = ledger.begin(key, alive=False)
        bucket.delete(key)
        ledger.done(key, number, alive=False)


# -- what nodes have, asked of them


def versions(node: NodeProcess, bucket: cluster_pb.MapBucket) -> dict[str, tuple[int, int, int, bool, int]]:
    found: dict[str, tuple[int, int, int, bool, int]] = {}
    with grpc.insecure_channel(node.url.removeprefix("grpc://")) as channel:
        request = wire.VersionsRequest(bucket=wire.BucketRef(name=bucket.name, uuid=bucket.uuid), limit=10_000)
        for one in rpc.ReplicaStub(channel).Versions(request, timeout=CALL_TIMEOUT_S).object:
            version = one.version
            found[one.name] = (version.epoch, version.counter, version.node, one.is_tombstone, one.checksum)
    return found


def current_map(nodes: Sequence[NodeProcess]) -> cluster_pb.ClusterMap:
    map_ = newest_map(ask_nodes(node.url.removeprefix("grpc://") for node in nodes).values())
    assert map_ is not None
    return map_


def equal(nodes: Sequence[NodeProcess], ledger: Ledger) -> bool:
    """Whether every key is on its owners in one version, and on no other node; deleted ones as tombstones."""
    view = ClusterView(current_map(nodes))
    bucket = view.buckets[BUCKET]
    by_endpoint = {node.url.removeprefix("grpc://"): versions(node, bucket) for node in nodes if node.alive}
    for key in ledger.names():
        owners = {view.nodes[at].endpoint for at in view.owners(bucket, key)}
        found = {endpoint: there[key] for endpoint, there in by_endpoint.items() if key in there}
        if set(found) != owners or len(set(found.values())) != 1:
            return False
        if next(iter(found.values()))[3] == ledger.expected(key)[1]:
            return False
    return True


def settled(nodes: Sequence[NodeProcess], count: int) -> bool:
    """Whether the map has so many nodes, all of them active."""
    map_ = current_map(nodes)
    return [node.state for node in map_.node] == [cluster_pb.MapNode.ACTIVE] * count


def endpoints(nodes: Sequence[NodeProcess]) -> list[str]:
    return [node.url.removeprefix("grpc://") for node in nodes]


def join(cluster: ClusterProcesses, node: NodeProcess, host: str) -> None:
    answer = ask_nodes(endpoints([node]))[endpoints([node])[0]]
    member = cluster_pb.MapNode(uuid=bytes.fromhex(answer.uuid), host=host, endpoint=endpoints([node])[0], weight=1.0)
    change_map(endpoints(cluster.nodes), add_node(member), timeout_s=TIMEOUT_S)


KEYS = [f"k{at:03}" for at in range(60)]


@contextmanager
def three(root: Path) -> Iterator[tuple[ClusterProcesses, Bucket, Ledger]]:
    with ClusterProcesses(root, 3, buckets={BUCKET: 2}) as cluster, connect(cluster.url) as client:
        bucket, ledger = client.bucket(BUCKET), Ledger()
        put(bucket, ledger, KEYS)
        yield cluster, bucket, ledger


def test_a_node_that_was_killed_brings_back_nothing_old(tmp_path: Path) -> None:
    with three(tmp_path) as (cluster, bucket, ledger), reading(cluster.url, ledger) as clients:
        clients.round()
        cluster.nodes[1].kill()
        put(bucket, ledger, KEYS[:20])
        delete(bucket, ledger, KEYS[20:40])
        put(bucket, ledger, [f"new{at:03}" for at in range(20)])
        clients.round()
        cluster.nodes[1].start()
        put(bucket, ledger, KEYS[10:30])
        delete(bucket, ledger, KEYS[40:50])
        clients.round(2)
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        clients.round()
        clients.check()


def test_a_node_joins_while_clients_read_and_write(tmp_path: Path) -> None:
    with (
        three(tmp_path / "cluster") as (cluster, bucket, ledger),
        NodeProcess([tmp_path / "fourth"]) as fourth,
        reading(cluster.url, ledger) as clients,
    ):
        join(cluster, fourth, "host-3")
        put(bucket, ledger, KEYS[:30])
        delete(bucket, ledger, KEYS[30:45])
        nodes = [*cluster.nodes, fourth]
        eventually(lambda: settled(nodes, 4), TIMEOUT_S, interval_s=0.2)
        put(bucket, ledger, KEYS[20:40])
        clients.round()
        eventually(lambda: equal(nodes, ledger), TIMEOUT_S, interval_s=0.2)
        clients.check()


def test_a_node_leaves_while_clients_read_and_write(tmp_path: Path) -> None:
    with three(tmp_path) as (cluster, bucket, ledger), reading(cluster.url, ledger) as clients:
        change_map(endpoints(cluster.nodes), begin_leave(cluster.uuid_of(1)), timeout_s=TIMEOUT_S)
        put(bucket, ledger, KEYS[:30])
        delete(bucket, ledger, KEYS[30:45])
        left = [cluster.nodes[0], cluster.nodes[2]]
        eventually(lambda: settled(left, 2), TIMEOUT_S, interval_s=0.2)
        assert versions(cluster.nodes[1], cluster.map.bucket[0]) == {}
        cluster.nodes[1].stop()
        put(bucket, ledger, KEYS[20:40])
        clients.round()
        eventually(lambda: equal(left, ledger), TIMEOUT_S, interval_s=0.2)
        clients.check()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 3])
def test_a_node_is_killed_while_objects_move(tmp_path: Path, victim: int) -> None:
    with (
        three(tmp_path / "cluster") as (cluster, bucket, ledger),
        NodeProcess([tmp_path / "fourth"]) as fourth,
        reading(cluster.url, ledger) as clients,
    ):
        nodes = [*cluster.nodes, fourth]
        join(cluster, fourth, "host-3")
        nodes[victim].kill()
        put(bucket, ledger, KEYS[:30])
        delete(bucket, ledger, KEYS[30:45])
        nodes[victim].start()
        put(bucket, ledger, KEYS[20:40])
        eventually(lambda: settled(nodes, 4), TIMEOUT_S, interval_s=0.2)
        clients.round()
        eventually(lambda: equal(nodes, ledger), TIMEOUT_S, interval_s=0.2)
        clients.check()


@pytest.mark.slow
def test_two_nodes_join_at_once(tmp_path: Path) -> None:
    with (
        three(tmp_path / "cluster") as (cluster, bucket, ledger),
        NodeProcess([tmp_path / "fourth"]) as fourth,
        NodeProcess([tmp_path / "fifth"]) as fifth,
        reading(cluster.url, ledger) as clients,
    ):
        joining = [
            threading.Thread(target=join, args=(cluster, fourth, "host-3"), daemon=True),
            threading.Thread(target=join, args=(cluster, fifth, "host-4"), daemon=True),
        ]
        for thread in joining:
            thread.start()
        put(bucket, ledger, KEYS[:30])
        delete(bucket, ledger, KEYS[30:45])
        for thread in joining:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()
        nodes = [*cluster.nodes, fourth, fifth]
        eventually(lambda: settled(nodes, 5), TIMEOUT_S, interval_s=0.2)
        clients.round()
        eventually(lambda: equal(nodes, ledger), TIMEOUT_S, interval_s=0.2)
        clients.check()
