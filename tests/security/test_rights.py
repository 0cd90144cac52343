"""Rights of clients at a node that needs tokens: calls, sessions and lanes, entry by entry."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from google.protobuf.message_factory import GetMessageClass

from ais_loader import Entry, connect, errors
from ais_loader.testing.waiting import eventually
from ais_loader.values import token_source
from ais_loader.values.entry import Status
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from ais_loader.wire.generated import ais_etl_pb2 as etl_pb
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_remote_pb2 as remote_pb
from ais_loader.wire.remote import Remote
from storage_node.security.rights.keys import read_private_key
from storage_node.services import token_gate
from storage_node.services.call_table import TABLE, Role
from tests.node.contract_kit import methods
from tests.peer_kit import OPTIONS, operator_of
from tests.security.rights_kit import EVERYTHING, SecureNode, key_in, secure
from tests.table import table

TIMEOUT_S = 180.0
OF_CLIENTS = sorted(method for method, call in TABLE.items() if call.by & Role.CLIENT)
LANES = ["auto", "grpc"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure(tmp_path_factory.mktemp("node")) as node:
        with connect(node.url, token=node.token(EVERYTHING, tenant="operator")) as client:
            for bucket in ("speech", "speech-secret", "text", "audio"):
                made = client.create_bucket(bucket)
                for number in range(20):
                    made.put(f"{number:04d}", f"{bucket} {number}".encode())
        yield node


def call(node: SecureNode, method: str, request: bytes, token: str | None, **other: str) -> tuple[grpc.StatusCode, str]:
    """Make a call with one message; return its status and its error's kind."""
    metadata = list(other.items()) + ([("authorization", f"Bearer {token}")] if token is not None else [])
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        made = channel.stream_stream(f"/ais_loader.v1.{method}")(iter([request]), timeout=TIMEOUT_S, metadata=metadata)
        try:
            list(made)
        except grpc.RpcError as error:
            kinds = [value for key, value in error.trailing_metadata() or () if key == "ais-error-kind"]
            return error.code(), kinds[0] if kinds else ""
    return grpc.StatusCode.OK, ""


def requests() -> dict[str, Any]:
    """A request of every method about bucket `speech`, which is refused for want of rights to it alone."""
    named = {"bucket": "speech", "name": "x"}
    job = etl_pb.TransformJob(name="j", bucket="speech", to_bucket="speech")
    found: dict[str, Any] = {}
    for method in OF_CLIENTS:
        made = GetMessageClass(methods()[method].input_type)()
        fields = {field.name for field in made.DESCRIPTOR.fields if isinstance(getattr(made, field.name), str)}
        for field in fields & {"bucket", "name"}:
            setattr(made, field, named[field] if "bucket" in fields else "speech")
        found[method] = made
    found["Objects/Put"] = pb.PutRequest(header=pb.PutHeader(bucket="speech", name="x"))
    found["Objects/PutMany"] = pb.PutManyRequest(object=[pb.SmallObject(bucket="speech", name="x")])
    found["Compose/Compose"].object.bucket = "speech"
    found["Etl/InitTransform"].transform.name = "speech"
    found["Etl/StartJob"] = etl_pb.StartJobRequest(job=job)
    found["Etl/CopyObject"].to_bucket = "speech"
    found["RemoteBuckets/Expect"] = remote_pb.ExpectRequest(bucket=["speech"])
    return found


def test_every_method_of_clients_has_its_needs() -> None:
    assert sorted(method for method, call in TABLE.items() if call.needs is not None) == OF_CLIENTS


@pytest.mark.slow
@table("method", OF_CLIENTS)
def test_no_method_without_a_token(node: SecureNode, method: str) -> None:
    request = requests()[method].SerializeToString()
    assert call(node, method, request, None) == (grpc.StatusCode.UNAUTHENTICATED, "denied")
    assert call(node, method, request, node.expired()) == (grpc.StatusCode.UNAUTHENTICATED, "denied")
    assert call(node, method, request, None, **{"ais-role": "operator"})[0] == grpc.StatusCode.UNAUTHENTICATED


OPEN = {
    "GetBatch/Session",  # by entry
    "GetBatch/OpenLane",
    "Objects/PutMany",
    "Buckets/ListBuckets",  # filtered
    "RemoteBuckets/RemoteUsage",
    "RemoteBuckets/PendingUploads",
    "Etl/ListJobs",
    "Node/Describe",
    "Cluster/GetMap",
}


