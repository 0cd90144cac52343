"""Clients and operators of the version before transforms: served what is stored, in messages that they know.

They have no way to ask for a transform, so there is nothing that they could be given in place of a result. What they
can see of one is objects that a job has made, which are objects like others, and the cluster's map, which their
operators change without knowing all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ais_loader import Client, connect
from ais_loader.testing import seeded_bytes
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from storage_node.cluster.map.confirmation import digest
from storage_node.server import NodeServer
from tests.node.node_kit import RawSession, serving

OF_TRANSFORMS = {
    "BatchRequest": {"transform", "transform_index"},
    "ClusterMap": {"transform", "job"},
}
"""Fields that the version before did not know."""
KINDS_BEFORE = {batch_pb.NONE, batch_pb.STORED, batch_pb.COMPUTED}
LARGE = seeded_bytes(3 << 20, seed=5)


@cache
def pool_before() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for module in (objects_pb, etl_pb, cluster_pb, batch_pb):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in [one for one in message.field if one.name in OF_TRANSFORMS.get(message.name, ())]:
                message.field.remove(field)
        pool.Add(file)
    return pool


def before(name: str) -> Any:
    """The class of a message as it was."""
    return message_factory.GetMessageClass(pool_before().FindMessageTypeByName(f"ais_loader.v1.{name}"))


def unknown(message: Message) -> list[str]:
    """Of this message and all in it: fields that its class does not know."""
    found = [f"{message.DESCRIPTOR.name} {one.field_number}" for one in UnknownFieldSet(message)]
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for one in value if field.is_repeated else [value]:
            found += unknown(one)
    return found


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeServer]:
    """With sources, results that are kept, and results that a job has made."""
    with serving(tmp_path_factory.mktemp("node"), etl_code=True) as node, connect(node.url) as client:
        make_results(client)
        yield node


def make_results(client: Client) -> None:
    source = client.create_bucket("from")
    source.put_many([("a", b"stored"), ("large", LARGE)])
    client.create_bucket("to")
    client.etl.init("upper", lambda data: bytes(data).upper())
    assert source.get("a", etl="upper") == b"STORED"
    source.transform("to", etl="upper", name="j")


def answers(node: NodeServer, method: str, request: Message, response: str) -> Any:
    with grpc.insecure_channel(node.endpoint) as channel:
        call = channel.unary_unary(
            f"/ais_loader.v1.{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=before(response).FromString,
        )
        return call(request, timeout=180)


@pytest.mark.slow
def test_a_batch_of_an_older_client_has_what_is_stored_and_nothing_that_it_does_not_know(node: NodeServer) -> None:
    wanted = [("from", "a", b"stored"), ("to", "a", b"STORED"), ("from", "none", b""), ("from", "large", LARGE)]
    request = before("BatchRequest")(bucket=["from", "to"], ordered=True, initial_credit_bytes=64 << 20)
    for bucket, name, _ in wanted:
        request.bucket_index.append(["from", "to"].index(bucket))
        request.name.append(name)
    found: dict[int, bytes] = {}
    kinds, statuses = set(), {}
    with RawSession(node.url) as session:
        session.send_bytes(before("SessionRequest")(batch_id=1, request=request).SerializeToString())
        while True:
            response = before("SessionResponse").FromString(next(session.call))
            assert not unknown(response)
            at = 0
            for index, size in zip(response.frame.index, response.frame.size, strict=True):
                found[index] = found.get(index, b"") + response.frame.payload[at : at + size]
                at += size
            kinds |= set(response.frame.checksum_kind)
            statuses |= dict(zip(response.frame.index, response.frame.status, strict=True))
            if response.HasField("end"):
                assert (response.end.outcome, response.end.failed_entries) == (batch_pb.End.COMPLETE, 1)
                break
    assert [found[at] for at in range(len(wanted))] == [data for _, _, data in wanted]
    assert kinds <= KINDS_BEFORE
    assert statuses == {0: batch_pb.OK, 1: batch_pb.OK, 2: batch_pb.NOT_FOUND, 3: batch_pb.OK}


def test_results_are_objects_like_others_to_an_older_client(node: NodeServer) -> None:
    listed = answers(node, "Objects/List", before("ListRequest")(bucket="to"), "ListResponse")
    assert not unknown(listed) and [one.name for one in listed.object] == ["a", "large"]
    head = answers(node, "Objects/Head", before("HeadRequest")(bucket="to", name="a"), "ObjectInfo")
    assert not unknown(head) and head.metadata["ais.etl-source"] == "from/a"


def test_a_column_that_came_without_its_table_is_refused_and_not_taken_for_none(node: NodeServer) -> None:
    """As of somebody between, who passes on one of the fields and not the other."""
    request = batch_pb.BatchRequest(bucket=["from"], name=["a"], transform_index=[1])
    with RawSession(node.url) as session:
        frames, end = session.ask(1, request)
    assert not frames and (end.outcome, end.error_kind) == (batch_pb.End.REFUSED, "invalid-request")
    assert "a transform that the request does not name" in end.message


def test_an_older_operators_change_of_the_map_keeps_all_that_it_does_not_know() -> None:
    map_ = cluster_pb.ClusterMap(cluster_uuid=b"c" * 16, version=7, change=[b"d" * 16])
    map_.node.add(uuid=b"n" * 16, host="h", endpoint="h:1", weight=1.0)
    map_.transform.add(name="t", uuid=b"t" * 16, python={"pickle": b"code"})
    map_.job.add(name="j", uuid=b"j" * 16, bucket="from", extension={"flac": "wav"})
    known = before("ClusterMap").FromString(map_.SerializeToString())
    assert not hasattr(known, "transform") and sorted(unknown(known)) == ["ClusterMap 8", "ClusterMap 9"]
    changed = before("ClusterMap")()
    changed.CopyFrom(known)
    changed.bucket.add(name="new", uuid=b"b" * 16, copies=1, min_copies=1)
    changed.version += 1
    taken = cluster_pb.ClusterMap.FromString(changed.SerializeToString())
    wanted = cluster_pb.ClusterMap()
    wanted.CopyFrom(map_)
    wanted.bucket.add(name="new", uuid=b"b" * 16, copies=1, min_copies=1)
    wanted.version += 1
    assert taken == wanted and digest(taken) == digest(wanted)
    # What it says it has accepted is told apart from other maps by what it does not know, too.
    serialized = changed.SerializeToString(deterministic=True)
    assert serialized == wanted.SerializeToString(deterministic=True)
