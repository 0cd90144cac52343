"""Lines of an audit log: what clients read and change, by whom, over every way to a node."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ais_loader import ClusterOptions, Command, Entry, connect, errors
from ais_loader.testing.waiting import eventually
from ais_loader.wire.generated import ais_batch_pb2 as batch_pb
from ais_loader.wire.generated import ais_cluster_pb2 as cluster_pb
from ais_loader.wire.generated import ais_cluster_pb2_grpc as cluster_rpc
from storage_node.security.rights.tokens import parse_token
from storage_node.server import NodeServer
from storage_node.services.call_table import TABLE, Role
from storage_node.settings.config import ServerConfig
from tests.node.cluster_kit import LocalCluster
from tests.node.node_kit import RawSession, batch_of
from tests.peer_kit import operator_of
from tests.security.audit_kit import awaited, files_of, lines_in, logged, run, verify
from tests.security.rights_kit import EVERYTHING, SecureNode, secure
from tests.tar_kit import packed_tar

TIMEOUT_S = 180.0
NAMED = ClusterOptions(tenant="named")
LANES = ["auto", "grpc"]
NAMES = [f"{number:04d}" for number in range(200)]
LARGE = 9_000_000
NEITHER = {
    "Buckets/GetBucket",
    "Buckets/ListBuckets",
    "Cluster/GetMap",
    "Cluster/Learn",
    "Cluster/Prepare",
    "Contents/HeadMany",
    "Contents/ListDenied",
    "Contents/Summarize",
    "Drives/ListDrives",
    "Etl/GetTransform",
    "Etl/ListJobFailures",
    "Etl/ListJobs",
    "Etl/ListTransforms",
    "Etl/WatchJob",
    "Node/Describe",
    "Objects/Head",
    "Objects/List",
    "Objects/ListMembers",
    "Promote/Look",
    "RemoteBuckets/Expect",
    "RemoteBuckets/ListRemote",
    "RemoteBuckets/PendingUploads",
    "RemoteBuckets/RemoteUsage",
    "RemoteBuckets/Warm",
    "Repair/Progress",
    "Snapshots/ListSnapshots",
    "Tokens/ListRevokedTokens",
}
"""Calls that change nothing that clients have put or operators have set, and return no bytes of objects."""


def digest_of(bucket: str, names: list[str]) -> str:
    text = "".join(f"{bucket}\0{name}\0\0" for name in names)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeServer]:
    config = ServerConfig(port=0, audit_level="reads", audit_names=True)
    with NodeServer([tmp_path / "drive"], config) as node:
        yield node


def test_every_call_of_clients_and_operators_is_known() -> None:
    calls = {method for method, call in TABLE.items() if call.by & (Role.CLIENT | Role.OPERATOR) and not call.log}
    assert calls == NEITHER


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:20], NAMES, [*NAMES[:3], "large"]])
def test_a_batch_has_one_line(node: NodeServer, lane: str, names: list[str]) -> None:
    with connect(node.url, options=ClusterOptions(lane=lane)) as client:
        bucket = client.create_bucket("b")
        bucket.put_many((name, name.encode()) for name in NAMES)
        bucket.put("large", bytes(LARGE))
        data = [bytes(item.data) for item in bucket.get_batch(names)]
        assert data == [bytes(LARGE) if name == "large" else name.encode() for name in names]
        (line,) = awaited(node, event="read")
    assert line["transport"] == ("lane" if lane == "auto" else "session")
    assert (line["by"], line["tenant"], line["token"]) == ("client", "-", "-")
    assert line["from"] == ("unix" if lane == "auto" else "loopback")
    assert (line["outcome"], line["buckets"], line["digest"]) == ("complete", ["b"], digest_of("b", names))
    counts = [line[name] for name in ("entries", "delivered", "denied", "failed", "bytes")]
    assert counts == [len(names), len(names), 0, 0, sum(map(len, data))]
    assert line["names"] == {"b": names}
    assert not verify(files_of(lane_folder(node))).problem


def lane_folder(node: NodeServer) -> Path:
    assert node.batches is not None and node.batches.node.audit is not None
    return node.batches.node.audit.folder


def test_lines_of_the_fast_path_have_the_digest_of_the_ordinary_one(node: NodeServer) -> None:
    with connect(node.url) as client:
        bucket = client.create_bucket("b")
        bucket.put_many((name, name.encode()) for name in NAMES)
        done = 0
        for _ in range(2):
            for some in (NAMES[:1], NAMES[:5]):
                with RawSession(node.url) as session:
                    session.send(1, batch_of(some, bucket="b"))
                    while session.receive().end.outcome != batch_pb.End.COMPLETE:
                        pass
                    done += 1
                    awaited(node, done, event="read")
                    session.send(2, batch_of(some, bucket="b", deadline_ms=180_000, buffered=True))
                    while session.receive().end.outcome != batch_pb.End.COMPLETE:
                        pass
                    done += 1
                    awaited(node, done, event="read")
    lines = logged(node, event="read")
    assert len({line["content"] for line in lines}) == 2
    assert len({(line["digest"], line["content"]) for line in lines}) == 2


def test_members_ranges_and_missing_objects_are_told(node: NodeServer) -> None:
    with connect(node.url) as client:
        bucket = client.create_bucket("b")
        bucket.put("shard.tar", packed_tar({"a": b"one", "b": b"three"}))
        bucket.put("x", b"0123456789")
        entries = [Entry("b", "shard.tar", member="b"), Entry("b", "x", start=2, length=3), Entry("b", "none")]
        bucket.get_batch(entries, on_error="placeholder").tobytes()
        with pytest.raises(errors.ObjectNotFound):
            bucket.get_batch([Entry("b", "none"), Entry("b", "x")]).tobytes()
        awaited(node, 2, event="read")
    (line,) = awaited(node, event="read", outcome="complete")
    assert [line[name] for name in ("entries", "delivered", "denied", "failed", "bytes")] == [3, 2, 0, 1, 8]
    assert line["names"] == {"b": [["shard.tar", "b"], "x"]}
    (line,) = awaited(node, event="read", outcome="stopped")
    assert set(line["names"].get("b", [])) <= {"none", "x"}  # its client may leave before the node knows more


def test_an_object_that_is_read_in_a_call_of_its_own_has_a_line(node: NodeServer) -> None:
    with connect(node.url) as client:
        bucket = client.create_bucket("b")
        bucket.put("shard.tar", packed_tar({"a": b"one"}))
        bucket.put("large", bytes(LARGE))

        def logged_bytes() -> int:
            with bucket.open("large") as file:
                assert file.read() == bytes(LARGE)
            return sum(line.get("bytes", 0) for line in logged(node, event="read"))

        # While the client is there: of one that leaves, the node may not know that the last bytes have arrived. On a
        # busy machine, a client may ask twice, and leave the first answer: then it reads again.
        eventually(lambda: logged_bytes() >= LARGE)
    assert {tuple(line["names"]["b"]) for line in logged(node, event="read")} == {("large",)}
    with grpc.insecure_channel(node.endpoint) as channel:
        from ais_loader.wire.generated import ais_objects_pb2 as pb
        from ais_loader.wire.generated import ais_objects_pb2_grpc as rpc

        answers = list(rpc.ObjectsStub(channel).Get(pb.GetRequest(bucket="b", name="large"), timeout=TIMEOUT_S))
    (line,) = awaited(node, event="read", call="Objects/Get", transport="call")
    assert line["version"] == answers[0].header.info.version
    assert (line["outcome"], line["bytes"], line["names"]) == ("ok", LARGE, {"b": ["large"]})


def test_results_of_transforms_are_reads_of_their_objects(tmp_path: Path) -> None:
    config = ServerConfig(port=0, audit_level="reads", audit_names=True, etl_code=True)
    with NodeServer([tmp_path / "drive"], config) as node, connect(node.url) as client:
        bucket = client.create_bucket("b")
        bucket.put("x", b"x")
        client.etl.init("same", Command(["cat"]))
        for _ in range(2):  # the second one is kept in memory
            assert bucket.get("x", etl="same") == b"x"
        lines = awaited(node, 2, event="read")
        assert all((line["transforms"], line["names"]) == (["same"], {"b": ["x"]}) for line in lines)
        (line,) = awaited(node, call="Etl/InitTransform")
        assert (line["target"], line["outcome"]) == ("same", "ok")


@pytest.mark.slow
def test_changes_are_logged_by_default_and_reads_are_not(tmp_path: Path) -> None:
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0)) as node, connect(node.url, options=NAMED) as client:
        bucket = client.create_bucket("b")
        bucket.put("x", b"x")
        bucket.put_many((name, b"12") for name in NAMES)
        assert bucket.get("x") == b"x"
        bucket.snapshot("s")
        bucket.delete_snapshot("s")
        bucket.delete("x")
        bucket.delete_many(NAMES[:3])
        with pytest.raises(errors.ObjectNotFound):
            client.bucket("b").delete("none")
        client.delete_bucket("b", force=True)
    lines = lines_in(tmp_path / "drive" / "audit")
    assert [line["event"] for line in lines] == ["open", *["change"] * (len(lines) - 2), "close"]
    by_call: dict[str, list[dict[str, object]]] = {}
    for line in lines[1:-1]:
        by_call.setdefault(line["call"], []).append(line)
    assert list(by_call) == [
        "Buckets/CreateBucket",
        "Objects/Put",
        "Objects/PutMany",
        "Snapshots/CreateSnapshot",
        "Snapshots/DeleteSnapshot",
        "Objects/Delete",
        "Contents/DeleteMany",
        "Buckets/DeleteBucket",
    ]
    assert all(line["buckets"] == ["b"] for line in lines[1:-1])
    assert not any("names" in line for line in lines)
    (put,) = by_call["Objects/Put"]
    assert (put["claimed_tenant"], put["tenant"]) == ("named", "-")
    assert (put["digest"], put["entries"], put["bytes"]) == (digest_of("b", ["x"]), 1, 1)
    (many,) = by_call["Objects/PutMany"]
    assert (many["entries"], many["done"], many["bytes"], many["outcome"]) == (200, 200, 400, "ok")
    assert many["digest"] == digest_of("b", NAMES)
    assert [line["outcome"] for line in by_call["Objects/Delete"]] == ["ok", "object-not-found"]
    assert not verify(files_of(tmp_path / "drive" / "audit")).problem


def test_nothing_is_logged_if_that_is_set(tmp_path: Path) -> None:
    config = ServerConfig(port=0, audit_level="off")
    with NodeServer([tmp_path / "drive"], config) as node, connect(node.url) as client:
        client.create_bucket("b").put("x", b"x")
    assert not (tmp_path / "drive" / "audit").exists()


@pytest.mark.parametrize("setting", ["promote_roots", "etl_command_paths", "remote_file_roots"])
def test_clients_cannot_reach_the_log(tmp_path: Path, setting: str) -> None:
    logs = tmp_path / "data" / "logs"
    config = ServerConfig(port=0, audit_folder=str(logs), **{setting: (str(logs.parent),)})
    with pytest.raises(errors.InvalidRequest, match=setting):
        NodeServer([tmp_path / "drive"], config).start()


@pytest.mark.parametrize("lane", LANES)
def test_the_subject_is_that_of_the_token_and_denied_entries_are_told(tmp_path: Path, lane: str) -> None:
    with secure(tmp_path, audit_level="reads", audit_names=True, audit_folder=str(tmp_path / "logs")) as node:
        mine = node.token("mine:read,list,write,admin", tenant="team")
        token_id = parse_token(mine, ()).token_id
        _fill(node)
        with connect(node.url, token=mine, options=ClusterOptions(lane=lane)) as client:
            entries = [Entry("mine", "x"), Entry("other", "secret"), Entry("mine", "x")]
            items = list(client.get_batch(entries, on_error="placeholder"))
            assert [item.error is None for item in items] == [True, False, True]
            with pytest.raises(errors.BucketNotFound):
                client.bucket("other").put("y", b"")
            (line,) = awaited(node.server, event="read", token=token_id)
        assert (line["tenant"], line["outcome"], line["buckets"]) == ("team", "complete", ["mine", "other"])
        assert [line[name] for name in ("entries", "delivered")] == [3, 2]
        assert line["denied"] + line["failed"] == 1
        assert line["names"] == {"mine": ["x"]}
        (line,) = awaited(node.server, event="change", token=token_id)
        assert (line["outcome"], line["names"]) == ("bucket-not-found", {"other": ["y"]})
        lines = len(logged(node.server))
        with connect(node.url, token=node.expired()) as client, pytest.raises(errors.AccessDenied):
            client.bucket("mine").put("y", b"")
        assert len(logged(node.server)) == lines  # whoever has no token cannot fill the log
    assert "ok " in run("verify", tmp_path / "logs")


def _fill(node: SecureNode) -> None:
    with connect(node.url, token=node.token(EVERYTHING, tenant="all")) as client:
        for name in ("mine", "other"):
            client.create_bucket(name).put("x", b"x")
        client.bucket("other").put("secret", b"s")


def test_an_entry_without_the_right_to_read_is_denied_in_its_line(tmp_path: Path) -> None:
    with secure(tmp_path, audit_level="reads") as node:
        _fill(node)
        with connect(node.url, token=node.token("mine:read", "other:list")) as client:
            entries = [Entry("mine", "x"), Entry("other", "secret")]
            list(client.get_batch(entries, on_error="placeholder"))
            (line,) = awaited(node.server, event="read", tenant="team")
        assert [line[name] for name in ("delivered", "denied", "failed")] == [1, 1, 0]


def test_operators_are_told_apart(tmp_path: Path) -> None:
    with secure(tmp_path) as node, operator_of(node.server) as channel:
        request = cluster_pb.RevokeTokenRequest(token=cluster_pb.RevokedToken(id="a" * 32, expires_s=1 << 32))
        cluster_rpc.TokensStub(channel).RevokeToken(request, timeout=TIMEOUT_S)
        (line,) = awaited(node.server, call="Tokens/RevokeToken")
        assert (line["by"], line["target"], line["outcome"]) == ("operator", "a" * 32, "ok")


@pytest.mark.slow
def test_a_gathered_batch_is_logged_by_the_node_that_gathers_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, audit_level="reads", audit_names=True) as cluster:
        with connect(cluster.nodes[0].url) as client:
            client.bucket("b").put_many((name, name.encode()) for name in NAMES)
        with RawSession(cluster.nodes[0].url) as session:
            session.send(1, batch_of(NAMES, bucket="b"))
            while session.receive().end.outcome != batch_pb.End.COMPLETE:
                pass
            (line,) = awaited(cluster.nodes[0], event="read")
        assert (line["delivered"], line["names"]) == (len(NAMES), {"b": NAMES})
        assert not any(logged(node, event="read") for node in cluster.nodes[1:])
        assert sum(len(logged(node, call="Objects/PutMany")) for node in cluster.nodes) >= 1
        assert all(line["by"] == "client" for node in cluster.nodes for line in logged(node, event="change"))


def test_who_has_read_an_object_and_what_a_tenant_has_done(tmp_path: Path) -> None:
    with secure(tmp_path, audit_level="reads", audit_names=True) as node:
        _fill(node)
        with connect(node.url, token=node.token("mine:read", tenant="reader")) as client:
            client.bucket("mine").get("x")
        awaited(node.server, event="read", tenant="reader")
        drive = tmp_path / "drive"
        found = [json.loads(line) for line in run("who", "mine/x", drive, "--json").splitlines()]
        assert [(one["tenant"], one["event"], one.get("call", "")) for one in found] == [
            ("all", "change", "Objects/Put"),
            ("reader", "read", ""),
        ]
        assert "mine" in run("what", "reader", drive) and "Objects/Put" not in run("what", "reader", drive)
        assert len(run("what", "all", drive).splitlines()) == 5
        assert run("who", "mine/none", drive) == ""


def test_who_says_which_lines_have_no_names(tmp_path: Path) -> None:
    with NodeServer([tmp_path / "drive"], ServerConfig(port=0, audit_level="reads")) as node:
        with connect(node.url) as client:
            bucket = client.create_bucket("b")
            bucket.put_many((name, b"1") for name in NAMES)
            bucket.put("x", b"x")
            bucket.get("x")
        awaited(node, event="read")
        output = run("who", "b/x", tmp_path / "drive")
        assert "Objects/Put " in output and "read" in output
        assert "1 more lines about bucket b have no names" in output