@pytest.mark.slow
@table("method", OF_CLIENTS)
def test_no_method_with_other_rights(node: SecureNode, method: str) -> None:
    request = requests()[method].SerializeToString()
    elsewhere = node.token(EVERYTHING.replace("*:", "text:"))
    code, kind = call(node, method, request, elsewhere)
    if method in OPEN - {"RemoteBuckets/PendingUploads"} | {"Promote/Look", "Etl/ListTransforms", "Etl/GetTransform"}:
        assert kind not in ("denied", "bucket-not-found")
        return
    assert code in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.PERMISSION_DENIED)
    assert kind in ("bucket-not-found", "denied", "job-not-found")
    if method not in OPEN:  # seen, but no more
        _, kind = call(node, method, request, node.token("speech:list"))
        assert kind in ("denied", "job-not-found") or method in SEEN_BY_LISTERS


SEEN_BY_LISTERS = {
    "Buckets/GetBucket",
    "Objects/Head",
    "Objects/List",
    "Objects/ListMembers",
    "Contents/HeadMany",
    "Contents/Summarize",
    "RemoteBuckets/ListRemote",
    "Snapshots/ListSnapshots",
}


@pytest.mark.slow
@table("method", OF_CLIENTS)
def test_every_method_with_all_rights(node: SecureNode, method: str) -> None:
    if method in ("Buckets/DeleteBucket", "Promote/Run"):
        return  # has no request that does nothing
    code, kind = call(node, method, requests()[method].SerializeToString(), node.token(EVERYTHING))
    assert kind != "denied" and code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


def bad_tokens(node: SecureNode, folder: Path) -> dict[str, str]:
    claims = jwt.decode(node.token(EVERYTHING), options={"verify_signature": False})
    return {
        "expired": node.expired(),
        "not yet valid": node.token(EVERYTHING, not_before_s=int(time.time()) + 3600),
        "another cluster": node.token(EVERYTHING, audience="another"),
        "none": jwt.encode(claims, None, algorithm="none"),
        "HS256": jwt.encode(claims, b"k" * 32, algorithm="HS256"),
        "another key": node.token(EVERYTHING, key=key_in(folder)),
        "nothing": "x",
    }


@pytest.mark.parametrize("lane", LANES)
def test_bad_tokens(node: SecureNode, tmp_path: Path, lane: Any) -> None:
    for name, token in bad_tokens(node, tmp_path).items():
        with connect(node.url, token=token, options=ClusterOptions(lane=lane)) as client:
            for use in (
                lambda: client.bucket("speech").get("0001"),
                lambda: list(client.get_batch([Entry("speech", "0001")])),
                lambda: client.bucket("speech").put("new", b"x"),
                lambda: client.buckets(),
            ):
                with pytest.raises(errors.AccessDenied) as refused:
                    use()
                assert token not in str(refused.value) or len(token) < 2, name


@pytest.mark.parametrize("lane", LANES)
def test_without_a_token(node: SecureNode, lane: Any) -> None:
    with (
        connect(node.url, options=ClusterOptions(lane=lane)) as client,
        pytest.raises(errors.AccessDenied, match="needs a token"),
    ):
        client.bucket("speech").get("0001")


@pytest.mark.slow
@table("lane", LANES)
@table("streaming", [True, False])
def test_one_entry_of_a_thousand_is_refused_in_its_place(node: SecureNode, lane: Any, streaming: bool) -> None:
    entries = [Entry("speech", f"{number % 20:04d}") for number in range(1000)]
    entries[500] = Entry("text", "0003")
    entries[501] = Entry("speech-secret", "0003")
    entries[502] = Entry("nothing", "0003", start=2)
    entries[503] = Entry("text", "0003", start=1, length=2)
    entries[504] = Entry("text", "0003", member="m")
    token = node.token("speech:read", "text:list")
    with connect(node.url, token=token, options=ClusterOptions(lane=lane)) as client:
        items = list(client.get_batch(entries, streaming=streaming, on_error="placeholder"))
    assert [item.index for item in items] == list(range(1000))
    for number, item in enumerate(items):
        if not 500 <= number <= 504:
            assert item.data == f"speech {number % 20}".encode()
    for number in (500, 503, 504):
        assert items[number].status == Status.DENIED
        assert isinstance(items[number].error, errors.AccessDenied)
        assert "'read'" in str(items[number].error)
    hidden, missing = (str(items[number].error) for number in (501, 502))
    assert isinstance(items[501].error, errors.BucketNotFound) and items[501].status == Status.NOT_FOUND
    assert hidden.replace("501", "502") == missing.replace("nothing", "speech-secret")


