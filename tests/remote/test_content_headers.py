"""Headers that describe an object's content: stored copies, stat and gateway have those of the remote object."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping

import pytest

from ais_loader import Remote
from ais_loader.integrations.gateway.clients import Clients
from ais_loader.objects.bucket import Bucket
from ais_loader.testing import NodeProcess
from tests.gateway.conftest import ACCOUNT, Served
from tests.gateway.gateway_thread import GatewayThread
from tests.remote.backend_kit import Asked, DecidedServer, Reply, content
from tests.remote.conftest import RemoteBucket
from tests.remote.s3_server import S3Server

STORED = gzip.compress(b'{"a": 1}' * 100)
HEADERS = {
    "Content-Encoding": "gzip",
    "Content-Type": "application/json",
    "Content-Language": "de",
    "Content-Disposition": 'attachment; filename="a.json"',
    "Cache-Control": "max-age=60",
}
OF_BOTO3 = {name.replace("-", ""): value for name, value in HEADERS.items()}


def told(metadata: Mapping[str, str]) -> dict[str, str]:
    """Those of the headers that an object's metadata have."""
    return {name: metadata[f"ais.{name.lower()}"] for name in HEADERS if f"ais.{name.lower()}" in metadata}


@pytest.fixture(scope="module")
def served(node: NodeProcess) -> Iterator[Served]:
    clients = Clients(node.url, [ACCOUNT])
    try:
        with GatewayThread(clients, {ACCOUNT.access_key: ACCOUNT}) as gateway:
            yield Served(gateway, clients)
    finally:
        clients.close()


def test_the_stat_of_a_remote_object_has_its_headers(cold: Bucket, remote_bucket: RemoteBucket) -> None:
    remote_bucket.s3.put(remote_bucket.name, "a", STORED, headers=HEADERS)
    assert told(cold.head("a").metadata) == HEADERS
    assert cold.get("a") == STORED
    info = cold.head("a")
    assert info.is_stored and told(info.metadata) == HEADERS


def test_the_stat_of_an_object_of_a_web_server_has_its_headers(cold: Bucket) -> None:
    def decide(asked: Asked) -> Reply:
        reply = content(asked, STORED)
        reply.headers |= HEADERS
        return reply

    with DecidedServer(decide) as server:
        cold.set(remote=Remote(server.url))
        assert told(cold.head("a").metadata) == HEADERS
        assert cold.get("a") == STORED
        assert told(cold.head("a").metadata) == HEADERS


def test_headers_that_are_too_long_to_be_kept_keep_nothing_from_being_read(cold: Bucket) -> None:
    """Metadata have 4 KiB, and the tag of the remote object has to be among them."""

    def decide(asked: Asked) -> Reply:
        reply = content(asked, STORED)
        reply.headers |= HEADERS | {"Content-Disposition": "x" * 5000}
        return reply

    with DecidedServer(decide) as server:
        cold.set(remote=Remote(server.url))
        assert cold.get("a") == STORED
        assert cold.head("a").metadata["ais.remote-etag"] == '"v1"'


@pytest.mark.slow
def test_the_gateway_answers_with_the_headers_of_the_remote_object(served: Served, s3: S3Server) -> None:
    place, other = s3.bucket(), s3.bucket()
    s3.put(place, "a", STORED, headers=HEADERS)
    client, boto3 = served.client, served.s3()
    buckets = {
        name: client.create_bucket(name, remote=Remote(f"s3://{there}", endpoint=s3.endpoint))
        for name, there in (("from", place), ("to", other))
    }
    client.create_bucket("plain")

    def answers(bucket: str) -> None:
        head, get = boto3.head_object(Bucket=bucket, Key="a"), boto3.get_object(Bucket=bucket, Key="a")
        assert {name: head.get(name) for name in OF_BOTO3} == OF_BOTO3
        assert {name: get.get(name) for name in OF_BOTO3} == OF_BOTO3
        assert get["Body"].read() == STORED

    answers("from")  # cold, and stored by the read
    assert buckets["from"].head("a").is_stored
    answers("from")
    ranged = boto3.get_object(Bucket="from", Key="a", Range="bytes=5-9")
    assert (ranged["ContentEncoding"], ranged["Body"].read()) == ("gzip", STORED[5:10])
    for bucket in ("plain", "to"):
        boto3.copy_object(Bucket=bucket, Key="a", CopySource={"Bucket": "from", "Key": "a"})
        answers(bucket)
    found = {name.lower(): value for name, value in s3.head(other, "a").items()}
    assert {name: found.get(name.lower()) for name in HEADERS} == HEADERS
    buckets["to"].evict()
    answers("to")

    boto3.put_object(Bucket="to", Key="b", Body=b"text", ContentType="text/plain", ContentEncoding="identity")
    buckets["to"].evict()
    head = boto3.head_object(Bucket="to", Key="b")
    assert (head["ContentType"], head["ContentEncoding"]) == ("text/plain", "identity")
