"""PUTs by a lane: what is stored, and what is told of what is not, as by gRPC; nothing of what is cut or nonsense."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from ais_loader import Client, ClusterOptions, connect, errors
from ais_loader.testing import eventually, seeded_bytes
from ais_loader.transport.session.lane import Lanes
from ais_loader.values.source import CHUNK_BYTES
from ais_loader.wire.checksum import crc32c
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.lane import CALL, DATA, FAILED, HEADER, LAST, MESSAGE, REFUSED
from storage_node.server import NodeServer
from storage_node.settings.config import ServerConfig
from tests.lane.lane_kit import RawLane, open_lane
from tests.node.node_kit import kept_port, serving
from tests.table import table

DATA_OF_TWO = seeded_bytes(CHUNK_BYTES + 77, seed=4)
AUTO = ClusterOptions(lane="auto")


@pytest.fixture
def client(node: NodeServer) -> Iterator[Client]:
    with connect(node.url, options=AUTO) as client:
        yield client


def quiet(node: NodeServer) -> None:
    """Nothing of the tests before is left."""
    eventually(lambda: node.lanes.open_lanes == 0)


@pytest.fixture
def no_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put by gRPC fails."""

    def refuse(*_: object) -> None:
        raise AssertionError("by gRPC")

    monkeypatch.setattr("ais_loader.transport.grpc.put.put_messages", refuse)


def frame(kind: int, message: bytes = b"") -> bytes:
    return HEADER.pack(len(message), kind) + message


def header_of(name: str, bucket: str = "b") -> bytes:
    return frame(MESSAGE, pb.PutRequest(header=pb.PutHeader(bucket=bucket, name=name)).SerializeToString())


def end_of(data: bytes) -> bytes:
    end = pb.PutEnd(size_bytes=len(data), checksum=crc32c(data))
    return frame(LAST, pb.PutRequest(end=end).SerializeToString())


PUT = frame(CALL, b"Objects/Put")


def whole(name: str, data: bytes) -> bytes:
    return PUT + header_of(name) + frame(DATA, data) + end_of(data)


def stored(lane: RawLane) -> pb.ObjectInfo:
    kind, message = lane.receive()
    assert kind == MESSAGE
    return pb.ObjectInfo.FromString(message)


# -- by the client