@pytest.mark.parametrize("lane", LANES)
def test_calls_about_a_bucket(node: SecureNode, lane: Any) -> None:
    token = node.token("speech:read,list", "audio:list,write")
    with connect(node.url, token=token, options=ClusterOptions(lane=lane)) as client:
        assert [one.name for one in client.buckets()] == ["audio", "speech"]
        speech = client.bucket("speech")
        assert speech.get("0004") == b"speech 4"
        assert {f"{number:04d}" for number in range(20)} <= set(speech)
        for refused in (
            lambda: speech.put("new", b"x"),
            lambda: speech.delete("0001"),
            lambda: client.bucket("audio").get("0001"),
            lambda: speech.put("large", b"y" * 100_000),
        ):
            with pytest.raises(errors.AccessDenied):
                refused()
        client.bucket("audio").put("new", b"x" * 100_000)
        messages = set()
        for name in ("speech-secret", "speech-nothing"):
            with pytest.raises(errors.BucketNotFound) as hidden:
                client.bucket(name).get("0001")
            messages.add(str(hidden.value).replace(name, ""))
            with pytest.raises(errors.BucketNotFound):
                list(client.bucket(name))
        assert len(messages) == 1 and "did you mean" not in messages.pop()
    with connect(node.url, token=node.token(EVERYTHING)) as client:
        assert client.bucket("audio").get("new") == b"x" * 100_000
        client.bucket("audio").delete("new")


@pytest.mark.parametrize("lane", LANES)
def test_many_puts_are_refused_one_by_one(node: SecureNode, lane: Any) -> None:
    token = node.token("audio:write,read", "text:read")
    refused = sum(node.server.batches.node.metrics.refusals.values()) if node.server.batches is not None else 0
    with connect(node.url, token=token, options=ClusterOptions(lane=lane)) as client:
        client.bucket("audio").put_many([(f"many-{number}", b"new") for number in range(50)])
        assert client.bucket("audio").get("many-49") == b"new"
        with pytest.raises(errors.AccessDenied, match="'write'"):
            client.bucket("text").put_many([(f"{number:04d}", b"new") for number in range(20)])
        assert client.bucket("text").get("0003") == b"text 3"
        with pytest.raises(errors.BucketNotFound):
            client.bucket("speech").put_many([(f"{number:04d}", b"new") for number in range(20)])
    assert node.server.batches is not None
    assert sum(node.server.batches.node.metrics.refusals.values()) >= refused + 20


def test_one_put_of_many_is_refused_in_its_place(node: SecureNode) -> None:
    buckets = ("audio", "text", "audio", "speech")
    request = pb.PutManyRequest(object=[pb.SmallObject(bucket=one, name="placed", data=b"x") for one in buckets])
    metadata = [("authorization", f"Bearer {node.token('audio:write', 'text:list')}")]
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        put = channel.stream_stream("/ais_loader.v1.Objects/PutMany")
        [answer] = put(iter([request.SerializeToString()]), timeout=TIMEOUT_S, metadata=metadata)
    results = pb.PutManyResponse.FromString(answer).result
    assert [one.error.kind for one in results] == ["", "denied", "", "bucket-not-found"]


def test_the_tenant_is_that_of_the_token(node: SecureNode) -> None:
    options = ClusterOptions(tenant="somebody-else")
    with connect(node.url, token=node.token("*:read", tenant="mine"), options=options) as client:
        assert client.bucket("speech").get("0004") == b"speech 4"
        assert len(list(client.get_batch([Entry("speech", f"{number:04d}") for number in range(20)]))) == 20
    batches = node.server.batches
    assert batches is not None
    assert "somebody-else" not in batches.resources.slots.charged_bytes


