"""What one client can make a node hold, and that another one is served meanwhile: objects on their way in and out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import grpc
import pytest

from ais_loader import ClusterOptions, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc, ais_replica_pb2_grpc
from ais_loader.wire.generated import ais_replica_pb2 as wire
from ais_loader.wire.generated import ais_snapshot_copies_pb2 as keep_pb
from ais_loader.wire.generated import ais_snapshot_copies_pb2_grpc as keep_rpc
from ais_loader.wire.reserved import ERROR_KIND_KEY, TENANT_KEY
from storage_node.server import NodeServer
from tests.node.cluster_kit import BUCKET, LocalCluster, to_one_node
from tests.node.node_kit import serving
from tests.node.write_kit import Writer
from tests.node.write_kit import held as held_by
from tests.open_files import open_files
from tests.patience import PATIENT_CLIENT
from tests.peer_kit import peer_of

pytestmark = pytest.mark.slow
MiB = 1 << 20


@cache
def large() -> bytes:
    return seeded_bytes(40 * MiB, seed=1)


STILL_S = 0.2
FOREVER_S = 600.0
LIMIT = 16
SERVED_S = 240.0
HOSTILE = ((TENANT_KEY, b"hostile"),)


@contextmanager
def holding(folder: Path, *, still_s: float, stall_timeout_s: float) -> Iterator[NodeServer]:
    with serving(folder, max_streams=LIMIT, still_s=still_s, stall_timeout_s=stall_timeout_s) as node:
        with connect(node.url) as client:
            client.create_bucket("b").put("large", large())
        yield node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeServer]:
    """Where what has been still for a moment gives way, and nothing is ended by its deadline."""
    with holding(tmp_path, still_s=STILL_S, stall_timeout_s=FOREVER_S) as node:
        yield node


@pytest.fixture
def strict_node(tmp_path: Path) -> Iterator[NodeServer]:
    """Where nothing gives way, and what stands still is ended; not before all calls of a test have come to it."""
    with holding(tmp_path, still_s=FOREVER_S, stall_timeout_s=20.0) as node:
        yield node


class Hostile:
    """Calls that are begun and not gone on with; `stop` ends those that wait for it to send."""

    def __init__(self, node: NodeServer) -> None:
        self._channel = grpc.insecure_channel(node.url.removeprefix("grpc://"))
        self.stub = ais_objects_pb2_grpc.ObjectsStub(self._channel)
        self._stop = threading.Event()

    def get(self) -> grpc.Call:
        return self.stub.Get(pb.GetRequest(bucket="b", name="large"), metadata=HOSTILE, timeout=180)

    def put(self, name: str) -> grpc.Future:
        def messages() -> Iterator[pb.PutRequest]:
            yield pb.PutRequest(header=pb.PutHeader(bucket="b", name=name))
            yield pb.PutRequest(data=bytes(MiB))
            self._stop.wait(180)

        return self.stub.Put.future(messages(), metadata=HOSTILE, timeout=180)

    def __enter__(self) -> Hostile:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._channel.close()


def kind_of(error: grpc.RpcError) -> str:
    return str(dict(error.trailing_metadata())[ERROR_KIND_KEY])


def object_files(node: NodeServer) -> int:
    """Of objects, staged and stored; of this very process."""
    return sum("/objects/" in path or "/staging/" in path for path in open_files().values())


def held(node: NodeServer) -> int:
    assert node.batches is not None
    return node.batches.node.streams.slots.held


def serves(node: NodeServer, tenant: str) -> None:
    with connect(node.url, options=ClusterOptions(tenant=tenant, retry_s=SERVED_S)) as client:
        client.bucket("b").put("mine", large()[: 5 * MiB])
        assert client.bucket("b").get("mine") == large()[: 5 * MiB]


def test_gets_that_nobody_reads_leave_places_and_descriptors_for_others(strict_node: NodeServer) -> None:
    node = strict_node
    before = object_files(node)
    with Hostile(node) as hostile:
        calls = [hostile.get() for _ in range(LIMIT)]
        refused, taken = [], []
        for call in calls:  # whichever of them comes first to the node
            try:
                next(call)
                taken.append(call)
            except grpc.RpcError as error:
                refused.append(kind_of(error))
        assert refused == ["overloaded"] * (LIMIT // 8)
        assert held(node) == LIMIT - LIMIT // 8
        serves(node, "modest")
        eventually(lambda: held(node) == 0)  # by the deadline: nothing has moved
        eventually(lambda: object_files(node) == before)
        failures = []
        for call in taken:
            with pytest.raises(grpc.RpcError) as failure:
                list(call)
            failures.append(
                (failure.value.code(), kind_of(failure.value), "stall_timeout_s" in failure.value.details())
            )
        assert set(failures) == {(grpc.StatusCode.DEADLINE_EXCEEDED, "timeout", True)}


def test_a_get_gives_way_to_one_of_its_own_tenant(node: NodeServer) -> None:
    with Hostile(node) as hostile:
        calls = [hostile.get() for _ in range(LIMIT - LIMIT // 8)]
        for call in calls:
            next(call)
        serves(node, "hostile")
        with pytest.raises(grpc.RpcError) as failure:
            for call in calls:
                list(call)
        assert (kind_of(failure.value), "still_s" in failure.value.details()) == ("overloaded", True)
    eventually(lambda: held(node) == 0)


def test_a_download_that_gave_way_goes_on_where_its_reader_comes_back(node: NodeServer) -> None:
    stub_chunks = []
    with connect(node.url) as client, Hostile(node) as hostile, ExitStack() as closing:
        transport = to_one_node(node.url, retry_s=SERVED_S, tenant="hostile")
        closing.callback(transport.close)
        download = transport._download(pb.GetRequest(bucket="b", name="large"), 180.0)
        stub_chunks.append(next(download))
        eventually(lambda: node.batches is not None and node.batches.node.streams.slots.stalled == 1)
        calls = [hostile.get() for _ in range(LIMIT - LIMIT // 8)]
        for call in calls:
            next(call)
        stub_chunks += download
        assert b"".join(stub_chunks) == large()
        assert client.bucket("b").head("large").size_bytes == len(large())


def test_puts_that_never_end_leave_places_and_are_ended_with_what_they_staged(strict_node: NodeServer) -> None:
    node = strict_node
    before = object_files(node)
    with Hostile(node) as hostile:
        puts = [hostile.put(f"never/{at}") for at in range(LIMIT)]
        eventually(lambda: object_files(node) - before == LIMIT - LIMIT // 8)
        serves(node, "modest")
        eventually(lambda: held(node) == 0)
        eventually(lambda: object_files(node) == before)
        kinds = [kind_of(put.exception(timeout=SERVED_S)) for put in puts]
        assert sorted(kinds) == ["overloaded"] * (LIMIT // 8) + ["timeout"] * (LIMIT - LIMIT // 8)
    with connect(node.url) as client:
        assert [info.name for info in client.bucket("b").objects()] == ["large", "mine"]


def test_a_slow_upload_that_moves_goes_on(tmp_path: Path) -> None:
    """For longer than the deadline for those that do not."""
    pause = threading.Event()

    def chunks(pause_s: float) -> Iterator[bytes]:
        for at in range(7):
            pause.wait(pause_s)
            yield bytes([at])

    class Slow:
        def __init__(self, pause_s: float) -> None:
            self._chunks = chunks(pause_s)

        def read(self, size: int = -1) -> bytes:
            return next(self._chunks, b"")

    for deadline_s in (2.0, 30.0):
        folder = tmp_path / f"{deadline_s}"
        with holding(folder, still_s=STILL_S, stall_timeout_s=deadline_s) as node, connect(node.url) as client:
            try:
                client.bucket("b").put("slow", Slow(deadline_s / 5))  # type: ignore[arg-type]
            except errors.LoaderError:  # the machine itself may stand still for two seconds
                if deadline_s > 2:
                    raise
                continue
            assert client.bucket("b").get("slow") == bytes(range(7))
            return


def test_a_client_that_is_told_to_come_back_does(tmp_path: Path) -> None:
    with (
        serving(tmp_path, max_streams=1, still_s=60.0) as node,
        connect(node.url, options=PATIENT_CLIENT) as client,
    ):
        bucket = client.create_bucket("b")
        with Hostile(node) as hostile:
            put = hostile.put("never")
            eventually(lambda: held(node) == 1)
            with (
                connect(node.url, options=ClusterOptions(retry_s=0.3)) as hasty,
                pytest.raises(errors.Overloaded, match="max_streams"),
            ):
                hasty.bucket("b").put("a", b"1")
            threading.Timer(0.3, put.cancel).start()
            bucket.put("a", b"1")
        assert bucket.get("a") == b"1"


# -- between nodes


def test_groups_that_are_never_committed_have_a_budget_and_give_it_back(tmp_path: Path) -> None:
    """One node as a coordinator that has fallen silent; another that has a write to make."""
    with LocalCluster(tmp_path, 2, copies=2, max_message_bytes=8 * MiB, still_s=STILL_S, max_streams=LIMIT) as cluster:
        node, uuid = cluster.nodes[1], cluster.map.bucket[0].uuid
        streams = cluster.batches(1).node.replica_streams
        silent = threading.Event()

        def messages(number: int) -> Iterator[wire.WriteRequest]:
            small = [pb.SmallObject(bucket=BUCKET, name=f"{number}/{at}", data=bytes(64 << 10)) for at in range(32)]
            yield wire.WriteRequest(group=wire.WriteGroup(object=small, bucket_uuid={BUCKET: uuid}))
            silent.wait(180)

        with peer_of(node) as channel:
            stub = ais_replica_pb2_grpc.ReplicaStub(channel)
            calls = [stub.Write(messages(number), timeout=180) for number in range(8)]
            eventually(lambda: streams.slots.stalled >= 3)
            assert streams.messages.held_bytes <= 8 * MiB
            with Writer(cluster.nodes[0].url) as writer:
                stored = writer.put_many({f"mine/{at}": bytes(64 << 10) for at in range(32)})
            assert [result.WhichOneof("result") for result in stored] == ["info"] * 32
            silent.set()
            for call in calls:
                call.cancel()
            eventually(lambda: (streams.messages.held_bytes, streams.slots.held) == (0, 0))
        # On a busy machine, the other node may have missed the write, and have it repaired.
        eventually(lambda: held_by(cluster.batches(1).node.store).keys() == {f"mine/{at}" for at in range(32)})


def test_versions_to_retain_have_places_a_deadline_and_an_end(tmp_path: Path) -> None:
    """As those between nodes that never end, or go on after what they said they were."""
    with LocalCluster(tmp_path, 1, still_s=60.0, stall_timeout_s=15.0) as cluster:
        node = cluster.nodes[0]
        streams = cluster.batches(0).node.replica_streams
        streams.slots.limit = 2
        bucket = wire.BucketRef(name=BUCKET, uuid=cluster.map.bucket[0].uuid)
        version = wire.ObjectVersion(epoch=1, counter=7, node=1)
        header = keep_pb.KeepHeader(bucket=bucket, name="a", version=version, size_bytes=2, ended=8)
        over = threading.Event()

        def silent() -> Iterator[keep_pb.KeepRequest]:
            yield keep_pb.KeepRequest(header=header)
            over.wait(180)

        with peer_of(node) as channel:
            stub = keep_rpc.SnapshotCopiesStub(channel)
            waiting = [stub.Keep.future(silent(), timeout=180) for _ in range(2)]
            eventually(lambda: streams.slots.held == 2)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Keep(silent(), timeout=180)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert {call.code() for call in waiting} == {grpc.StatusCode.DEADLINE_EXCEEDED}
            over.set()
            with pytest.raises(grpc.RpcError, match="goes on after them"):
                stub.Keep(iter([keep_pb.KeepRequest(header=header), keep_pb.KeepRequest(data=b"123")]), timeout=180)
        eventually(lambda: (streams.slots.held, streams.messages.held_bytes) == (0, 0))
        assert not list((tmp_path / "node-0").rglob("*.part"))


def test_objects_being_put_have_a_budget_and_others_come_in_turn(tmp_path: Path) -> None:
    with serving(tmp_path, max_message_bytes=4 * MiB) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        data = {f"{at:02d}": seeded_bytes(3 * MiB, seed=at) for at in range(12)}
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda name: bucket.put(name, data[name]), data))
        assert node.batches is not None
        messages = node.batches.node.streams.messages
        eventually(lambda: messages.held_bytes == 0)  # given back after the answer
        assert {name: bucket.get(name) for name in data} == data
