"""Rights in a cluster: gathered batches, maps of clients, revocation on every node, and operators' commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from ais_loader import Entry, connect, errors
from ais_loader.testing.waiting import eventually
from ais_loader.values.entry import Status
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from storage_node.context.channels import Caller, make_secret, read_secret
from storage_node.ops.ask_nodes import ask_node
from storage_node.ops.token_commands import TokenNodes
from tests.peer_kit import OPTIONS
from tests.security.rights_kit import EVERYTHING, SecureNode, secure_cluster
from tests.table import table

TIMEOUT_S = 180.0
NAMES = [f"{number:04d}" for number in range(60)]


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "peer-secret"
    make_secret(path)
    return path


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, secret_file: Path) -> Iterator[list[SecureNode]]:
    with secure_cluster(tmp_path_factory.mktemp("cluster"), secret_file) as found:
        with connect(found[0].url, token=found[0].token(EVERYTHING)) as client:
            for bucket in ("speech", "text", "hidden"):
                made = client.create_bucket(bucket, copies=2)
                for name in NAMES:
                    made.put(name, f"{bucket} {name}".encode())
        yield found


@pytest.mark.slow
@table("assembly", ["direct", "target"])
@table("lane", ["auto", "grpc"])
def test_entries_are_refused_in_their_places(nodes: list[SecureNode], assembly: Any, lane: Any) -> None:
    entries = [Entry(("speech", "text", "hidden")[number % 3], name) for number, name in enumerate(NAMES)]
    token = nodes[0].token("speech:read", "text:list")
    with connect(nodes[0].url, token=token, options=ClusterOptions(lane=lane)) as client:
        items = list(client.get_batch(entries, on_error="placeholder", assembly=assembly))
    assert [item.index for item in items] == list(range(len(NAMES)))
    for number, item in enumerate(items):
        if number % 3 == 0:
            assert item.data == f"speech {NAMES[number]}".encode()
        elif number % 3 == 1:
            assert item.status == Status.DENIED and isinstance(item.error, errors.AccessDenied)
        else:
            assert item.status == Status.NOT_FOUND and isinstance(item.error, errors.BucketNotFound)
            assert "did you mean" not in str(item.error)


def test_clients_see_their_buckets_in_the_map_alone(nodes: list[SecureNode]) -> None:
    metadata = [("authorization", f"Bearer {nodes[0].token('speech:read', 'text:write')}")]
    with grpc.insecure_channel(nodes[1].server.endpoint, options=OPTIONS) as channel:
        answer = channel.unary_unary("/ais_loader.v1.Cluster/GetMap")(b"", timeout=TIMEOUT_S, metadata=metadata)
    map_ = cluster_pb.GetMapResponse.FromString(answer).map
    assert [bucket.name for bucket in map_.bucket] == ["speech"]
    assert len(map_.node) == 3 and not any(node.peer_endpoint for node in map_.node)


def test_a_hidden_bucket_is_as_one_that_does_not_exist(nodes: list[SecureNode]) -> None:
    messages = set()
    with connect(nodes[0].url, token=nodes[0].token("speech:read,list,write,admin")) as client:
        for name in ("hidden", "hiddem"):
            for use in (
                lambda bucket: bucket.get("0001"),
                lambda bucket: bucket.put("0001", b"x"),
                lambda bucket: bucket.info(),
                lambda bucket: list(bucket),
                lambda bucket: bucket.snapshots(),
            ):
                with pytest.raises(errors.BucketNotFound) as refused:
                    use(client.bucket(name))
                messages.add(str(refused.value).replace(name, "NAME"))
    assert len(messages) == 1


def test_a_token_is_revoked_on_every_node(nodes: list[SecureNode], secret_file: Path) -> None:
    token = nodes[0].token("speech:read")
    claims = jwt.decode(token, options={"verify_signature": False})
    with connect(nodes[0].url, token=token) as client:
        assert len(list(client.get_batch([Entry("speech", name) for name in NAMES]))) == len(NAMES)
        asked = TokenNodes.at(nodes[2].url, secret_file)
        assert asked.listed().audience == nodes[0].audience
        assert claims["jti"] in {one.id for one in asked.revoke(claims["jti"], claims["exp"]).token}
        for node in nodes:

            def is_revoked(node: SecureNode = node) -> bool:
                metadata = [("authorization", f"Bearer {token}")]
                with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
                    try:
                        channel.unary_unary("/ais_loader.v1.Node/Describe")(b"", timeout=TIMEOUT_S, metadata=metadata)
                    except grpc.RpcError as error:
                        return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
                return False

            eventually(is_revoked, TIMEOUT_S)
        with pytest.raises(errors.AccessDenied):
            list(client.get_batch([Entry("speech", name) for name in NAMES]))


def test_operators_need_no_token(nodes: list[SecureNode], secret_file: Path) -> None:
    answer = ask_node(nodes[0].server.endpoint, Caller(read_secret(secret_file)))
    assert answer.described is not None and answer.drives is not None and answer.map is not None
    assert answer.described.pid
    for caller in (Caller(""), Caller("an0ther-secret-of-somebody")):
        assert ask_node(nodes[0].server.endpoint, caller).described is None
