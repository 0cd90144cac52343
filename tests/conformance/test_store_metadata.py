"""Metadata keys that are the store's own: no client plants them, and they stay true of the bytes that they describe."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import grpc
import pytest

from ais_loader import Bucket, Client, connect
from ais_loader.errors import InvalidRequest
from ais_loader.wire.generated import ais_compose_pb2 as compose_pb
from ais_loader.wire.generated import ais_compose_pb2_grpc as compose_rpc
from ais_loader.wire.generated import ais_objects_pb2 as pb
from ais_loader.wire.generated import ais_objects_pb2_grpc as rpc
from tests.node.cluster_kit import LocalCluster
from tests.node.node_kit import serving

PLANTED = {"ais.etl-source": "from/a", "by": "me"}
PUTS: dict[str, Callable[[Bucket], object]] = {
    "put": lambda bucket: bucket.put("a", b"planted", metadata=PLANTED),
    "large put": lambda bucket: bucket.put("a", bytes(3 << 20), metadata=PLANTED),
    "put_many": lambda bucket: bucket.put_many([("a", b"planted", PLANTED)], on_error="raise"),
    "multipart": lambda bucket: bucket.multipart("a", metadata=PLANTED),
    "set_metadata": lambda bucket: bucket.set_metadata("kept", PLANTED),
    "promotion": lambda bucket: bucket.put("a", b"planted", metadata={"ais.promoted-mtime-ns": "1"}),
}


@pytest.fixture(scope="module", params=["embedded", "grpc", pytest.param("cluster", marks=pytest.mark.slow)])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "embedded":
        with connect(folder / "store") as client:
            yield client
    elif request.param == "grpc":
        with serving(folder, etl_code=True) as node, connect(node.url) as client:
            yield client
    else:
        with LocalCluster(folder, 2, copies=2, etl_code=True) as cluster, connect(cluster.nodes[0].url) as client:
            yield client


@pytest.fixture
def bucket(client: Client) -> Bucket:
    return client.create_bucket(f"b-{uuid.uuid4().hex[:16]}")


@pytest.mark.parametrize("how", PUTS)
def test_nobody_plants_keys_of_the_store(bucket: Bucket, how: str) -> None:
    bucket.put("kept", b"bytes", metadata={"by": "me"})
    with pytest.raises(InvalidRequest, match=r"'ais[.-].*set by the store alone; use another key"):
        PUTS[how](bucket)
    assert "a" not in list(bucket)
    assert bucket.head("kept").metadata == {"by": "me"}


@pytest.mark.slow
def test_a_result_stays_one_as_long_as_its_bytes_do(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"bytes")
    client.etl.init("same", lambda data: bytes(data), replace=True)
    bucket.copy("a", "made", etl="same")
    stamp = bucket.head("made").metadata
    assert stamp["ais.etl-source"] == f"{bucket.name}/a"
    assert bucket.copy("made", "copied").metadata == stamp
    assert bucket.set_metadata("made", {"by": "me"}).metadata == stamp | {"by": "me"}
    assert bucket.set_metadata("made", {}).metadata == stamp
    bucket.append("made", b" and more")
    assert bucket.head("made").metadata == {}
    assert bucket.put("copied", b"other bytes").metadata == {}


@pytest.mark.slow
def test_metadata_that_was_read_can_be_written_back_with_a_change(client: Client, bucket: Bucket) -> None:
    bucket.put("a", b"bytes")
    client.etl.init("same", lambda data: bytes(data), replace=True)
    bucket.copy("a", "made", etl="same")
    stamp = dict(bucket.head("made").metadata)
    assert bucket.set_metadata("made", stamp | {"by": "me"}).metadata == stamp | {"by": "me"}
    with pytest.raises(InvalidRequest, match="set by the store alone"):
        bucket.set_metadata("made", stamp | {"ais.etl-source": "from/elsewhere"})
    with pytest.raises(InvalidRequest, match="set by the store alone"):
        bucket.set_metadata("a", stamp)
    assert bucket.head("made").metadata == stamp | {"by": "me"}


def raw_puts(url: str, bucket: str, name: str, data: bytes, metadata: Mapping[str, str]) -> list[tuple[str, str]]:
    """Outcomes of calls that no client of this library would make."""
    object_, found = {"bucket": bucket, "name": name, "metadata": metadata}, []
    with grpc.insecure_channel(url.removeprefix("grpc://")) as channel:
        objects = rpc.ObjectsStub(channel)
        request = compose_pb.ComposeRequest(part=[compose_pb.ComposePart(data=data)], object=pb.PutHeader(**object_))
        messages = (pb.PutRequest(header=pb.PutHeader(**object_)), pb.PutRequest(data=data))
        many = pb.PutManyRequest(object=[pb.SmallObject(data=data, **object_)])
        for call in (
            lambda: objects.Put(iter(messages), timeout=180),
            lambda: list(objects.PutMany(iter([many]), timeout=180)),
            lambda: list(compose_rpc.ComposeStub(channel).Compose(request, timeout=180)),
        ):
            try:
                call()
                found.append(("OK", ""))
            except grpc.RpcError as error:
                found.append((error.code().name, error.details() or ""))
    return found


@pytest.mark.slow
def test_a_job_is_not_deceived_by_objects_that_look_like_its_results(client: Client) -> None:
    source, first, second = (client.create_bucket(f"{name}-{uuid.uuid4().hex[:8]}") for name in ("s", "t", "u"))
    source.put("a", b"bytes")
    client.etl.init("upper", lambda data: bytes(data).upper(), replace=True)
    source.transform(first.name, etl="upper")
    stamp = dict(first.head("a").metadata)
    with pytest.raises(InvalidRequest):
        second.put("a", b"forged", metadata=stamp)
    if client.url.startswith("grpc://"):
        for code, why in raw_puts(client.url, second.name, "a", b"forged", stamp):
            assert (code, "set by the store alone" in why) == ("INVALID_ARGUMENT", True)
    assert not second.exists("a")
    job = source.transform(second.name, etl="upper")
    assert (job.counts.transformed, job.counts.skipped, second.get("a")) == (1, 0, b"BYTES")