@pytest.mark.slow
@pytest.mark.parametrize("lane", LANES)
def test_a_session_ends_with_its_token(node: SecureNode, lane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = node.server.batches
    assert batches is not None
    token = node.token("*:read", lifetime_s=600)
    with connect(node.url, token=token, options=ClusterOptions(lane=lane)) as client:
        assert client.bucket("speech").get("0004") == b"speech 4"
        assert len(list(client.get_batch([Entry("speech", f"{number:04d}") for number in range(20)]))) == 20
        before = batches.open_sessions
        later(monkeypatch, 601)
        eventually(lambda: batches.open_sessions < before)
        assert _is_refused(client)
        monkeypatch.undo()
        assert not _is_refused(client)


@pytest.mark.slow
def test_a_token_ends_at_its_time_and_not_when_the_node_looks_next(
    node: SecureNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_gate, "SWEEP_S", 3600.0)
    batches = node.server.batches
    assert batches is not None
    with connect(node.url, token=node.token("*:read", lifetime_s=600)) as client:
        assert not _is_refused(client)
        before = batches.open_sessions
        later(monkeypatch, 598)
        with connect(node.url, token=node.token("*:read", lifetime_s=6000)) as other:  # the node looks once more
            assert not _is_refused(other)
        eventually(lambda: batches.open_sessions < before)
        assert _is_refused(client)


def later(monkeypatch: pytest.MonkeyPatch, more_s: float) -> None:
    """Move the clock of the nodes on."""
    monkeypatch.setattr(token_gate, "now_s", lambda: time.time() + more_s)


def _is_refused(client: Any) -> bool:
    try:
        list(client.get_batch([Entry("speech", f"{number:04d}") for number in range(20)]))
    except errors.AccessDenied:
        return True
    return False


def revoke(node: SecureNode, token: str) -> None:
    claims = jwt.decode(token, options={"verify_signature": False})
    with operator_of(node.server) as channel:
        stub = cluster_rpc.TokensStub(channel)
        listed = stub.RevokeToken(
            cluster_pb.RevokeTokenRequest(token=cluster_pb.RevokedToken(id=claims["jti"], expires_s=claims["exp"])),
            timeout=TIMEOUT_S,
        )
    assert claims["jti"] in {one.id for one in listed.token}
    assert listed.audience == node.audience


@pytest.mark.parametrize("lane", LANES)
def test_a_revoked_token_ends_what_it_has_begun(node: SecureNode, lane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_gate, "SWEEP_S", 3600.0)
    token, other = node.token("*:read"), node.token("*:read")
    with (
        connect(node.url, token=token, options=ClusterOptions(lane=lane)) as client,
        connect(node.url, token=other, options=ClusterOptions(lane=lane)) as unaffected,
    ):
        batches = node.server.batches
        assert batches is not None
        for one in (client, unaffected):
            assert one.bucket("speech").get("0004") == b"speech 4"
        before = batches.open_sessions
        revoke(node, token)
        eventually(lambda: batches.open_sessions < before)
        assert _is_refused(client)
        with pytest.raises(errors.AccessDenied, match="revoked"):
            client.bucket("speech").get("0004")
        assert unaffected.bucket("speech").get("0004") == b"speech 4"


def test_revocations_survive_a_restart(tmp_path: Path) -> None:
    with secure(tmp_path) as node:
        token = node.token("*:list")
        revoke(node, token)
        assert call(node, "Buckets/ListBuckets", b"", token)[0] == grpc.StatusCode.UNAUTHENTICATED
    with secure(tmp_path) as node:
        assert call(node, "Buckets/ListBuckets", b"", token)[0] == grpc.StatusCode.UNAUTHENTICATED
        assert call(node, "Buckets/ListBuckets", b"", node.token("*:list"))[0] == grpc.StatusCode.OK


@pytest.mark.slow
def test_a_token_file_is_read_again(node: SecureNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_source, "_LOOK_EVERY_S", 0.0)
    path = tmp_path / "token"
    path.write_text(node.token("*:read", lifetime_s=600) + "\n")
    with connect(node.url, token_file=path) as client:
        assert client.bucket("speech").get("0004") == b"speech 4"
        path.write_text(node.token("*:read", lifetime_s=6000))
        later(monkeypatch, 601)
        until_s = time.monotonic() + 4 * token_gate.SWEEP_S
        while time.monotonic() < until_s:  # while the sessions of the first token end, and after that
            items = list(client.get_batch([Entry("speech", f"{number:04d}") for number in range(20)]))
            assert all(item.status == Status.OK for item in items)
        with pickle.loads(pickle.dumps(client)) as copy:
            assert copy.bucket("speech").get("0004") == b"speech 4"


def test_a_token_is_nowhere(node: SecureNode, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = node.token("*:read")
    signature = token.rpartition(".")[2]
    options = ClusterOptions(token=token)
    with connect(node.url, options=options) as client:
        assert client.bucket("speech").get("0004") == b"speech 4"
        for text in (repr(options), repr(client), str(client), pickle.dumps(client).decode("latin-1")):
            assert signature not in text
        metrics = node.server.batches.node.limits() if node.server.batches is not None else {}
        assert signature not in str(metrics)
    assert signature not in caplog.text
    with pytest.raises(errors.InvalidRequest, match="token_file") as refused:
        connect(f"grpc://{token}@127.0.0.1:{node.server.port}")
    assert signature not in str(refused.value)
    with pytest.raises(errors.InvalidRequest) as refused:
        connect(f"{node.url}?token={token}")
    assert signature not in str(refused.value)


def test_a_token_is_not_sent_in_the_clear_to_another_machine(node: SecureNode) -> None:
    with (
        connect("grpc://192.0.2.1:7480", token=node.token("*:read"), options=ClusterOptions(retry_s=0)) as client,
        pytest.raises(errors.AccessDenied, match="not encrypted"),
    ):
        client.buckets()


def test_clients_are_told_no_paths_pids_and_peers(node: SecureNode) -> None:
    token = node.token("speech:read")
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        metadata = [("authorization", f"Bearer {token}")]
        described = channel.unary_unary("/ais_loader.v1.Node/Describe")(b"", timeout=TIMEOUT_S, metadata=metadata)
        answered = channel.unary_unary("/ais_loader.v1.Cluster/GetMap")(b"", timeout=TIMEOUT_S, metadata=metadata)
    response = pb.DescribeResponse.FromString(described)
    assert not response.pid and not any(drive.path for drive in response.drive)
    assert not any("/" in value for value in response.limits.values())
    assert not cluster_pb.GetMapResponse.FromString(answered).peer_endpoint


def test_a_lane_token_is_bound_to_the_token_of_its_client(node: SecureNode) -> None:
    key = read_private_key(node.key)
    assert key is not None
    options = ClusterOptions(lane="auto")
    with connect(node.url, token=node.token("text:read,list"), options=options) as client:
        assert client.bucket("text").get("0001") == b"text 1"
        assert node.server.lanes.open_lanes
        with pytest.raises(errors.BucketNotFound):
            client.bucket("speech").get("0001")
        with pytest.raises(errors.AccessDenied):
            client.bucket("text").put("0001", b"other")
        assert client.bucket("text").get("0001") == b"text 1"


def test_remote_storage_needs_a_right_of_its_own(node: SecureNode) -> None:
    remote = Remote("http://127.0.0.1:1/")
    with connect(node.url, token=node.token("mine:read,list,admin")) as client:
        with pytest.raises(errors.AccessDenied):
            client.create_bucket("mine", remote=remote)
        client.create_bucket("mine")
    with connect(node.url, token=node.token("far:read,list,admin,remote")) as client:
        client.create_bucket("far", remote=remote)
        partner = Remote("s3://b", profile="partner")
        with pytest.raises(errors.AccessDenied, match="on profile 'partner': it needs 'profile'"):
            client.bucket("far").set(remote=partner)
    with connect(node.url, token=node.token("far:read,list,admin,remote", "part*:profile")) as client:
        client.bucket("far").set(remote=partner)
        with pytest.raises(errors.AccessDenied, match="on profile 'other'"):
            client.bucket("far").set(remote=Remote("s3://b", profile="other"))


def test_nobody_hurries_the_uploads_of_buckets_that_it_does_not_name(node: SecureNode) -> None:
    asked = remote_pb.PendingUploadsRequest(wait_ms=1000)
    for token in (node.token("text:read"), node.token(EVERYTHING)):
        code, kind = call(node, "RemoteBuckets/PendingUploads", asked.SerializeToString(), token)
        assert (code, kind) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid-request")
    hidden = remote_pb.PendingUploadsRequest(bucket="speech", wait_ms=1000).SerializeToString()
    assert call(node, "RemoteBuckets/PendingUploads", hidden, node.token("text:read"))[1] == "bucket-not-found"
