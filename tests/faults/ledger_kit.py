"""Consistency ledger of acknowledged changes while nodes come, go and die: readers that hold every answer against it,
writers that change every key again and again, and what the nodes have in the end.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ais_loader import Bucket, ClusterOptions, connect, errors
from ais_loader.testing import NodeProcess, eventually
from ais_loader.wire.cluster_map import ClusterView
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_replica_pb2_grpc as rpc
from storage_node.cluster.consensus.change import change_map
from storage_node.cluster.map.mutations import add_node
from storage_node.ops.ask_nodes import ask_node, ask_nodes, newest_map
from tests.cluster_processes import ClusterProcesses
from tests.faults.fault_kit import serve_all
from tests.peer_kit import PROCESS_OPERATOR, peer_at

BUCKET = "b"
TIMEOUT_S = 180.0
CALL_TIMEOUT_S = 180.0
RETRY_S = 240.0
"""Nodes of a busy machine stand still now and then, and compare their copies afterwards."""
OPTIONS = ClusterOptions(retry_s=RETRY_S)
PAUSE_S = 0.02
"""Between two calls of a reader or a writer: nodes that start or compare need the processor too, and what is waited for
is that every way has been gone so often."""
GONE = -1


class Ledger:
    """What is known of each key: its number of acknowledged changes, and whether the last one was a deletion.

    A reader notes what it has to expect at least before it asks: an answer of an earlier state is a fault.
    """

    def __init__(self, first: int = 1) -> None:
        """`first`: number of the first change of each key."""
        self._lock = threading.Lock()
        self._first = first
        self._acknowledged: dict[str, int] = {}
        self._begun: dict[str, tuple[int, bool]] = {}
        self._alive: dict[str, bool] = {}

    def begin(self, key: str, *, alive: bool) -> int:
        with self._lock:
            number = self._begun.get(key, (self._first - 1, True))[0] + 1
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
    """Reads every key in every way until it is stopped."""

    def __init__(self, url: str, ledger: Ledger, options: ClusterOptions = OPTIONS) -> None:
        self._url = url
        self._options = options
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

    def _read(self, number: int, way: Callable[[Bucket, Sequence[str]], None]) -> None:
        with connect(self._url, options=self._options) as client:
            bucket = client.bucket(BUCKET)
            while not self._stopping.is_set():
                keys = self._ledger.names()
                for at in range(0, len(keys), 10):
                    if self._stopping.is_set():
                        return
                    try:
                        way(bucket, keys[at : at + 10])
                    except Exception as error:  # noqa: BLE001 - shown by the test
                        typed = isinstance(error, errors.LoaderError) and error.retryable
                        (self.unanswered if typed else self.faults).append(f"{way.__name__}: {error!r}")
                    self.reads[number] += 1
                    self._stopping.wait(PAUSE_S)

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
                said = f"{assembly}: {key}: {item.status.name} {item.error}"
                (self.unanswered if item.error is not None and item.error.retryable else self.faults).append(said)

    def round(self, times: int = 1) -> None:
        """Return when every way of reading has gone on for some time."""
        goal = [count + times * (len(self._ledger.names()) // 10 + 1) for count in self.reads]
        eventually(lambda: all(count >= wanted for count, wanted in zip(self.reads, goal, strict=True)), 2 * TIMEOUT_S)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT_S)
            assert not thread.is_alive()

    def check(self, *, all_answered: bool = True) -> None:
        """Every answer was right; what was not answered failed with an error that says "try again"."""
        self.stop()
        assert self.faults == [], self.faults[:5]
        assert not (all_answered and self.unanswered), self.unanswered


@contextmanager
def reading(url: str, ledger: Ledger, options: ClusterOptions = OPTIONS) -> Iterator[Clients]:
    clients = Clients(url, ledger, options)
    try:
        yield clients
    finally:
        clients.stop()


class Writers:
    """Change every key again and again: put where there is none, else overwrite or delete. Seeded; a thread for each
    share of the keys, so that what is acknowledged of a key is in one order.

    What fails with an error that says "try again" is tried again, as another change, until it is acknowledged.
    """

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        keys: Sequence[str],
        *,
        seed: int,
        threads: int = 3,
        options: ClusterOptions = OPTIONS,
    ) -> None:
        self._url = url
        self._options = options
        self._ledger = ledger
        self._stopping = threading.Event()
        self.faults: list[str] = []
        self.retries = 0
        self.rounds = [0] * threads
        """How often every key of each thread has been changed."""
        self._threads = [
            threading.Thread(target=self._write, args=(number, list(keys[number::threads]), seed), daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, number: int, keys: list[str], seed: int) -> None:
        draw = random.Random(seed * 100 + number)
        try:
            with connect(self._url, options=self._options) as client:
                bucket = client.bucket(BUCKET)
                while not self._stopping.is_set():
                    draw.shuffle(keys)
                    for key in keys:
                        if self._stopping.is_set():
                            return
                        alive = not self._ledger.expected(key)[1] or draw.random() < 0.6
                        self.retries += until_acknowledged(bucket, self._ledger, key, alive=alive)
                        self._stopping.wait(PAUSE_S)
                    self.rounds[number] += 1
        except Exception as error:  # noqa: BLE001 - shown by the test
            self.faults.append(f"{number}: {error!r}")

    def round(self, times: int = 1) -> None:
        """Return when every key has been changed so many times more."""
        goal = [count + times for count in self.rounds]
        eventually(
            lambda: bool(self.faults) or all(map(int.__ge__, self.rounds, goal)), times * TIMEOUT_S, interval_s=0.05
        )
        assert self.faults == [], self.faults[:5]

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(2 * TIMEOUT_S)
            assert not thread.is_alive()


@contextmanager
def writing(
    url: str, ledger: Ledger, keys: Sequence[str], *, seed: int, options: ClusterOptions = OPTIONS
) -> Iterator[Writers]:
    writers = Writers(url, ledger, keys, seed=seed, options=options)
    try:
        yield writers
    finally:
        writers.stop()


@contextmanager
def all_changing(url: str, ledger: Ledger, keys: Sequence[str], seed: int) -> Iterator[Writers]:
    """Readers and writers of all keys, beside whatever is done; what they met with is judged in the end."""
    with reading(url, ledger) as clients, writing(url, ledger, keys, seed=seed) as writers:
        yield writers
        writers.round()
        writers.stop()
        clients.round()
        clients.check(all_answered=False)
    assert writers.faults == []


def assert_content(url: str, ledger: Ledger) -> None:
    """Every key, read whole by a client that knows nothing yet: exactly the last acknowledged change."""
    wrong: list[str] = []
    with connect(url, options=OPTIONS) as client:
        bucket = client.bucket(BUCKET)
        keys = ledger.names()
        items = bucket.get_batch(keys, on_error="placeholder")
        for key, item in zip(keys, items, strict=True):
            number, alive = ledger.expected(key)
            found = item.tobytes() if item.status.name == "OK" else item.status.name
            if found != (content(key, number) if alive else "NOT_FOUND"):
                wrong.append(f"{key}: {found[:40]!r} instead of {number if alive else 'nothing'}")
        listed = [info.name for info in bucket.objects()]
    assert wrong == []
    assert listed == [key for key in keys if ledger.expected(key)[1]]


def until_acknowledged(bucket: Bucket, ledger: Ledger, key: str, *, alive: bool) -> int:
    """Put or delete a key that nobody else changes, and return how many tries failed.

    A node that was out of touch with the others for a moment, as happens on a busy machine, says that the outcome is
    unknown and asks for another write. That is another change.
    """
    deadline_s = time.monotonic() + TIMEOUT_S
    failed = 0
    while True:
        number = ledger.begin(key, alive=alive)
        try:
            if alive:
                bucket.put(key, content(key, number), metadata={"number": str(number)})
            else:
                bucket.delete(key)
        except errors.NotFound:
            if not failed:  # otherwise the deletion that failed has been done
                raise
        except errors.LoaderError as error:
            may_go_on = error.retryable or isinstance(error, errors.OutcomeUnknown)
            if not may_go_on or time.monotonic() > deadline_s:
                raise
            failed += 1
            continue
        ledger.done(key, number, alive=alive)
        return failed


def put(bucket: Bucket, ledger: Ledger, keys: Sequence[str]) -> None:
    for key in keys:
        until_acknowledged(bucket, ledger, key, alive=True)


def delete(bucket: Bucket, ledger: Ledger, keys: Sequence[str]) -> None:
    for key in keys:
        until_acknowledged(bucket, ledger, key, alive=False)


# -- what nodes have, asked of them


def versions(node: NodeProcess, bucket: cluster_pb.MapBucket) -> dict[str, tuple[int, int, int, bool, int]]:
    found: dict[str, tuple[int, int, int, bool, int]] = {}
    asked = ask_node(endpoints([node])[0], timeout_s=CALL_TIMEOUT_S)
    # As one of the nodes that it knows: it may not be one of them itself any more.
    uuid = asked.map.node[0].uuid if asked.map is not None else bytes.fromhex(asked.uuid)
    with peer_at(node.peer_endpoint, uuid) as channel:
        request = wire.VersionsRequest(bucket=wire.BucketRef(name=bucket.name, uuid=bucket.uuid), limit=10_000)
        for one in rpc.ReplicaStub(channel).Versions(request, timeout=CALL_TIMEOUT_S).object:
            version = one.version
            found[one.name] = (version.epoch, version.counter, version.node, one.is_tombstone, one.checksum)
    return found


def current_map(nodes: Sequence[NodeProcess]) -> cluster_pb.ClusterMap:
    map_ = newest_map(ask_nodes(endpoints(nodes), PROCESS_OPERATOR, CALL_TIMEOUT_S).values())
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
    answer = ask_node(endpoints([node])[0], timeout_s=CALL_TIMEOUT_S)
    member = cluster_pb.MapNode(
        uuid=bytes.fromhex(answer.uuid),
        host=host,
        endpoint=answer.endpoint,
        peer_endpoint=node.peer_endpoint,
        weight=1.0,
    )
    change_map(endpoints(cluster.nodes), add_node(member), timeout_s=TIMEOUT_S, caller=PROCESS_OPERATOR)


@contextmanager
def joining(cluster: ClusterProcesses, *nodes: NodeProcess) -> Iterator[None]:
    """They join a cluster of three at once, and beside what is done meanwhile."""
    hosts = [f"host-{at}" for at in range(3, 3 + len(nodes))]
    threads = [
        threading.Thread(target=join, args=(cluster, *each), daemon=True) for each in zip(nodes, hosts, strict=True)
    ]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


@contextmanager
def filled(
    root: Path, keys: Sequence[str], *, nodes: int = 3, copies: int = 2, arguments: Sequence[str] = ()
) -> Iterator[tuple[ClusterProcesses, Bucket, Ledger]]:
    """A cluster with these keys in its bucket, on all their owners. `arguments`: of each node's `serve`."""
    buckets = {BUCKET: copies}
    with (
        ClusterProcesses(root, nodes, buckets=buckets, arguments=arguments) as cluster,
        connect(cluster.url, options=OPTIONS) as client,
    ):
        bucket, ledger = client.bucket(BUCKET), Ledger()
        put(bucket, ledger, keys)
        # On a busy machine a write may have missed an owner, whose peer the test kills.
        eventually(lambda: equal(cluster.nodes, ledger), TIMEOUT_S, interval_s=0.2)
        serve_all(cluster)
        yield cluster, bucket, ledger
