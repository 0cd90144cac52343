"""What clients with few rights learn of other tenants' jobs, transforms, objects and snapshots: nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from ais_loader import connect, errors
from ais_loader.wire.generated import ais_contents_pb2 as contents_pb
from ais_loader.wire.generated import ais_contents_pb2_grpc as contents_rpc
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_etl_pb2_grpc as rpc
from tests.peer_kit import OPTIONS
from tests.security.rights_kit import EVERYTHING, SecureNode, secure
from tests.table import table

TIMEOUT_S = 180.0
MINE = "mine:read,list,write,delete,admin,etl-job"


def slow() -> Callable[[bytes], bytes]:
    def pause(data: bytes) -> bytes:
        time.sleep(0.2)
        return bytes(data)

    return pause


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure(tmp_path_factory.mktemp("node"), etl_code=True, etl_workers=1) as node:
        with connect(node.url, token=node.token(EVERYTHING)) as client:
            for bucket in ("secret", "out", "mine"):
                made = client.create_bucket(bucket)
                for number in range(50):
                    made.put(f"{bucket}-{number:02d}", b"x")
            client.bucket("secret").snapshot("first")
            client.etl.init("secret-transform", slow())
            client.etl.init("mine", slow())
        yield node


class Etl:
    """Calls with one token."""

    def __init__(self, node: SecureNode, *scopes: str) -> None:
        self._channel = grpc.insecure_channel(node.server.endpoint, options=OPTIONS)
        self._stub = rpc.EtlStub(self._channel)
        self._metadata = [("authorization", f"Bearer {node.token(*scopes)}")]

    def __enter__(self) -> Etl:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: str, request: Any) -> Any:
        return getattr(self._stub, method)(request, timeout=TIMEOUT_S, metadata=self._metadata)

    def refusal(self, method: str, request: Any) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as refused:
            made = self.call(method, request)
            if hasattr(made, "__next__"):
                list(made)
        kinds = [value for key, value in refused.value.trailing_metadata() if key == "ais-error-kind"]
        return kinds[0], refused.value.details()


def job(name: str, bucket: str, to_bucket: str, transform: str = "secret-transform") -> pb.StartJobRequest:
    stage = [pb.JobStage(name=transform)]
    return pb.StartJobRequest(
        job=pb.TransformJob(
            name=name, bucket=bucket, to_bucket=to_bucket, to_prefix="made/", prefix=f"{bucket}-", stage=stage
        )
    )


@pytest.mark.slow
def test_the_name_of_anothers_job_is_taken_and_no_more(node: SecureNode) -> None:
    with Etl(node, EVERYTHING) as owner, Etl(node, MINE) as other:
        started = owner.call("StartJob", job("hidden", "secret", "out"))
        while_running = other.refusal("StartJob", job("hidden", "mine", "mine"))
        for method, request in (
            ("StopJob", pb.StopJobRequest(name="hidden")),
            ("DeleteJob", pb.DeleteJobRequest(name="hidden")),
            ("WatchJob", pb.WatchJobRequest(name="hidden")),
            ("ListJobFailures", pb.ListJobFailuresRequest(name="hidden")),
        ):
            kind, text = other.refusal(method, request)
            assert (kind, text) == ("job-not-found", "there is no job 'hidden'")
        assert not other.call("ListJobs", pb.ListJobsRequest()).job
        owner.call("StopJob", pb.StopJobRequest(name="hidden"))
        list(owner.call("WatchJob", pb.WatchJobRequest(name="hidden", wait=True)))
        after = other.refusal("StartJob", job("hidden", "mine", "mine"))
        assert while_running == after
        assert after[0] == "transform-exists" and "secret" not in after[1] and "run" not in after[1]
        [kept] = [one.job for one in owner.call("ListJobs", pb.ListJobsRequest()).job if one.job.name == "hidden"]
        assert (kept.uuid, kept.bucket) == (started.job.uuid, "secret")  # not replaced
        owner.call("StartJob", job("hidden", "mine", "mine"))  # its own, which has ended, it may replace
        owner.call("StopJob", pb.StopJobRequest(name="hidden"))


def test_transforms_are_seen_by_their_names(node: SecureNode) -> None:
    with Etl(node, MINE) as etl:
        listed = etl.call("ListTransforms", pb.ListTransformsRequest()).transform
        assert [one.transform.name for one in listed] == ["mine"]
        hidden = etl.refusal("GetTransform", pb.GetTransformRequest(name="secret-transform"))
        missing = etl.refusal("GetTransform", pb.GetTransformRequest(name="missing-transform"))
        assert hidden == ("transform-not-found", missing[1].replace("missing", "secret"))
        assert etl.call("GetTransform", pb.GetTransformRequest(name="mine")).transform.name == "mine"
        kind, text = etl.refusal("StartJob", job("new", "mine", "mine", "nothing"))
        assert kind == "transform-not-found" and "secret" not in text
    with Etl(node, "*:etl-create") as etl:
        kind, text = etl.refusal("DeleteTransform", pb.DeleteTransformRequest(name="nothing"))
        assert kind == "transform-not-found" and "secret" not in text
    with Etl(node, EVERYTHING) as etl:
        assert len(etl.call("ListTransforms", pb.ListTransformsRequest()).transform) == 2


@table("bucket", ["secret", "nothing", "secret@first", "secret@nothing"])
def test_a_hidden_bucket_is_missing_for_calls_about_many_names(node: SecureNode, bucket: str) -> None:
    metadata = [("authorization", f"Bearer {node.token(MINE)}")]
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        stub = contents_rpc.ContentsStub(channel)
        for method, request in (
            (stub.HeadMany, contents_pb.HeadManyRequest(bucket=bucket, name=["secret-00", "nothing"])),
            (stub.Summarize, contents_pb.SummarizeRequest(bucket=bucket)),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                answers = method(request, timeout=TIMEOUT_S, metadata=metadata)
                if hasattr(answers, "__next__"):
                    list(answers)
            assert refused.value.code() == grpc.StatusCode.NOT_FOUND
            assert "first" not in refused.value.details() and "-00" not in refused.value.details()
    with connect(node.url, token=node.token(MINE)) as client:
        hidden = client.bucket(bucket)
        for call in (
            lambda: list(hidden.members("secret-00")),
            lambda: list(hidden.snapshots()),
            lambda: hidden.snapshot("second"),
            lambda: hidden.delete_snapshot("first"),
        ):
            with pytest.raises((errors.BucketNotFound, errors.InvalidRequest)) as missing:
                call()
            assert "secret-00" not in str(missing.value).replace("'secret-00'", "")