@pytest.mark.usefixtures("no_grpc")
@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_objects_of_all_sizes_are_stored(
    node: NodeServer, client: Client, tcp: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if tcp:
        monkeypatch.setattr(Lanes, "_by_unix", Lanes._by_tcp)
    bucket = client.bucket("b")
    for size in (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 77, 5 * CHUNK_BYTES + 1):
        data = seeded_bytes(size, seed=size)
        info = bucket.put(f"size/{size}", data, metadata={"a": "b"})
        assert (info.size_bytes, info.checksum) == (size, crc32c(data))
        assert bucket.get(f"size/{size}") == data
        assert bucket.head(f"size/{size}").metadata == {"a": "b"}


@pytest.mark.usefixtures("no_grpc")
def test_errors_are_those_of_grpc_and_the_lane_goes_on(node: NodeServer, client: Client) -> None:
    bucket = client.bucket("b")
    quiet(node)
    version = bucket.put("there", b"1").version
    with pytest.raises(errors.VersionConflict):
        bucket.put("there", b"2", if_absent=True)
    with pytest.raises(errors.VersionConflict):
        bucket.put("there", b"2", if_version="1.2.3")
    assert bucket.put("there", b"3", if_version=version).size_bytes == 1
    assert node.lanes.open_lanes == 1
    with pytest.raises(errors.ContentMismatch):
        bucket.put("there", DATA_OF_TWO, checksum=5)
    with pytest.raises(errors.BucketNotFound):
        client.bucket("nowhere").put("there", b"3")
    with pytest.raises(errors.InvalidName):
        bucket.put("a\0b", b"")
    assert bucket.get("there") == b"3"


def test_a_node_that_wants_no_more_is_heard_before_all_is_sent(client: Client) -> None:
    class Endless(io.RawIOBase):
        read_bytes = 0

        def read(self, size: int = -1) -> bytes:
            self.read_bytes += size
            return bytes(size)

    source = Endless()
    with pytest.raises(errors.BucketNotFound):
        client.bucket("nowhere").put("endless", source)
    assert source.read_bytes <= 64 * CHUNK_BYTES


@pytest.mark.usefixtures("no_grpc")
def test_a_file_that_cannot_be_read_is_the_callers_error_and_stores_nothing(client: Client) -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError(5, "the caller's disk")

    with pytest.raises(OSError, match="the caller's disk"):
        client.bucket("b").put("broken", Broken())
    assert not client.bucket("b").exists("broken")
    assert client.bucket("b").put("broken", b"now").size_bytes == 3


def test_a_node_that_starts_again_is_met_by_another_lane(tmp_path: Path) -> None:
    with kept_port() as port:
        with NodeServer([tmp_path / "drive"], ServerConfig(port=port)) as first:
            client = connect(first.url, options=AUTO)
            client.create_bucket("b").put("a", b"1")
        with NodeServer([tmp_path / "drive"], ServerConfig(port=port)), client:
            assert client.bucket("b").put("a", io.BytesIO(b"2")).size_bytes == 1
            assert client.bucket("b").get("a") == b"2"


def test_a_node_of_the_version_before_is_met_with_grpc(
    node: NodeServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = node.lanes.offer

    def without_methods(tenant: str) -> batch_pb.OpenLaneResponse:
        answer = offer(tenant)
        answer.ClearField("method")
        return answer

    monkeypatch.setattr(node.lanes, "offer", without_methods)
    quiet(node)
    assert client.bucket("b").put("by grpc", b"1").size_bytes == 1
    assert node.lanes.open_lanes == 0


# -- byte by byte


def test_calls_follow_each_other_on_one_lane(node: NodeServer) -> None:
    with open_lane(node) as lane:
        lane.socket.sendall(whole("one", b"1") + whole("other", b"22"))  # the second one waits
        assert [stored(lane).size_bytes, stored(lane).size_bytes] == [1, 2]


def test_groups_follow_each_other_and_an_empty_end_leaves_the_lane_to_the_next_call(node: NodeServer) -> None:
    group = pb.PutManyRequest(object=[pb.SmallObject(bucket="b", name=f"g/{at}", data=b"1") for at in range(3)])
    with open_lane(node) as lane:
        lane.socket.sendall(frame(CALL, b"Objects/PutMany") + frame(MESSAGE, group.SerializeToString()) * 3)
        for _ in range(3):
            kind, message = lane.receive()
            assert kind == MESSAGE
            assert [result.info.size_bytes for result in pb.PutManyResponse.FromString(message).result] == [1, 1, 1]
        lane.socket.sendall(frame(LAST) + whole("after", b"12"))
        assert stored(lane).size_bytes == 2


def test_one_lane_serves_one_put_after_another(node: NodeServer) -> None:
    with connect(node.url, options=AUTO) as client:
        quiet(node)
        for at in range(3):
            assert client.bucket("b").put(f"after/{at}", b"22").size_bytes == 2
        assert node.lanes.open_lanes == 1


def test_a_put_that_is_cut_anywhere_stores_nothing(node: NodeServer, client: Client) -> None:
    sent = whole("cut", b"0123456789")
    for cut in range(0, len(sent), 3):
        with open_lane(node) as lane:
            lane.socket.sendall(sent[:cut])
    lanes = 1  # the client's own, if it has one
    eventually(lambda: node.lanes.open_lanes <= lanes)
    assert not client.bucket("b").exists("cut")
    eventually(lambda: not any(list((Path(drive) / "staging").iterdir()) for drive in node._drives))


@table(
    ("sent", "what"),
    [
        (frame(CALL, b"Objects/Delete"), "lanes carry no calls of 'Objects/Delete'"),
        (frame(CALL, b"Cluster/Learn"), "lanes carry no calls of 'Cluster/Learn'"),
        (frame(CALL, b"\xff" * 100), "lanes carry no calls of"),
        (frame(CALL, b"x" * 1000), "a call begins with the name of its method"),
        (PUT + frame(CALL, b"Objects/Put"), "kind 3 in the middle of a call"),
        (PUT + frame(9, b""), "kind 9 in the middle of a call"),
        (PUT + HEADER.pack(1 << 31, DATA), "a message of 2,147,483,648 bytes"),
        (PUT + frame(DATA, b"1"), "a PUT begins with its header"),
        (PUT + frame(MESSAGE, b"\xff\xff\xff"), "this is no message that the method takes"),
        (PUT + header_of("two") + header_of("two"), "a second header in one PUT"),
    ],
)
def test_nonsense_is_told_and_ends_the_lane(node: NodeServer, client: Client, sent: bytes, what: str) -> None:
    with open_lane(node) as lane:
        lane.socket.sendall(sent)
        kind, message = lane.receive()
        assert kind == FAILED
        error = pb.Error.FromString(message)
        assert error.kind == "invalid-request" and what in error.message
        assert lane.is_ended()
    assert not client.bucket("b").exists("two")


def test_a_put_without_its_end_is_refused_and_the_next_one_is_taken(node: NodeServer) -> None:
    header = pb.PutRequest(header=pb.PutHeader(bucket="b", name="no end")).SerializeToString()
    with open_lane(node) as lane:
        lane.socket.sendall(PUT + frame(LAST, header))
        kind, message = lane.receive()
        assert kind == REFUSED
        assert "without the message that says what was sent" in pb.Error.FromString(message).message
        lane.socket.sendall(whole("next", b"1"))
        assert stored(lane).size_bytes == 1


@pytest.mark.slow
def test_who_says_nothing_in_the_middle_of_a_put_is_told_and_let_go(tmp_path: Path) -> None:
    with serving(tmp_path, stall_timeout_s=2.0) as node, open_lane(node) as lane:
        with connect(node.url, options=AUTO) as client:
            client.create_bucket("b")
        lane.socket.sendall(PUT + header_of("silent") + frame(DATA, b"1"))
        kind, message = lane.receive()
        assert kind == FAILED
        assert pb.Error.FromString(message).kind == errors.SilenceTimeout.kind
        assert lane.is_ended()


def test_what_is_put_by_a_lane_is_counted_and_has_a_place_as_by_grpc(tmp_path: Path) -> None:
    with (
        serving(tmp_path, max_streams=1) as node,
        connect(node.url, options=ClusterOptions(lane="auto", retry_s=0.0)) as client,
    ):
        bucket = client.create_bucket("b")
        assert node.batches is not None
        metrics, streams = node.batches.node.metrics, node.batches.node.streams
        bucket.put("a", b"1")
        assert metrics.requests["put"] == 1
        with open_lane(node) as lane:
            lane.socket.sendall(PUT + header_of("held"))
            eventually(lambda: streams.slots.held == 1)
            with pytest.raises(errors.Overloaded):
                bucket.put("a", b"2")
        eventually(lambda: streams.slots.held == 0)
        assert bucket.put("a", b"3").size_bytes == 1


@pytest.mark.slow
def test_a_node_that_stops_ends_idle_lanes_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as node:
        lane = open_lane(node)
        lane.socket.sendall(PUT + header_of("x", bucket="nowhere") + end_of(b""))
        assert lane.receive()[0] in (FAILED, REFUSED)
        with connect(node.url, options=AUTO) as client:
            client.create_bucket("b").put("a", b"1")
            node.stop(grace_s=600.0)  # longer than a test may take
    lane.socket.close()
