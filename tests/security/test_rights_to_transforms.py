"""Rights to transforms: use, create, see code, run jobs; entries that may not be transformed; watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import jwt
import pytest

from ais_loader import Entry, connect, errors
from ais_loader.transforms.etl import Command
from ais_loader.values.entry import Status
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_etl_pb2_grpc as rpc
from tests.peer_kit import OPTIONS, operator_of
from tests.security.rights_kit import EVERYTHING, SecureNode, secure

TIMEOUT_S = 180.0
PAUSE_S = 0.3
NAMES = [f"{number:02d}" for number in range(40)]


def upper() -> Callable[[bytes], bytes]:
    return lambda data: bytes(data).upper()


def slow(pause_s: float = PAUSE_S) -> Callable[[bytes], bytes]:
    def pause(data: bytes) -> bytes:
        time.sleep(pause_s)
        return bytes(data)

    return pause


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    folder = tmp_path_factory.mktemp("node")
    with secure(folder, etl_code=True, etl_workers=1) as node:
        with connect(node.url, token=node.token(EVERYTHING)) as client:
            for bucket in ("from", "to", "other"):
                made = client.create_bucket(bucket)
                for name in NAMES if bucket != "to" else ():
                    made.put(name, f"{bucket} {name}".encode())
            client.etl.init("up", upper())
            client.etl.init("slow", slow())
        yield node


@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_transformed_entries_are_refused_in_their_places(node: SecureNode, lane: Any) -> None:
    entries = [
        Entry("from", "00", etl="up"),
        Entry("other", "01", etl="up"),
        Entry("other", "02"),
        Entry("to", "03", etl="up"),
        Entry("from", "04", start=1, length=2, etl="up"),
    ]
    with connect(
        node.url, token=node.token("from:read,etl-use", "other:read"), options=ClusterOptions(lane=lane)
    ) as client:
        items = list(client.get_batch(entries, on_error="placeholder"))
        assert [item.status for item in items] == [
            Status.OK,
            Status.DENIED,
            Status.OK,
            Status.NOT_FOUND,
            Status.OK,
        ]
        assert [items[number].data for number in (0, 2, 4)] == [b"FROM 00", b"other 02", b"RO"]
        assert isinstance(items[1].error, errors.AccessDenied) and "'etl-use'" in str(items[1].error)
        assert isinstance(items[3].error, errors.BucketNotFound)
        with pytest.raises(errors.AccessDenied):
            client.bucket("other").get("01", etl="up")


@pytest.mark.slow
def test_creating_transforms(node: SecureNode) -> None:
    with connect(node.url, token=node.token("mine-*:etl-create")) as client:
        client.etl.init("mine-1", upper())
        with pytest.raises(errors.AccessDenied, match="'etl-create'"):
            client.etl.init("other", upper())
        with pytest.raises(errors.AccessDenied, match="'etl-create'"):
            client.etl.init("up", upper(), replace=True)
        with pytest.raises(errors.AccessDenied, match="'etl-install'"):
            client.etl.init("mine-2", upper(), requirements=["numpy"])
        with pytest.raises(errors.AccessDenied):
            client.etl.delete("up")
        client.etl.init("mine-3", Command(["cat"]))
        for name in ("mine-1", "mine-3"):
            client.etl.delete(name)
    with connect(node.url, token=node.token("*:read")) as client, pytest.raises(errors.AccessDenied):
        client.etl.list()


def test_seeing_code(node: SecureNode) -> None:
    def code(token: str) -> bytes:
        with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
            metadata = [("authorization", f"Bearer {token}")]
            request = pb.GetTransformRequest(name="up")
            found = rpc.EtlStub(channel).GetTransform(request, timeout=TIMEOUT_S, metadata=metadata)
        return bytes(found.transform.python.pickle)

    assert code(node.token("up:etl-code"))
    assert not code(node.token("up:etl-create", "*:etl-use"))


def test_jobs_and_their_watches(node: SecureNode) -> None:
    token = node.token("from:read", "to:write,read")
    with connect(node.url, token=token) as client, pytest.raises(errors.AccessDenied, match="'etl-job'"):
        client.bucket("from").transform("to", etl="slow", name="mine")
    started = node.token("from:read,list,etl-use,etl-job", "to:write,read,list,etl-job")
    with connect(node.url, token=started) as client, pytest.raises(errors.AccessDenied, match="'delete'"):
        client.bucket("from").transform("to", etl="slow", name="mine", synchronize=True)
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        stub = rpc.EtlStub(channel)

        def of(token: str) -> dict[str, object]:
            return {"timeout": TIMEOUT_S, "metadata": [("authorization", f"Bearer {token}")]}

        job = pb.TransformJob(name="mine", bucket="from", to_bucket="to", stage=[pb.JobStage(name="slow")])
        stub.StartJob(pb.StartJobRequest(job=job), **of(started))
        watcher = node.token("from:list", "to:list")
        stranger = node.token("other:read,list,etl-job")
        assert [one.job.name for one in stub.ListJobs(pb.ListJobsRequest(), **of(watcher)).job] == ["mine"]
        assert not stub.ListJobs(pb.ListJobsRequest(), **of(stranger)).job
        for token, code in ((stranger, grpc.StatusCode.NOT_FOUND), (watcher, grpc.StatusCode.PERMISSION_DENIED)):
            with pytest.raises(grpc.RpcError) as refused:
                stub.StopJob(pb.StopJobRequest(name="mine"), **of(token))
            assert refused.value.code() == code
        watch = stub.WatchJob(pb.WatchJobRequest(name="mine", wait=True), **of(watcher))
        next(watch)
        claims = jwt.decode(watcher, options={"verify_signature": False})
        with operator_of(node.server) as inside:
            revoked = cluster_pb.RevokedToken(id=claims["jti"], expires_s=claims["exp"])
            cluster_rpc.TokensStub(inside).RevokeToken(cluster_pb.RevokeTokenRequest(token=revoked), timeout=TIMEOUT_S)
        with pytest.raises(grpc.RpcError) as ended:  # it would be none after the job's end
            list(watch)
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
        stub.StopJob(pb.StopJobRequest(name="mine"), **of(started))
