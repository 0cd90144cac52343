"""What errors tell clients with tokens: what has happened to their objects, but no path, process or peer."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from ais_loader import Entry, connect, errors
from ais_loader.values.options import ClusterOptions
from ais_loader.wire.generated import ais_etl_pb2 as pb
from ais_loader.wire.generated import ais_etl_pb2_grpc as rpc
from ais_loader.wire.generated import ais_objects_pb2 as objects_pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as objects_rpc
from storage_node.store.places import without_places
from tests.changing_folder import files_below
from tests.peer_kit import OPTIONS
from tests.security.rights_kit import EVERYTHING, SecureNode, secure

TIMEOUT_S = 180.0
LARGE = bytes(200_000)
SMALL = "speech:read,list,write,etl-use"


def broken() -> Callable[[bytes], bytes]:
    def fail(data: bytes) -> bytes:
        raise ValueError(f"no good: {__file__} in process {os.getpid()}")

    return fail


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureNode]:
    with secure(tmp_path_factory.mktemp("node"), etl_code=True, etl_workers=1) as node:
        with connect(node.url, token=node.token(EVERYTHING)) as client:
            bucket = client.create_bucket("speech")
            for name in ("gone", "damaged", "short", "archive.tar"):
                bucket.put(name, name.encode() + LARGE)
            client.etl.init("broken", broken())
        damage(node)
        yield node


def damage(node: SecureNode) -> None:
    """Remove, change and shorten the files of objects."""
    store = node.server._store
    assert store is not None
    for path, found in list(files_below(Path(store.drives[0].root))):  # type: ignore[union-attr]
        if found.st_size < len(LARGE) or not path.is_file():
            continue
        name = path.read_bytes()[:7]
        if name.startswith(b"gone"):
            path.unlink()
        elif name.startswith(b"damaged"):
            with path.open("r+b") as file:
                file.seek(100_000)
                file.write(b"x" * 1000)
        elif name.startswith(b"short"):
            os.truncate(path, 1000)


def secrets(node: SecureNode) -> list[str]:
    store = node.server._store
    assert store is not None
    roots = [str(drive.root) for drive in store.drives if drive is not None]
    return [*roots, str(node.key.parent), node.server.peer_endpoint, str(os.getpid())]


def check(node: SecureNode, text: str) -> None:
    for one in secrets(node):
        assert one not in text, text
    assert not re.search(r"(?<![\w/:.])/(?:home|tmp|root|usr|etc|opt|var|work|proc)\b", text), text


def attempts(client: Any) -> list[Callable[[], object]]:
    bucket = client.bucket("speech")
    return [
        lambda: bucket.get("gone"),
        lambda: bucket.get("damaged"),
        lambda: bucket.get("short"),
        lambda: bucket.get("damaged", start=99_000, length=5_000),
        lambda: list(client.get_batch([Entry("speech", "gone")])),
        lambda: list(client.get_batch([Entry("speech", "damaged", member="x")])),
        lambda: list(client.get_batch([Entry("speech", "archive.tar", member="x")])),
        lambda: list(client.get_batch([Entry("speech", "archive.tar", etl="broken")])),
        lambda: list(client.get_batch([Entry("speech", "archive.tar", etl="unknown")])),
        lambda: list(client.get_batch([Entry("speech", "nothing")])),
        lambda: bucket.get("archive.tar", etl="broken"),
        lambda: list(bucket.members("archive.tar")),
        lambda: client.etl.get("broken"),
        lambda: client.bucket("hidden").get("x"),
        lambda: bucket.promote("/etc"),
        lambda: client.create_bucket("other"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("lane", ["auto", "grpc"])
def test_errors_tell_no_paths_processes_and_peers(node: SecureNode, lane: Any) -> None:
    failed = 0
    with connect(node.url, token=node.token(SMALL), options=ClusterOptions(lane=lane, retry_s=0.2)) as client:
        for attempt in attempts(client):
            try:
                attempt()
            except errors.LoaderError as error:
                failed += 1
                if "promote" not in str(error):
                    check(node, str(error))
        placed = [Entry("speech", name) for name in ("gone", "damaged", "short")]
        placed.append(Entry("speech", "archive.tar", etl="broken"))
        items = list(client.get_batch(placed, on_error="placeholder"))
        assert all(item.error is not None for item in items)
        for item in items:
            check(node, str(item.error))
        assert "no good" in str(items[3].error)
    assert failed >= 13


def test_a_drive_that_fails_is_not_named(node: SecureNode, tmp_path: Path) -> None:
    with secure(tmp_path) as alone:
        with connect(alone.url, token=alone.token(EVERYTHING)) as client:
            client.create_bucket("speech").put("x", LARGE)
        store = alone.server._store
        assert store is not None
        drive = store.drives[0]
        assert drive is not None
        drive.doubt(f"{drive.root}: reading in process {os.getpid()}: Input/output error (errno 5)")
        with connect(alone.url, token=alone.token(SMALL), options=ClusterOptions(retry_s=0.2)) as client:
            with pytest.raises(errors.LoaderError) as refused:
                client.bucket("speech").put("y", LARGE)
            check(alone, str(refused.value))
            with pytest.raises(errors.LoaderError) as refused:
                client.bucket("speech").put_many([("y", b"small")])
            check(alone, str(refused.value))


def test_a_transform_shows_its_errors_without_places(node: SecureNode) -> None:
    token = node.token("*:read,etl-use")
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        metadata = [("authorization", f"Bearer {token}")]
        found = rpc.EtlStub(channel).GetTransform(pb.GetTransformRequest(name="broken"), 180, metadata=metadata)
        described = objects_rpc.NodeStub(channel).Describe(objects_pb.DescribeRequest(), 180, metadata=metadata)
    check(node, str(found))
    assert not described.pid and not [name for name in described.limits if name.startswith("peer_")]
    assert node.server.peer_endpoint not in str(described)


def test_a_bug_of_the_node_does_not_show_its_text(node: SecureNode, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = node.server.batches
    assert batches is not None

    def fail(*_: object) -> None:
        raise RuntimeError(f"a bug at {__file__}")

    monkeypatch.setattr(batches.node.store, "head", fail)
    metadata = [("authorization", f"Bearer {node.token(SMALL)}")]
    with grpc.insecure_channel(node.server.endpoint, options=OPTIONS) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            objects_rpc.ObjectsStub(channel).Head(
                objects_pb.HeadRequest(bucket="speech", name="gone"), timeout=TIMEOUT_S, metadata=metadata
            )
        assert refused.value.code() == grpc.StatusCode.INTERNAL
        check(node, f"{refused.value.details()} {refused.value.trailing_metadata()}")


def test_what_is_a_place() -> None:
    root = next(one for one in ("tmp", "etc") if os.path.lexists(f"/{one}"))
    assert without_places(f"/{root}/a b: gone") == "(path) b: gone"
    assert without_places(f"file '/{root}/a/b', line 3") == "file '(path)', line 3"
    assert without_places("s3://bucket/key and 'speech/a.wav'") == "s3://bucket/key and 'speech/a.wav'"
    assert without_places("'/no-such-folder-here/x'") == "'/no-such-folder-here/x'"
    assert without_places("process 123 (pid 4) at 10.0.0.5:7481") == "process (pid) at a node"
    assert without_places("[::1]:7481 and host-b:7481", ["host-b:7481"]) == "a node and a node"
    assert without_places("http://127.0.0.1:9000/x") == "http://127.0.0.1:9000/x"
