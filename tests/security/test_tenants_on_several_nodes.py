"""Tenants on several nodes: what a revoked token has begun ends on all of them, and what others do goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from ais_loader import Entry, connect, errors
from ais_loader.testing.waiting import eventually
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_etl_pb2_grpc as rpc
from storage_node.context.channels import make_secret
from storage_node.ops.token_commands import TokenNodes
from storage_node.services.call_table import TABLE, Role
from tests.peer_kit import OPTIONS
from tests.security.rights_kit import EVERYTHING, SecureNode, secure_cluster

pytestmark = pytest.mark.slow  # three nodes with processes of transforms
TIMEOUT_S = 180.0
NAMES = [f"{number:03d}" for number in range(90)]
OF_JOBS = ("in:read,list,etl-use,etl-job", "out:write,read,list,etl-job")


def slow(pause_s: float) -> Callable[[bytes], bytes]:
    def pause(data: bytes) -> bytes:
        time.sleep(pause_s)
        return bytes(data)

    return pause


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster")
    make_secret(folder / "peer-secret")
    (folder / "corpus").mkdir()
    for name in NAMES:
        (folder / "corpus" / name).write_text(name)
    return folder


@pytest.fixture(scope="module")
def nodes(folder: Path) -> Iterator[list[SecureNode]]:
    config = {"etl_code": True, "etl_workers": 1, "promote_roots": (str(folder / "corpus"),)}
    with secure_cluster(folder, folder / "peer-secret", **config) as found:
        with connect(found[0].url, token=found[0].token(EVERYTHING)) as client:
            for bucket in ("a", "b", "in", "out", "promoted"):
                client.create_bucket(bucket)
            for bucket in ("a", "b", "in"):
                data = bucket.encode() * (100_000 if bucket != "in" else 1)
                client.bucket(bucket).put_many((name, name.encode() + data) for name in NAMES)
            client.etl.init("slow", slow(0.1))
            client.etl.init("slower", slow(1.0))
        yield found


def revoke(nodes: list[SecureNode], folder: Path, token: str) -> None:
    claims = jwt.decode(token, options={"verify_signature": False})
    answer = TokenNodes.at(nodes[2].url, folder / "peer-secret").revoke(claims["jti"], claims["exp"])
    assert claims["jti"] in {one.id for one in answer.token}


@pytest.mark.parametrize("assembly", ["target", "direct"])
@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_batches_of_a_revoked_tenant_end_on_every_node_and_others_go_on(
    nodes: list[SecureNode], folder: Path, assembly: Any, lane: Any
) -> None:
    tokens = {name: nodes[0].token(f"{name}:read", tenant=name) for name in ("a", "b")}
    done, begun = threading.Event(), threading.Barrier(7)

    def read(name: str, node: SecureNode) -> str:
        """Read batches until they are refused, or the test is done; return the kind of the error."""
        try:
            with connect(node.url, token=tokens[name], options=ClusterOptions(lane=lane)) as client:
                batches = 0
                while not done.is_set():
                    items = list(client.get_batch([Entry(name, one) for one in NAMES], assembly=assembly))
                    assert [bytes(item.data[:4]) for item in items] == [f"{one}{name}".encode() for one in NAMES]
                    batches += 1
                    if batches == 1:
                        begun.wait(TIMEOUT_S)
        except errors.LoaderError as error:
            return error.kind
        return ""

    with ThreadPoolExecutor(6) as pool:
        try:
            readings = {name: [pool.submit(read, name, node) for node in nodes] for name in tokens}
            begun.wait(TIMEOUT_S)
            revoke(nodes, folder, tokens["a"])
            assert [one.result(TIMEOUT_S) for one in readings["a"]] == ["denied"] * 3
            assert not any(one.done() for one in readings["b"])
        finally:
            done.set()
        assert [one.result(TIMEOUT_S) for one in readings["b"]] == [""] * 3
    for node in nodes:
        batches = node.server.batches
        assert batches is not None
        eventually(lambda batches=batches: not batches.resources.batches.held)  # type: ignore[misc]


def started(node: SecureNode, token: str, name: str, stage: str) -> None:
    job = pb.TransformJob(name=name, bucket="in", to_bucket="out", stage=[pb.JobStage(name=stage)])
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        request = pb.StartJobRequest(job=job)
        rpc.EtlStub(channel).StartJob(request, timeout=TIMEOUT_S, metadata=[("authorization", f"Bearer {token}")])


def test_a_job_of_a_revoked_tenant_ends_on_every_node_and_that_of_another_one_is_completed(
    nodes: list[SecureNode], folder: Path
) -> None:
    tokens = {name: nodes[0].token(*OF_JOBS, tenant=name) for name in ("a", "b")}
    for number, (name, token) in enumerate(tokens.items()):
        # The job that is ended would run for half a minute, lest it be done before that.
        started(nodes[number], token, f"of-{name}", "slower" if name == "a" else "slow")
    with connect(nodes[2].url, token=nodes[0].token(EVERYTHING)) as client:
        jobs = {name: client.etl.job(f"of-{name}") for name in tokens}
        eventually(lambda: jobs["a"].refresh().counts.transformed > 1, TIMEOUT_S)
        revoke(nodes, folder, tokens["a"])
        eventually(lambda: jobs["a"].refresh().state != "running", TIMEOUT_S)
        assert jobs["a"].state == "failed"
        assert "'a'" in jobs["a"].problem and "was revoked" in jobs["a"].problem
        assert jobs["b"].wait(timeout_s=TIMEOUT_S).failed == 0
        assert jobs["b"].refresh().state == "done"
        assert sorted(client.bucket("out")) == NAMES
    for node in nodes:
        with connect(node.url, token=tokens["a"]) as client, pytest.raises(errors.AccessDenied, match="was revoked"):
            client.bucket("in").get("000")


def test_promotion_is_for_the_tenants_own_buckets_on_every_node(nodes: list[SecureNode], folder: Path) -> None:
    corpus = str(folder / "corpus")
    for node in nodes:
        with (
            connect(node.url, token=nodes[0].token("promoted:read,list,write")) as client,
            pytest.raises(errors.AccessDenied, match="'promote'"),
        ):
            client.bucket("promoted").promote(corpus, recursive=True)
        with connect(node.url, token=nodes[0].token("promoted:promote,read,list", "a:read")) as client:
            with pytest.raises(errors.AccessDenied, match="'promote'"):
                client.bucket("a").promote(corpus, recursive=True)
            with pytest.raises(errors.BucketNotFound):
                client.bucket("b").promote(corpus, recursive=True)
            with pytest.raises(errors.SourceRefused):
                client.bucket("promoted").promote(str(folder / "keys"), recursive=True)
            client.bucket("promoted").promote(corpus, recursive=True)
            assert {name: client.bucket("promoted").get(name) for name in NAMES} == {
                name: name.encode() for name in NAMES
            }


def test_a_token_of_a_client_makes_no_node_and_no_operator(nodes: list[SecureNode]) -> None:
    """At the listener of peers it is worth nothing, and no call of nodes is served for it anywhere."""
    metadata = [("authorization", f"Bearer {nodes[0].token(EVERYTHING)}")]
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED}
    server = nodes[1].server
    for endpoint, methods in (
        (server.peer_endpoint, list(TABLE)),
        (server.endpoint, [method for method, call in TABLE.items() if not call.by & Role.CLIENT]),
    ):
        with grpc.insecure_channel(endpoint, options=OPTIONS) as channel:
            for method in methods:
                call = channel.stream_stream(f"/ais_loader.v1.{method}")
                with pytest.raises(grpc.RpcError) as error:
                    list(call(iter([b""]), timeout=TIMEOUT_S, metadata=metadata))
                assert error.value.code() in refused, method
