"""Jobs end with the tokens with which they were started, also after a restart of the node."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import jwt
import pytest

from ais_loader import connect, errors
from ais_loader.testing.waiting import eventually
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_etl_pb2_grpc as rpc
from storage_node.etl.jobs.job_tokens import beyond
from storage_node.services import token_gate
from tests.peer_kit import OPTIONS, operator_of
from tests.security.rights_kit import EVERYTHING, SecureNode, secure

pytestmark = pytest.mark.slow  # each waits for processes of transforms
TIMEOUT_S = 180.0
NAMES = [f"{number:03d}" for number in range(200)]
RIGHTS = ("from:read,list,etl-use,etl-job", "to:write,read,list,etl-job")


def slow() -> Callable[[bytes], bytes]:
    def pause(data: bytes) -> bytes:
        time.sleep(0.3)
        return bytes(data)

    return pause


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with (
        secure(tmp_path, etl_code=True, etl_workers=1) as node,
        connect(node.url, token=node.token(EVERYTHING)) as client,
    ):
        source = client.create_bucket("from")
        client.create_bucket("to")
        source.put_many((name, name.encode()) for name in NAMES)
        client.etl.init("slow", slow())
    return tmp_path


@pytest.fixture
def node(folder: Path) -> Iterator[SecureNode]:
    with secure(folder, etl_code=True, etl_workers=1) as node:
        yield node


def started(node: SecureNode, token: str, name: str = "mine") -> pb.JobInfo:
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        job = pb.TransformJob(name=name, bucket="from", to_bucket="to", stage=[pb.JobStage(name="slow")])
        job.token.id = "of somebody else"  # a client cannot choose it
        metadata = [("authorization", f"Bearer {token}")]
        info: pb.JobInfo = rpc.EtlStub(channel).StartJob(
            pb.StartJobRequest(job=job), timeout=TIMEOUT_S, metadata=metadata
        )
        return info


def revoke(node: SecureNode, token: str) -> None:
    claims = jwt.decode(token, options={"verify_signature": False})
    revoked = cluster_pb.RevokedToken(id=claims["jti"], expires_s=claims["exp"])
    with operator_of(node.server) as inside:
        cluster_rpc.TokensStub(inside).RevokeToken(cluster_pb.RevokeTokenRequest(token=revoked), timeout=TIMEOUT_S)


def record(node: SecureNode) -> pb.EtlRecord:
    store = node.server._store
    assert store is not None
    return pb.EtlRecord.FromString(base64.b64decode(store.record.current.etl))


def require_ended(node: SecureNode, why: str) -> None:
    """The job has failed for this reason, and stores nothing any more."""
    with connect(node.url, token=node.token(EVERYTHING)) as client:
        job = client.etl.job("mine")
        eventually(lambda: job.refresh().state != "running", TIMEOUT_S)
        assert job.state == "failed" and why in job.problem and "'team'" in job.problem
        stored = sorted(client.bucket("to"))
        assert len(stored) < len(NAMES) / 2
        time.sleep(1.0)  # as long as three runs of the transform
        assert sorted(client.bucket("to")) == stored


def test_a_job_ends_when_its_token_is_revoked(node: SecureNode) -> None:
    token, other = node.token(*RIGHTS), node.token(*RIGHTS)
    shown = started(node, token)
    assert not shown.job.HasField("token")  # others may see the job
    claims = jwt.decode(token, options={"verify_signature": False})
    (job,) = record(node).job
    assert (job.token.id, job.token.expires_s, job.token.tenant) == (claims["jti"], claims["exp"], "team")
    assert tuple(job.token.scope) == RIGHTS
    assert token not in str(record(node)) and token.rpartition(".")[2] not in str(record(node))
    revoke(node, other)
    with connect(node.url, token=node.token(EVERYTHING)) as client:
        job_of_client = client.etl.job("mine")
        eventually(lambda: job_of_client.refresh().counts.transformed > 1, TIMEOUT_S)
        assert job_of_client.state == "running"  # another one's token does not matter
    revoke(node, token)
    require_ended(node, "was revoked")
    assert not record(node).job[0].HasField("token")


def test_a_job_ends_when_its_token_expires(node: SecureNode, monkeypatch: pytest.MonkeyPatch) -> None:
    started(node, node.token(*RIGHTS, lifetime_s=600))
    lasting = node.token(EVERYTHING, lifetime_s=6000)
    monkeypatch.setattr(token_gate, "now_s", lambda: time.time() + 900)
    with connect(node.url, token=lasting) as client:
        job = client.etl.job("mine")
        eventually(lambda: job.refresh().state != "running", TIMEOUT_S)
        assert job.state == "failed" and "has expired" in job.problem
        with pytest.raises(errors.LoaderError, match="has expired"):
            job.wait(timeout_s=TIMEOUT_S)


def test_a_restart_does_not_lose_the_token_of_a_job(folder: Path) -> None:
    with secure(folder, etl_code=True, etl_workers=1) as node:
        token = node.token(*RIGHTS)
        started(node, token)
    with secure(folder, etl_code=True, etl_workers=1) as node:
        with connect(node.url, token=node.token(EVERYTHING)) as client:
            job = client.etl.job("mine")
            eventually(lambda: job.refresh().counts.transformed > 1, TIMEOUT_S)
        revoke(node, token)
        require_ended(node, "was revoked")


def test_a_job_whose_token_ended_while_the_node_was_down_does_not_begin(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secure(folder, etl_code=True, etl_workers=1) as node:
        started(node, node.token(*RIGHTS, lifetime_s=600))
    monkeypatch.setattr(token_gate, "now_s", lambda: time.time() + 900)
    with (
        secure(folder, etl_code=True, etl_workers=1) as node,
        connect(node.url, token=node.token(EVERYTHING, lifetime_s=6000)) as client,
    ):
        job = client.etl.job("mine")
        eventually(lambda: job.refresh().state == "failed", TIMEOUT_S)
        assert "has expired" in job.problem and len(list(client.bucket("to"))) < len(NAMES) / 2


def test_a_record_that_names_other_buckets_gives_no_more_rights() -> None:
    token = pb.JobToken(id="a", expires_s=1, tenant="team", scope=RIGHTS)
    job = pb.TransformJob(bucket="from", to_bucket="to", token=token)
    assert beyond(job) == "" and beyond(pb.TransformJob(bucket="x", to_bucket="y")) == ""
    job.to_bucket = "from"
    assert "it needs 'write'" in beyond(job)
    job.to_bucket, job.synchronize = "to", True
    assert "it needs 'delete'" in beyond(job)
