"""Every number of every request, at its ends: refused with an error of its own or harmless, and never for good.

The fields are those of the generated descriptors: a new one is tried as soon as it is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from ais_loader import connect
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_replica_pb2 as replica_pb
from storage_node.server import NodeServer
from storage_node.services.call_table import TABLE, Role
from tests.node.cluster_kit import BUCKET, LocalCluster
from tests.node.contract_kit import methods
from tests.node.node_kit import serving
from tests.peer_kit import OPTIONS, operator_of, peer_of

TIMEOUT_S = 2.0
"""Some requests are right as they are, and go on until they are cancelled."""
NAME = "a"
ENDS = {
    FieldDescriptor.CPPTYPE_INT32: (-1, -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, (1 << 31), (1 << 32) - 1),
    FieldDescriptor.CPPTYPE_INT64: (-1, -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 1 << 62, 1 << 63, (1 << 64) - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: (-1.0, float("inf"), float("nan"), 1e308),
    FieldDescriptor.CPPTYPE_ENUM: (99,),
}
UNTYPED = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
DEEPEST = 4


METHODS = methods()
SKIPPED = {
    "Buckets/DeleteBucket",  # has no number, and would
    "Cluster/Learn",  # tests/cluster/test_map_confirmation.py
}


def plain(message: Message, uuid: bytes, depth: int = 0) -> None:
    """What might be meant: the bucket and the object that there are."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry or depth == DEEPEST:
                continue
            if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name):
                continue
            child = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
            child.SetInParent()
            plain(child, uuid, depth + 1)
        elif field.name == "initial_credit_bytes":
            setattr(message, field.name, 1 << 20)
        elif field.name in ("bucket", "name", "uuid", "bucket_uuid") or field.name.endswith("_uuid"):
            in_ref = message.DESCRIPTOR.name in ("BucketRef", "MapBucket")
            named = {"bucket": BUCKET, "name": BUCKET if in_ref else NAME}
            value: Any = named.get(field.name, uuid)
            if field.type == FieldDescriptor.TYPE_BYTES and not isinstance(value, bytes):
                value = value.encode()
            if field.type == FieldDescriptor.TYPE_STRING and isinstance(value, bytes):
                continue
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)


def numbers(message: Message, depth: int = 0) -> Iterator[tuple[str, Message]]:
    """Copies of the whole, each with one number at an end: yields its path; `message` is changed and put back."""
    for field in message.DESCRIPTOR.fields:
        if field.cpp_type in ENDS:
            for end in ENDS[field.cpp_type]:
                if field.is_repeated:
                    getattr(message, field.name).append(end)
                    yield f"{field.name}={end}", message
                    del getattr(message, field.name)[:]
                else:
                    before = getattr(message, field.name)
                    setattr(message, field.name, end)
                    yield f"{field.name}={end}", message
                    setattr(message, field.name, before)
        elif field.message_type is not None and not field.message_type.GetOptions().map_entry and depth < DEEPEST:
            several = getattr(message, field.name)
            children = list(several) if field.is_repeated else [several] * message.HasField(field.name)
            for child in children:
                for path, _ in numbers(child, depth + 1):
                    yield f"{field.name}.{path}", message


def requests(method: MethodDescriptor, uuid: bytes) -> Iterator[tuple[str, bytes]]:
    """Of a stream, one for each kind of message that may begin it."""
    kind = GetMessageClass(method.input_type)
    oneofs = [field for one in method.input_type.oneofs for field in one.fields if field.message_type is not None]
    for chosen in oneofs or [None]:
        message = kind()
        if chosen is not None:
            getattr(message, chosen.name).SetInParent()
            plain(getattr(message, chosen.name), uuid, 1)
        plain(message, uuid)
        for path, changed in numbers(message):
            yield path, changed.SerializeToString()


@dataclass(frozen=True)
class Served:
    node: NodeServer
    bucket_uuid: bytes


@pytest.fixture(scope="module", params=["in a cluster", "alone"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with ExitStack() as held:
        if request.param == "alone":
            node, uuid = held.enter_context(serving(folder)), bytes(16)
        else:
            cluster = held.enter_context(LocalCluster(folder, 2, copies=2))
            node, uuid = cluster.nodes[0], cluster.map.bucket[0].uuid
        with connect(node.url) as client:
            client.create_bucket(BUCKET, exist_ok=True).put(NAME, b"bytes")
        yield Served(node, uuid)


def beginning(name: str, request: bytes, uuid: bytes) -> list[bytes]:
    """What has to come before a message of a stream for that to be looked at."""
    small = objects_pb.SmallObject(bucket=BUCKET, name="numbers", data=b"x")
    if name == "Objects/Put" and objects_pb.PutRequest.FromString(request).WhichOneof("part") == "end":
        return [objects_pb.PutRequest(header=objects_pb.PutHeader(bucket=BUCKET, name="numbers")).SerializeToString()]
    if name == "Replica/Write" and replica_pb.WriteRequest.FromString(request).WhichOneof("part") == "commit":
        group = replica_pb.WriteGroup(object=[small], bucket_uuid={BUCKET: uuid})
        return [replica_pb.WriteRequest(group=group).SerializeToString()]
    return []


def outcome(channel: Any, name: str, messages: list[bytes]) -> tuple[grpc.StatusCode, str]:
    call = channel.stream_stream(f"/ais_loader.v1.{name}")(iter(messages), timeout=TIMEOUT_S)
    try:
        for answer in call:
            if b"internal" in answer:  # as a kind, or as what a batch says of a defect of its own
                return grpc.StatusCode.INTERNAL, str(answer)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(METHODS) - SKIPPED))
@pytest.mark.sampled(71)
def test_no_number_is_taken_in_that_does_harm(served: Served, name: str) -> None:
    node, uuid = served.node, served.bucket_uuid
    if TABLE[name].by & Role.CLIENT:
        channel: Any = grpc.insecure_channel(node.endpoint, options=OPTIONS)
    else:
        channel = peer_of(node, version=1) if TABLE[name].by & Role.PEER else operator_of(node)
    untyped = []
    with channel:
        for path, request in requests(METHODS[name], uuid):
            code, details = outcome(channel, name, [*beginning(name, request, uuid), request])
            if code in UNTYPED:
                untyped.append(f"{path}: {code.name}: {details[:200]}")
    assert not untyped, "\n".join(untyped)
    with connect(node.url) as client:
        bucket = client.bucket(BUCKET)
        info = bucket.put("after", b"another")
        assert bucket.get("after") == b"another" and bucket.head("after").version == info.version
        bucket.delete("after")
